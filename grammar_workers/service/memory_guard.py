"""Memory limit of a process, below the limits at which the kernel or Ray would kill the process.

A thread reads the resident memory 20 times a second. The growth between two readings is divided equally among the calls
that run. Above the limit, new work is rejected, and MemoryError is raised in the thread of the call with the most
growth.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from grammar_workers.logs import SERVE, get_logger

logger = get_logger(SERVE)

_Result = TypeVar("_Result")
_PAUSE_S = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessFullError(RuntimeError):
    """New work is rejected, because the process has reached its memory limit."""


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    who: str
    thread: int
    grown: float = 0.0
    is_ended: bool = False


class MemoryGuard:
    """Memory limit of one process. There is no limit until `start` is called. Thread-safe.

    Args:
        resident: Returns the resident memory of the process, in bytes. None: read from /proc.
    """

    def __init__(self, resident: Callable[[], int] | None = None) -> None:
        self._resident = resident or _resident_bytes
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        self._most: int | None = None
        self._now = 0

    def __reduce__(self) -> str:
        """Pickle by name: Serve pickles the classes of deployments, and each process has a guard of its own."""
        return "GUARD"

    def start(self, growth_mb: int) -> None:
        """Set the memory limit, and start the thread that watches it. A later call only changes the limit.

        Args:
            growth_mb: MiB by which the process may grow beyond its present size.
        """
        began = self._most is not None
        self._now = self._resident()
        self._most = self._now + (growth_mb << 20)
        if not began:
            threading.Thread(target=self._watch, name="memory-guard", daemon=True).start()

    def check(self) -> None:
        """Check that the process may begin new work.

        Raises:
            ProcessFullError: The process has reached its memory limit.
        """
        if self._most is not None and self._now > self._most:
            raise ProcessFullError("this process holds as much memory as it may (process_growth_mb); try again later")

    def call(self, who: str, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return the value of a function that is called under the memory limit, or raise its exception.

        If the process exceeds its memory limit and this call has used the most memory, MemoryError is raised inside
        the function. So it must be possible to interrupt the function at any point. The function must not wait for
        locks of other calls.

        Args:
            who: Name of the call in the log.
            function: Function to call.
            arguments: Positional arguments of the function.
        """
        call = _Call(who, threading.get_ident())
        try:
            with self._lock:
                self._calls.add(call)
            return function(*arguments)
        finally:
            # The MemoryError may be raised here if the call has just ended. There is one at most.
            with contextlib.suppress(MemoryError):
                self._forget(call)
            self._forget(call)

    def _forget(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)

    def look(self) -> None:
        """Read the memory once. If it exceeds the limit, raise MemoryError in the call that has used the most memory.

        A thread calls this method 20 times a second. No call is interrupted while an interrupted call still runs.
        """
        assert self._most is not None
        before, self._now = self._now, self._resident()
        with self._lock:
            for call in self._calls:
                call.grown += (self._now - before) / len(self._calls)
            if self._now <= self._most or any(call.is_ended for call in self._calls):
                return
            if (largest := max(self._calls, key=lambda call: call.grown, default=None)) is None:
                if before <= self._most:
                    logger.error("process is full, rejecting requests: resident_mb=%d", self._now >> 20)
                return
            largest.is_ended = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(largest.thread), ctypes.py_object(MemoryError))
        logger.error(
            "process is full, ending the largest call: resident_mb=%d grown_mb=%d call=%s",
            self._now >> 20,
            int(largest.grown) >> 20,
            largest.who,
        )

    def _watch(self) -> None:
        while True:
            time.sleep(_PAUSE_S)
            self.look()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


# Guard of this process.
GUARD = MemoryGuard()

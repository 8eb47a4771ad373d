"""A process's own limit on memory, so that it refuses work before the kernel or Ray ends the process.

A thread reads the resident memory. Above the limit new work is refused, and the call that has grown most is ended by a
MemoryError in its thread. Growth between two readings is divided among the calls that ran.
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
    """The process holds as much memory as it may."""


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    who: str
    thread: int
    grown: float = 0.0
    is_ended: bool = False


class MemoryGuard:
    """Watches one process once it is started. `resident` returns the bytes that the process holds."""

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
        """Watch the process; it may grow by so many MiB beyond what it holds now. Another start changes the limit."""
        began = self._most is not None
        self._now = self._resident()
        self._most = self._now + (growth_mb << 20)
        if not began:
            threading.Thread(target=self._watch, name="memory-guard", daemon=True).start()

    def check(self) -> None:
        """Raise ProcessFullError while new work has to be refused."""
        if self._most is not None and self._now > self._most:
            raise ProcessFullError("this process holds as much memory as it may (process_growth_mb); try again later")

    def call(self, who: str, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what `function` returns. Raises MemoryError where the process is full and this call has grown most.

        `who` names the request in the log. What waits for locks of others or must not be left half done has no place
        in `function`.
        """
        call = _Call(who, threading.get_ident())
        try:
            with self._lock:
                self._calls.add(call)
            return function(*arguments)
        finally:
            # An error that arrives as the call ends may be raised in here; there is one at most.
            with contextlib.suppress(MemoryError):
                self._forget(call)
            self._forget(call)

    def _forget(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)

    def look(self) -> None:
        """Read the memory once, and end a call if there is too much of it."""
        assert self._most is not None
        before, self._now = self._now, self._resident()
        with self._lock:
            for call in self._calls:
                call.grown += (self._now - before) / len(self._calls)
            if self._now <= self._most or any(call.is_ended for call in self._calls):
                return
            if (largest := max(self._calls, key=lambda call: call.grown, default=None)) is None:
                if before <= self._most:
                    logger.error("process is full, refusing requests: resident_mb=%d", self._now >> 20)
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


GUARD = MemoryGuard()
"""That of this process."""

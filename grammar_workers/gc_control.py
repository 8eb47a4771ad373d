"""Keeps Python's garbage collector out of compilations, and away from what lives as long as the process.

They make hundreds of thousands of objects, nearly all of which are freed by their reference counts at the end: what a
collection walks through in the meantime is all alive (a sixth of the time of compiling).
"""

from __future__ import annotations

import functools
import gc
import threading
import time
from types import TracebackType

FULL_COLLECTION_S = 300.0
"""Between two full collections of a process that serves."""
_NEVER = 1 << 30
"""So many collections of the middle generation before one of the old."""


class GcPause:
    """A context manager: no collections from the first entry to the last exit of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._was_enabled:
                gc.enable()


def skip_what_exists() -> None:
    """What exists now is taken to live as long as the process: no collection will walk through it again.

    Garbage in cycles that is not collected by then never will be.
    """
    gc.collect()
    gc.freeze()


def collect_seldom() -> None:
    """For a process that has loaded and will serve: `skip_what_exists`, and from now on few full collections.

    Python begins one when the survivors of others have made a quarter more of what is old, and it walks through all
    that waits: 200 ms for a thousand requests, in which nothing else moves. Serving leaves next to no cycles that live
    to be old, and collections of young objects go on.
    """
    skip_what_exists()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    _start_collecting()


@functools.cache
def _start_collecting() -> None:
    threading.Thread(target=_collect, name="collector", daemon=True).start()


def _collect() -> None:
    while True:
        time.sleep(FULL_COLLECTION_S)
        gc.collect()


collector_pause = GcPause()
"""That of the process."""

"""Keeps Python's garbage collector out of compilations.

They make hundreds of thousands of objects, nearly all of which are freed by their reference counts at the end: what a
collection walks through in the meantime is all alive (a sixth of the time of compiling).
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType


class CollectorPause:
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


collector_pause = CollectorPause()
"""That of the process."""

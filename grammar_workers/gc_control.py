"""Control of Python's garbage collector: compilations are not interrupted, and permanent objects are excluded.

A compilation creates hundreds of thousands of objects, and reference counts free nearly all of them at the end. A
collection during a compilation frees nothing, and such collections take a sixth of the compile time.
"""

from __future__ import annotations

import functools
import gc
import threading
import time

# Seconds between two full collections in a process that serves.
FULL_COLLECTION_S = 300.0
# Number of collections of the middle generation before one of the old generation, which is never reached.
_NEVER = 1 << 30


class GcPause:
    """Context manager that disables the garbage collector while at least one thread is inside the context.

    After the last exit, the collector is enabled again if it was enabled before the first entry. Thread-safe.
    """

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

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._was_enabled:
                gc.enable()


def skip_what_exists() -> None:
    """Exclude all existing objects from garbage collection, because they are expected to live as long as the process.

    A full collection is run first. An excluded object that later becomes part of an unreachable reference cycle is
    never freed.
    """
    gc.collect()
    gc.freeze()


def collect_seldom() -> None:
    """Exclude all existing objects from garbage collection, and make full collections rare.

    Call this in a process that has loaded everything and begins to serve. By default, Python often runs full
    collections. Each traverses all waiting requests, which takes 200 ms for a thousand requests and stops everything
    else. Serving leaves almost no reference cycles among old objects, and collections of young objects continue. After
    this call, a thread begins a full collection every `FULL_COLLECTION_S` seconds.
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


# Pause of the garbage collector of this process.
collector_pause = GcPause()

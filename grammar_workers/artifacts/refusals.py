"""Refused specifications, remembered for a while so that repeating one does not cost a compilation each time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from grammar_workers.errors import GrammarError


class RefusalCache:
    """Errors by grammar key, each with its own time to live; the oldest go when there are too many. Thread-safe."""

    def __init__(self, capacity: int = 4096, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._entries: OrderedDict[str, tuple[float, GrammarError]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> GrammarError | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            expires_at, error = entry
            if self._clock() < expires_at:
                return error
            del self._entries[key]
            return None

    def put(self, key: str, error: GrammarError, time_to_live_s: float) -> None:
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = (self._clock() + time_to_live_s, error)
            if len(self._entries) > self._capacity:
                self._entries.popitem(last=False)

    def discard(self, key: str) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)

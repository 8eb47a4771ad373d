"""A thread-safe least-recently-used cache bounded in number, total size and idleness of what it holds."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


MAX_ENTRIES = 16_384
"""Each entry costs some hundred bytes beside what its size says."""
TIME_TO_LIVE_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry(Generic[Value]):
    value: Value
    size: int
    used_at: float


class LeastRecentlyUsed(Generic[Value]):
    """Keeps the values used last: at most `max_entries`, whose sizes sum to at most `capacity`, used in the last
    `time_to_live_s` seconds.

    Sizes are measured again on every access, because some values grow while they are used. The value used last is never
    evicted, even where it alone exceeds the capacity: its user holds it anyway. Every access drops what has expired.
    """

    def __init__(
        self,
        capacity: int,
        size_of: Callable[[Value], int],
        *,
        max_entries: int = MAX_ENTRIES,
        time_to_live_s: float = TIME_TO_LIVE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, got {capacity}")
        self.capacity = capacity
        self.max_entries = max_entries
        self.time_to_live_s = time_to_live_s
        self._size_of = size_of
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self._size = 0
        self._evictions = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            self._expire()
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._store(key, entry.value)
            return entry.value

    def put(self, key: Hashable, value: Value) -> None:
        with self._lock:
            self._expire()
            self._store(key, value)

    def discard(self, key: Hashable) -> None:
        with self._lock:
            self._remove(key)

    def __contains__(self, key: Hashable) -> bool:
        """Whether `key` is held; does not count as a use."""
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Sum of the sizes as last measured."""
        return self._size

    @property
    def evictions(self) -> int:
        """Entries that had to make room or had expired."""
        return self._evictions

    def _expire(self) -> None:
        oldest_allowed = self._clock() - self.time_to_live_s
        # The order is that of the last use, so the expired ones come first.
        while self._entries and next(iter(self._entries.values())).used_at < oldest_allowed:
            self._evict()

    def _store(self, key: Hashable, value: Value) -> None:
        self._remove(key)
        size = self._size_of(value)
        self._entries[key] = _Entry(value, size, self._clock())
        self._size += size
        while (self._size > self.capacity or len(self._entries) > self.max_entries) and len(self._entries) > 1:
            self._evict()

    def _evict(self) -> None:
        self._remove(next(iter(self._entries)))
        self._evictions += 1

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry.size

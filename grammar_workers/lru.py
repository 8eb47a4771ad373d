"""Thread-safe least-recently-used cache, bounded by number, total size and idle time of the values."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


# Maximum number of values. Each value costs some hundred bytes in addition to its size.
MAX_ENTRIES = 16_384
# Time, in seconds, for which an unused value is kept.
TIME_TO_LIVE_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry(Generic[Value]):
    value: Value
    size: int
    used_at: float


class LeastRecentlyUsed(Generic[Value]):
    """Cache that drops the least recently used values first. Thread-safe.

    The size of a value is measured again at every use, because values may grow. The value used last is never evicted,
    even if it exceeds the capacity: its user keeps it in memory anyway. `get` and `put` drop values that have not been
    used for `TIME_TO_LIVE_S` (an hour). There are at most `MAX_ENTRIES` (16,384) values.

    Args:
        capacity: Maximum sum of the sizes, in the unit of `size_of`, at least 0. A negative number raises ValueError.
        size_of: Returns the size of a value.

    Attributes:
        capacity: The argument `capacity`.
        size: Sum of the sizes of all values, each as measured at its last use.
        evictions: Number of values that were evicted or have expired since the cache was created.
    """

    def __init__(self, capacity: int, size_of: Callable[[Value], int]) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, got {capacity}")
        self.capacity = capacity
        self.size = 0
        self.evictions = 0
        self._size_of = size_of
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """Return the value of `key`. The call counts as a use of the value.

        Returns:
            The value, or None if there is none or it has expired.
        """
        with self._lock:
            self._expire()
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._store(key, entry.value)
            return entry.value

    def put(self, key: Hashable, value: Value) -> None:
        """Add or replace the value of `key`. The call counts as a use of the value.

        While the cache is too large, other values are evicted, least recently used first.
        """
        with self._lock:
            self._expire()
            self._store(key, value)

    def discard(self, key: Hashable) -> None:
        """Remove the value of `key`, if there is one. The removal does not count as an eviction."""
        with self._lock:
            self._remove(key)

    def __contains__(self, key: Hashable) -> bool:
        """Return whether there is a value of `key`, maybe an expired one. The call does not count as a use."""
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _expire(self) -> None:
        oldest_allowed = time.monotonic() - TIME_TO_LIVE_S
        # The order is that of the last use, so the expired ones come first.
        while self._entries and next(iter(self._entries.values())).used_at < oldest_allowed:
            self._evict()

    def _store(self, key: Hashable, value: Value) -> None:
        self._remove(key)
        size = self._size_of(value)
        self._entries[key] = _Entry(value, size, time.monotonic())
        self.size += size
        while (self.size > self.capacity or len(self._entries) > MAX_ENTRIES) and len(self._entries) > 1:
            self._evict()

    def _evict(self) -> None:
        self._remove(next(iter(self._entries)))
        self.evictions += 1

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= entry.size

"""A thread-safe least-recently-used cache bounded by the total size of what it holds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LeastRecentlyUsed(Generic[Value]):
    """Keeps the values used last while their sizes sum to at most `capacity`.

    Sizes are measured again on every access, because some values grow while they are used. The value used last is never
    evicted, even where it alone exceeds the capacity: its user holds it anyway.
    """

    def __init__(self, capacity: int, size_of: Callable[[Value], int]) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, got {capacity}")
        self.capacity = capacity
        self._size_of = size_of
        self._entries: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._size = 0
        self._evictions = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._store(key, entry[0])
            return entry[0]

    def put(self, key: str, value: Value) -> None:
        with self._lock:
            self._store(key, value)

    def discard(self, key: str) -> None:
        with self._lock:
            self._remove(key)

    def __contains__(self, key: str) -> bool:
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
        return self._evictions

    def _store(self, key: str, value: Value) -> None:
        self._remove(key)
        size = self._size_of(value)
        self._entries[key] = (value, size)
        self._size += size
        while self._size > self.capacity and len(self._entries) > 1:
            self._remove(next(iter(self._entries)))
            self._evictions += 1

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry[1]

"""The first tier: artifacts in this process's memory."""

from __future__ import annotations

from grammar_workers.artifacts.lru import LeastRecentlyUsed
from grammar_workers.artifacts.store.counters import Counters


class MemoryTier:
    """The artifacts used last, bounded in bytes, number and idleness (`lru.py`)."""

    name = "process"
    trusted = True

    def __init__(self, capacity_bytes: int) -> None:
        self.counters = Counters()
        self._artifacts: LeastRecentlyUsed[bytes] = LeastRecentlyUsed(capacity_bytes, len)

    def get(self, key: str) -> bytes | None:
        return self._artifacts.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._artifacts.put(key, data)

    def discard(self, key: str) -> None:
        self._artifacts.discard(key)

    def stats(self) -> dict[str, int | str]:
        return {"entries": len(self._artifacts), "bytes": self._artifacts.size, "evicted": self._artifacts.evictions}

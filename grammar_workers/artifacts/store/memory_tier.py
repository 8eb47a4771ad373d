"""The first tier: artifacts in this process's memory."""

from __future__ import annotations

from grammar_workers.artifacts.store.counters import Counters
from grammar_workers.lru import LeastRecentlyUsed


class MemoryTier(LeastRecentlyUsed[bytes]):
    """The artifacts used last, bounded in bytes, number and idleness (`lru.py`)."""

    name = "process"
    trusted = True

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, len)
        self.counters = Counters()

    def stats(self) -> dict[str, int | str]:
        return {"entries": len(self), "bytes": self.size, "evicted": self.evictions}

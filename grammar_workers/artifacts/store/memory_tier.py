"""First tier (level) of the grammar store: artifacts (compiled grammars) in the memory of this process."""

from __future__ import annotations

from grammar_workers.counters import Counters
from grammar_workers.lru import LeastRecentlyUsed


class MemoryTier(LeastRecentlyUsed[bytes]):
    """Artifacts (compiled grammars) in the memory of this process. Thread-safe.

    The tier is bounded by bytes, by number and by the time since the last use (see `LeastRecentlyUsed`). The least
    recently used artifacts are dropped first.

    Args:
        capacity_bytes: Maximum size of all artifacts.

    Attributes:
        name: Name of the tier in figures and metrics.
        trusted: True: only this process writes here, so artifacts are not verified again.
        counters: Numbers of events, which the store counts.
    """

    name = "process"
    trusted = True

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, len)
        self.counters = Counters()

    def stats(self) -> dict[str, int | str]:
        """Return the current size of the tier and the number of its evictions.

        Returns:
            `entries`: number of artifacts. `bytes`: their size. `evicted`: number of evictions since the start.
        """
        return {"entries": len(self), "bytes": self.size, "evicted": self.evictions}

"""Whose a grammar key is: who has brought its specification may name it; who has only seen it may not."""

from __future__ import annotations

from cachetools import LRUCache

MOST_REMEMBERED = 65_536
"""Pairs of key and tenant; one that was forgotten is brought again by the next request with the specification."""


class KeyHolders:
    """Of one compiler, which all requests about its keys meet."""

    def __init__(self) -> None:
        self._held: LRUCache[tuple[str, str], bool] = LRUCache(MOST_REMEMBERED)

    def bring(self, key: str, tenant: str) -> None:
        """The tenant has the specification of `key`."""
        self._held[key, tenant] = True

    def holds(self, key: str, tenant: str) -> bool:
        return self._held.get((key, tenant), False)

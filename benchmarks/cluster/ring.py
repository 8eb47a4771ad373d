"""Which compiler a key goes to: Serve's own ring, with the virtual nodes that the application gives it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from deployments.app import BY_GRAMMAR_KEY


@dataclasses.dataclass(frozen=True, slots=True)
class _ReplicaId:
    unique_id: str


class Ring:
    """The router's ring without the router around it, which wants a cluster."""

    def __init__(self, replicas: Iterable[str]) -> None:
        self._router = ConsistentHashRouter.__new__(ConsistentHashRouter)
        self._router._deployment_id = "GrammarCompiler"
        self._router.initialize_state(**BY_GRAMMAR_KEY.request_router_kwargs)
        self.change(replicas)

    def change(self, replicas: Iterable[str]) -> None:
        """These replicas are there now, each by its `unique_id`."""
        self._router._rebuild_ring(frozenset(map(_ReplicaId, replicas)))
        self._owners: dict[str, str] = {}

    def owner(self, key: str) -> str:
        """The replica that a key meets while that takes requests."""
        if (owner := self._owners.get(key)) is None:
            owner = self._owners[key] = self._router._lookup_ranked_replicas(key)[0].unique_id
        return owner

"""The cluster's tier: artifacts in Redis."""

from __future__ import annotations

import threading
from typing import Any

import redis

from grammar_workers.artifacts.artifact import FORMAT_VERSION
from grammar_workers.artifacts.store.redis_client import RedisClient, RedisUnavailableError
from grammar_workers.logs import get_logger

logger = get_logger(__name__)

PREFIX = f"turnstile:grammar:{FORMAT_VERSION}:"
"""Versioned, so that old and new replicas of a rolling upgrade do not read each other's format."""
TIME_TO_LIVE_S = 7 * 24 * 3600
"""Since an artifact was stored. Within it the server's `maxmemory` and `allkeys-lru` bound what is kept."""
_FRAME_BYTES = 1 << 16
"""Of a reply, beside its data."""
MAX_ARTIFACT_BYTES = 16 << 20
"""More would not arrive within a call's deadline."""


class RedisTier:
    """Artifacts under `PREFIX + key`, compressed by their envelope already. A failure is a miss.

    Entries and bytes are bounded by the server alone, which knows what its other clients store; one that is not
    configured to is reported once.
    """

    name = "redis"
    trusted = False

    def __init__(self, client: RedisClient) -> None:
        self.counters = client.counters
        self._client = client
        self._unchecked = threading.Lock()  # taken by the one that checks, for ever

    def get(self, key: str) -> bytes | None:
        # A range read bounds what a hostile entry can make us receive; a missing key reads as b"".
        most = MAX_ARTIFACT_BYTES
        data = self._call(lambda redis: redis.getrange(PREFIX + key, 0, most), most_bytes=most + _FRAME_BYTES)
        if not isinstance(data, bytes) or not data:
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        if len(data) > MAX_ARTIFACT_BYTES:
            self.counters.add("no_space")
            return
        self._call(lambda redis: redis.set(PREFIX + key, data, ex=TIME_TO_LIVE_S))
        if self._unchecked.acquire(blocking=False):
            self._call(_warn_if_unbounded)

    def discard(self, key: str) -> None:
        self._call(lambda redis: redis.delete(PREFIX + key))

    def stats(self) -> dict[str, int | str]:
        return {"breaker": self._client.breaker.state}

    def _call(self, command: Any, **bounds: int) -> Any:
        try:
            return self._client.call(command, **bounds)
        except RedisUnavailableError:
            return None


def _warn_if_unbounded(client: redis.Redis) -> None:
    try:
        memory: Any = client.info("memory")
    except redis.ResponseError:  # users of a shared server often may not ask
        return
    if not memory.get("maxmemory"):
        logger.warning("Redis has no maxmemory: grammars of the last week stay there, however many. Set one.")
    elif memory.get("maxmemory_policy") == "noeviction":
        logger.warning("Redis has the policy noeviction: full, it takes no new grammars. Set allkeys-lru.")

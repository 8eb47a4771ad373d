"""Tier (level) of the grammar store that the cluster shares: artifacts (compiled grammars) in Redis."""

from __future__ import annotations

import threading
from typing import Any

import redis

from grammar_workers.artifacts.artifact import FORMAT_VERSION
from grammar_workers.artifacts.store.redis_client import RedisClient, RedisUnavailableError
from grammar_workers.logs import get_logger

logger = get_logger(__name__)

# Prefix of the keys.
#
# It has the format version: old and new replicas of a rolling upgrade do not read the same entries.
PREFIX = f"turnstile:grammar:{FORMAT_VERSION}:"
# Seconds for which an artifact is kept. The server's `maxmemory` and `allkeys-lru` limit the size within that time.
TIME_TO_LIVE_S = 7 * 24 * 3600
# Maximum size of a reply in addition to its data.
_FRAME_BYTES = 1 << 16
# Maximum size of an artifact. A larger one would not arrive within the deadline of a call.
MAX_ARTIFACT_BYTES = 16 << 20


class RedisTier:
    """Artifacts (compiled grammars) in Redis under `PREFIX + key`. A failure counts as a miss. Thread-safe.

    The artifacts are compressed already. Only Redis limits their number and total size, because it also has the data of
    other clients. If Redis has no limit, a warning is logged once.

    Args:
        client: Client of the Redis server.

    Attributes:
        name: Name of the tier in figures and metrics.
        trusted: False: other processes write here, so artifacts are verified when they are read.
        counters: Numbers of failures, shared with the client, and of events that the store counts.
    """

    name = "redis"
    trusted = False

    def __init__(self, client: RedisClient) -> None:
        self.counters = client.counters
        self._client = client
        self._unchecked = threading.Lock()  # acquired once, by the thread that checks, and never released

    def get(self, key: str) -> bytes | None:
        """Return the artifact of a grammar key, not verified. None if Redis does not have the artifact, or fails."""
        # A range read bounds what a hostile entry can make us receive; a missing key reads as b"".
        most = MAX_ARTIFACT_BYTES
        data = self._call(lambda redis: redis.getrange(PREFIX + key, 0, most), most_bytes=most + _FRAME_BYTES)
        if not isinstance(data, bytes) or not data:
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store an artifact (compiled grammar) for 7 days (`TIME_TO_LIVE_S`).

        An artifact above 16 MiB (`MAX_ARTIFACT_BYTES`) is not stored, and `no_space` is counted. A failure of Redis is
        counted and raises nothing.

        Args:
            key: Grammar key.
            data: The artifact.
        """
        if len(data) > MAX_ARTIFACT_BYTES:
            self.counters.add("no_space")
            return
        self._call(lambda redis: redis.set(PREFIX + key, data, ex=TIME_TO_LIVE_S))
        if self._unchecked.acquire(blocking=False):
            self._call(_warn_if_unbounded)

    def discard(self, key: str) -> None:
        """Remove the artifact of a grammar key, if there is one. A failure of Redis has no effect on the caller."""
        self._call(lambda redis: redis.delete(PREFIX + key))

    def stats(self) -> dict[str, int | str]:
        """Return `{"breaker": state}` with the state of the circuit breaker: `closed`, `open` or `half_open`."""
        return {"breaker": self._client.breaker.state}

    def _call(self, command: Any, **bounds: int) -> Any:
        try:
            return self._client.call(command, **bounds)
        except RedisUnavailableError:
            return None


def _warn_if_unbounded(client: redis.Redis) -> None:
    try:
        memory: Any = client.info("memory")
    except redis.ResponseError:  # users of a shared server often have no permission
        return
    if not memory.get("maxmemory"):
        logger.warning(
            "Redis has no maxmemory, keeping grammars for 7 days without a size limit. "
            "Set maxmemory and maxmemory-policy=allkeys-lru."
        )
    elif memory.get("maxmemory_policy") == "noeviction":
        logger.warning("Redis stores no more grammars when it is full: maxmemory-policy=noeviction. Set allkeys-lru.")

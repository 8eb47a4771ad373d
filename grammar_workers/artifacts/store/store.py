"""The grammar store: artifacts (compiled grammars) in memory of the process, in files of the node, and in Redis.

A URL selects the tiers (levels), see `open_store`. Memory is searched first, then files, then Redis.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.store.file_tier import FileTier
from grammar_workers.artifacts.store.locks import FileLock, Lock, ProcessLock, RedisLock
from grammar_workers.artifacts.store.memory_tier import MemoryTier
from grammar_workers.artifacts.store.single_flight import Flight
from grammar_workers.counters import Counters
from grammar_workers.logs import get_logger
from grammar_workers.tracing import Timing

if TYPE_CHECKING:  # redis-py is in the extra `serve`
    from grammar_workers.artifacts.store.redis_client import RedisClient

logger = get_logger(__name__)

MEMORY_CAPACITY_BYTES = 64 << 20
FILE_CAPACITY_BYTES = 4 << 30
# Smallest limit for a slow response of Redis, in seconds.
#
# A busy process may need this time just to read a response.
MIN_PATIENCE_S = 0.02


class Tier(Protocol):
    """Interface of one tier (level) of the store. A failure raises no exception: it is counted, and counts as a miss.

    Attributes:
        name: Name in the figures and in `StoredArtifact.source`: `process`, `file` or `redis`.
        trusted: True if only this process writes here, after verification. Artifacts of other tiers are verified when
            they are read.
        counters: Numbers of events. The store counts hits, misses, puts and corrupt artifacts.
    """

    name: str
    trusted: bool
    counters: Counters

    def get(self, key: str) -> bytes | None:
        """Return the artifact (compiled grammar) of a key. None if the tier does not have the artifact, or fails."""

    def put(self, key: str, data: bytes) -> None:
        """Store an artifact (compiled grammar). A failure has no effect on the caller.

        Args:
            key: Grammar key.
            data: The artifact.
        """

    def discard(self, key: str) -> None:
        """Remove the artifact (compiled grammar) of a key, if there is one. A failure has no effect on the caller."""

    def stats(self) -> dict[str, int | str]:
        """Return current sizes and states of the tier, by name: `entries`, `bytes`, `evicted` or `breaker`."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredArtifact:
    """Verified artifact (compiled grammar), with the source from which it was read.

    Attributes:
        data: Bytes of the artifact.
        source: Tier that had the artifact (`process`, `file` or `redis`), or `compiled`.
        timings: Steps that were needed to get the artifact: name, begin and end in seconds of `time.monotonic`. Empty
            directly after a lookup in the store.
    """

    data: bytes
    source: str
    timings: tuple[Timing, ...] = ()


class GrammarStore:
    """Store of artifacts (compiled grammars) by grammar key, in several tiers (levels). Thread-safe.

    Tiers are searched in order, nearest first, and a hit is copied to the nearer tiers. Artifacts from files and Redis
    are verified (version, key, digest, and the vocabulary's fingerprint if it is given). Invalid ones are removed.
    Failures of disk and Redis raise no exception. They count as misses. Calls block for disk and network, for a
    fraction of a second at most.

    Args:
        tiers: Tiers, nearest first. The first is the memory of this process.
        locks: Kinds of locks for `flight`; those shared by the most processes first.
        fingerprint: Fingerprint of the vocabulary. Artifacts of another vocabulary are invalid. None: any vocabulary.
        redis_client: Client of the Redis tier. None: there is no Redis tier.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        locks: Sequence[Lock],
        fingerprint: str | None = None,
        redis_client: RedisClient | None = None,
    ) -> None:
        self._tiers = tuple(tiers)
        self._locks = tuple(locks)
        self._fingerprint = fingerprint
        self._redis_client = redis_client
        self._price_s: float | None = None

    def get(self, key: str) -> bytes | None:
        """Return the verified artifact (compiled grammar) of a key, or None if no tier has a valid one."""
        found = self.lookup(key)
        return found.data if found else None

    def lookup(self, key: str) -> StoredArtifact | None:
        """Search all tiers (levels of the store) for the artifact of a grammar key, and count hits and misses.

        Args:
            key: Grammar key. A malformed key is a miss.

        Returns:
            The verified artifact with its source, or None if no tier has a valid one.
        """
        if not artifact.is_key(key):
            return None
        for position, tier in enumerate(self._tiers):
            data = self._verified(tier, key)
            tier.counters.add("misses" if data is None else "hits")
            if data is not None:
                for nearer in self._tiers[:position]:
                    nearer.put(key, data)
                return StoredArtifact(data, tier.name)
        return None

    def at_hand(self, key: str) -> StoredArtifact | None:
        """Return the artifact of a grammar key if it is in the memory of this process. Does not block.

        Args:
            key: Grammar key.

        Returns:
            The artifact, or None if the memory of this process does not have it. A miss is not counted.
        """
        memory = self._tiers[0]
        if (data := memory.get(key)) is None:
            return None
        memory.counters.add("hits")
        return StoredArtifact(data, memory.name)

    def put(self, key: str, data: bytes) -> None:
        """Store an artifact (compiled grammar) in every tier: memory, files and Redis, as far as the store has them.

        ArtifactError is raised if `data` is not a valid artifact of `key` and of the vocabulary of the store.

        Args:
            key: Grammar key.
            data: The artifact.
        """
        artifact.verify(data, key=key, fingerprint=self._fingerprint)
        for tier in self._tiers:
            tier.put(key, data)
            tier.counters.add("puts")

    def discard(self, key: str) -> None:
        """Remove the artifact (compiled grammar) of a key from every tier. A malformed key is ignored.

        The files of other nodes keep the artifact until they evict it.
        """
        if artifact.is_key(key):
            for tier in self._tiers:
                tier.discard(key)

    def flight(self, key: str, timeout_s: float) -> Flight:
        """Return an attempt to be the only process in the cluster that compiles a grammar key.

        Args:
            key: Grammar key.
            timeout_s: Seconds after which the caller compiles without coordination.

        Raises:
            ValueError: `key` is not a grammar key. It would become the name of a lock file.
        """
        if not artifact.is_key(key):
            raise ValueError(f"not a grammar key: {key!r}")
        return Flight(key, self._locks, lambda: self._is_stored(key), timeout_s)

    def found_elsewhere(self, seconds: float) -> None:
        """Record how long it took to get an artifact (compiled grammar) that the store did not have.

        Redis is useful only if it is faster than this. So from now on, a response of Redis counts as slow if it takes
        longer than the moving average of the recorded times. This limit is at least 0.02 s and at most 0.25 s.

        Args:
            seconds: Time of the compilation, or of the fetch from another process, in seconds.
        """
        # Losing one of two concurrent updates does no harm.
        before = seconds if self._price_s is None else self._price_s
        self._price_s = before + (seconds - before) / 8
        if self._redis_client is not None:
            from grammar_workers.artifacts.store.redis_client import SOCKET_TIMEOUT_S

            self._redis_client.patience_s = max(MIN_PATIENCE_S, min(self._price_s, SOCKET_TIMEOUT_S))

    def trouble(self) -> str | None:
        """Check the folder of the files and Redis, as far as the store uses them.

        OSError is raised if the folder is not writable. Its message has the action to take.

        Returns:
            None if Redis responds or is not used. Otherwise the reason why it does not respond, with the action to
            take.
        """
        for tier in self._tiers:
            if isinstance(tier, FileTier):
                tier.check()
        return None if self._redis_client is None else self._redis_client.trouble()

    def stats(self) -> dict[str, dict[str, int | str]]:
        """Return the figures of each tier (level) of the store.

        Returns:
            Tier name -> figures. The figures are `entries` and `bytes`, the state of the circuit `breaker` of Redis,
            and the numbers of events since the start: hits, misses, puts, corrupt, errors, unauthorized, refused, slow,
            no_space, evicted. Events that have not occurred are missing.
        """
        return {tier.name: {**tier.counters.snapshot(), **tier.stats()} for tier in self._tiers}

    def _verified(self, tier: Tier, key: str) -> bytes | None:
        data = tier.get(key)
        if data is None or tier.trusted:
            return data
        try:
            artifact.verify(data, key=key, fingerprint=self._fingerprint)
        except artifact.ArtifactError as error:
            if tier.counters.add("corrupt") == 1:
                hint = f"; the pods may have different {artifact.HMAC_KEY_VARIABLE}"
                hint = hint if error.reason == artifact.WRONG_DIGEST else ""
                logger.warning(
                    "artifact rejected, further ones are only counted: error=%s tier=%s%s", error, tier.name, hint
                )
            tier.discard(key)
            return None
        return data

    def _is_stored(self, key: str) -> bool:
        return any(self._verified(tier, key) is not None for tier in self._tiers)


def open_store(url: str, fingerprint: str | None = None) -> GrammarStore:
    """Return the store that a URL names. The backends are not contacted.

    - `memory://`: this process only;
    - `file:///folder` or `file://~/folder`: shared by the processes of the node;
    - `redis://...`, `rediss://...`: files of the node, then the Redis of the cluster. `?file=/folder` sets the folder
      of the files (default: in the user's cache folder). Other query parameters are passed to redis-py.

    `file_mb=N` in the query limits the total size of the files, in MiB (default: 4096).

    Args:
        url: URL of the store.
        fingerprint: Fingerprint of the vocabulary. Artifacts of another vocabulary count as corrupt. None: any
            vocabulary.

    Raises:
        ValueError: The URL has none of these forms, an unknown parameter, or a folder that is not an absolute path.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    tiers: list[Tier] = [MemoryTier(MEMORY_CAPACITY_BYTES)]
    locks: list[Lock] = [ProcessLock()]
    if parts.scheme == "memory":
        folder = None
    elif parts.scheme == "file":
        folder = _folder(unquote(parts.netloc + parts.path))
    elif parts.scheme in ("redis", "rediss"):
        folder = _folder(options.pop("file", _default_folder()))
    else:
        raise ValueError(f"store URL must start with memory://, file://, redis:// or rediss://, got {parts.scheme!r}")
    capacity = int(options.pop("file_mb", FILE_CAPACITY_BYTES >> 20)) << 20
    if folder is not None:
        tiers.append(FileTier(folder, capacity))
        locks.insert(0, FileLock(folder / "locks"))
    client = None
    if parts.scheme in ("redis", "rediss"):
        from grammar_workers.artifacts.store.redis_client import RedisClient
        from grammar_workers.artifacts.store.redis_tier import RedisTier

        client = RedisClient(urlunsplit(parts._replace(query=urlencode(options))))
        tiers.append(RedisTier(client))
        locks.insert(0, RedisLock(client))
    elif options:
        raise ValueError(f"unknown store URL parameters: {', '.join(sorted(options))}; there is `file_mb`")
    return GrammarStore(tiers, locks, fingerprint, client)


def _folder(text: str) -> Path:
    folder = Path(text).expanduser()
    if not folder.is_absolute():
        raise ValueError(f"the store's folder must be an absolute path, got {text!r}")
    return folder


def _default_folder() -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "turnstile", "grammars")

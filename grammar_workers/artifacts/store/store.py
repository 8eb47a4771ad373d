"""The grammar store: process memory, then files of the node, then Redis, chosen by one URL."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.store.counters import Counters
from grammar_workers.artifacts.store.file_tier import FileTier
from grammar_workers.artifacts.store.locks import FileLock, Lock, ProcessLock, RedisLock
from grammar_workers.artifacts.store.memory_tier import MemoryTier
from grammar_workers.artifacts.store.redis_client import SOCKET_TIMEOUT_S, RedisClient
from grammar_workers.artifacts.store.redis_tier import RedisTier
from grammar_workers.artifacts.store.single_flight import Flight
from grammar_workers.logs import get_logger
from grammar_workers.tracing import Timing

logger = get_logger(__name__)

MEMORY_CAPACITY_BYTES = 64 << 20
FILE_CAPACITY_BYTES = 4 << 30
MIN_PATIENCE_S = 0.02
"""However cheap the alternative is: a busy process alone may take so long to look at an answer."""


class Tier(Protocol):
    """One place that keeps artifacts. No method raises; what cannot be done is counted and looks like a miss."""

    name: str
    trusted: bool
    """Whether only this process writes here, after verification."""
    counters: Counters

    def get(self, key: str) -> bytes | None: ...
    def put(self, key: str, data: bytes) -> None: ...
    def discard(self, key: str) -> None: ...
    def stats(self) -> dict[str, int | str]:
        """What is not an event: sizes and states."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A verified artifact and where it came from."""

    data: bytes
    source: str
    """The tier that had it (`process`, `file` or `redis`), or `compiled`."""
    timings: tuple[Timing, ...] = ()
    """What was done to get it, where that was more than a look into the store."""


class GrammarStore:
    """Artifacts by grammar key, nearest tier first. A hit is copied to the nearer tiers.

    Every artifact that others could have written is verified (version, key, digest, the vocabulary's fingerprint where
    it is known) and dropped when it does not hold. No method raises because of a backend. Thread-safe; calls block for
    disk and network, a fraction of a second at worst.
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
        """The artifact, verified, or None."""
        found = self.lookup(key)
        return found.data if found else None

    def lookup(self, key: str) -> StoredArtifact | None:
        """The artifact and where it was found."""
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
        """As `lookup`, in this process's memory alone: at once."""
        memory = self._tiers[0]
        if (data := memory.get(key)) is None:
            return None
        memory.counters.add("hits")
        return StoredArtifact(data, memory.name)

    def put(self, key: str, data: bytes) -> None:
        """Store an artifact in every tier; raises `ArtifactError` if `data` is not one for `key`."""
        artifact.verify(data, key=key, fingerprint=self._fingerprint)
        for tier in self._tiers:
            tier.put(key, data)
            tier.counters.add("puts")

    def discard(self, key: str) -> None:
        """Remove an artifact from every tier; the files of other nodes keep theirs until they make room."""
        if artifact.is_key(key):
            for tier in self._tiers:
                tier.discard(key)

    def flight(self, key: str, timeout_s: float) -> Flight:
        """An attempt to be the only one in the cluster that compiles `key`.

        Raises ValueError for what is no grammar key: it will name a lock file.
        """
        if not artifact.is_key(key):
            raise ValueError(f"not a grammar key: {key!r}")
        return Flight(key, self._locks, lambda: self._is_stored(key), timeout_s)

    def found_elsewhere(self, seconds: float) -> None:
        """What the store did not have cost this much: compiling it, or asking those who compile.

        An answer of Redis that takes longer than that, on average, counts as slow: loading is then no gain.
        """
        # Losing one of two concurrent updates does no harm.
        before = seconds if self._price_s is None else self._price_s
        self._price_s = before + (seconds - before) / 8
        if self._redis_client is not None:
            self._redis_client.patience_s = max(MIN_PATIENCE_S, min(self._price_s, SOCKET_TIMEOUT_S))

    def trouble(self) -> str | None:
        """Return why Redis does not answer, or None. Raises `OSError` where the folder of files cannot be written."""
        for tier in self._tiers:
            if isinstance(tier, FileTier):
                tier.check()
        return None if self._redis_client is None else self._redis_client.trouble()

    def stats(self) -> dict[str, dict[str, int | str]]:
        """Of each tier: what it holds (`entries`, `bytes`), the state of Redis' `breaker`, and events since the start:
        hits, misses, puts, corrupt, errors, unauthorized, refused, slow, no_space, evicted.
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
                logger.warning("%s: tier=%s; further ones are counted only%s", error, tier.name, hint)
            tier.discard(key)
            return None
        return data

    def _is_stored(self, key: str) -> bool:
        return any(self._verified(tier, key) is not None for tier in self._tiers)


def open_store(url: str, fingerprint: str | None = None) -> GrammarStore:
    """The store that `url` names; artifacts of another vocabulary than `fingerprint` (where given) count as corrupt.

    - `memory://`: this process only;
    - `file:///folder` or `file://~/folder`: shared by the processes of the node;
    - `redis://...`, `rediss://...`: the cluster's Redis, behind files of the node in `?file=/folder` (default: the
      user's cache folder). Other query parameters are redis-py's.

    `file_mb=N` in the query bounds the files' total size. Raises ValueError for a URL that is none of these; whether
    the backend works is not asked.
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

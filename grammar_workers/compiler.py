"""The Serve deployment of the grammar tier; the only file of this package that knows Ray."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter as Counts
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ray.serve.exceptions import BackPressureError
from ray.serve.metrics import Counter, Gauge, Histogram

from grammar_workers import artifact
from grammar_workers.compile_pool import MAX_RUNS, CompilePool, PoolFullError, ResourceLimitError
from grammar_workers.errors import GrammarError
from grammar_workers.metrics import COMPILATIONS
from grammar_workers.options import GrammarOptions
from grammar_workers.refusals import RefusalCache
from grammar_workers.store import GrammarStore, StoredArtifact, open_store
from grammar_workers.store.single_flight import POLL_S

LOAD_COMPILER = "grammar_workers.compile_process:load_compiler"
REMEMBER_REFUSAL_S = 300.0
REMEMBER_RESOURCE_REFUSAL_S = 30.0
"""Time and memory depend on what else the machine does, so such a refusal is worth another try sooner."""

_STORE_THREADS = 16
_COMPILE_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]

Result = TypeVar("Result")


@dataclasses.dataclass
class _Production:
    """The one way in which this replica gets hold of a key's artifact, and how many wait for it."""

    task: asyncio.Task[StoredArtifact] | None = None
    job: Future[bytes] | None = None
    waiters: int = 0


class GrammarCompiler:
    """Compiles specifications, each once in the cluster, in processes of its own, and keeps the artifacts in the store.

    Ready (the constructor returns) when its processes have loaded and warmed the vocabulary of `model`. `processes`
    compilations run at a time, each within `compile_timeout_s` seconds and `memory_limit_mb` MiB; `options` are those
    of `GrammarOptions`.
    """

    def __init__(
        self,
        model: str,
        store_url: str,
        *,
        processes: int = 1,
        compile_timeout_s: float = 30.0,
        memory_limit_mb: int = 4096,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._options = GrammarOptions.model_validate(options or {}).model_dump()
        self._compile_timeout_s = compile_timeout_s
        self._pool = CompilePool(
            LOAD_COMPILER,
            {"model": model, "options": self._options},
            processes=processes,
            timeout_s=compile_timeout_s,
            memory_limit_mb=memory_limit_mb,
        )
        self._fingerprint = self._pool.wait_ready()
        self._store = open_store(store_url, self._fingerprint)
        self._threads = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="grammar-store")
        self._productions: dict[str, _Production] = {}
        self._refusals = RefusalCache()
        self._metrics = _Metrics(self._store)

    async def info(self) -> dict[str, Any]:
        """`{"vocabulary_fingerprint", "options"}`: with them anybody can derive grammar keys."""
        return {"vocabulary_fingerprint": self._fingerprint, "options": self._options}

    async def compile(self, key: str, specification: dict[str, Any]) -> dict[str, Any]:
        """Make sure that the artifact of `specification` is in the store under `key`, its grammar key.

        Returns `{"key", "status": "ready", "notes", "source", "seconds"}`, where `source` is "compiled" or the tier
        that had it, or `{"status": "refused", "error"}` with `GrammarError.to_dict()`. Raises `BackPressureError` (429)
        when too many compilations wait already.
        """
        started = time.monotonic()
        try:
            found = await self._find_or_compile(key, specification)
        except GrammarError as error:
            return _refused(error)
        return {
            "key": key,
            "status": "ready",
            "notes": artifact.read_notes(found.data, key=key),
            "source": found.source,
            "seconds": time.monotonic() - started,
        }

    async def get(self, key: str, specification: dict[str, Any]) -> bytes | dict[str, Any]:
        """The artifact itself, compiled if need be, or the same refusal as `compile`."""
        try:
            return (await self._find_or_compile(key, specification)).data
        except GrammarError as error:
            return _refused(error)

    def check_health(self) -> None:
        """Called by Serve: unhealthy while no compile process can be started."""
        self._pool.check_health()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()

    async def _find_or_compile(self, key: str, specification: dict[str, Any]) -> StoredArtifact:
        """Join the production of `key`, or start it. A caller that is cancelled leaves the others' production alone;
        when the last one leaves, a compilation that has not begun is dropped.
        """
        if refusal := self._refusals.get(key):
            raise refusal
        production = self._productions.get(key)
        if production is None:
            production = self._productions[key] = _Production()
            production.task = asyncio.create_task(self._produce(key, specification, production))
            production.task.add_done_callback(_retrieve_exception)
        assert production.task is not None
        production.waiters += 1
        try:
            return await asyncio.shield(production.task)
        finally:
            production.waiters -= 1
            if not production.waiters and production.job is not None and production.job.cancel():
                self._forget(key, production)

    def _forget(self, key: str, production: _Production) -> None:
        if self._productions.get(key) is production:
            del self._productions[key]

    async def _produce(self, key: str, specification: dict[str, Any], production: _Production) -> StoredArtifact:
        """From the store, else compiled here, else (while another process has the lead) from the store after all."""
        flight = self._store.flight(key, MAX_RUNS * self._compile_timeout_s)
        try:
            if found := await self._in_thread(self._store.lookup, key):
                return found
            while not await self._in_thread(flight.settled):
                await asyncio.sleep(POLL_S)
            if not flight.leads and (found := await self._in_thread(self._store.lookup, key)):
                return found
            data = await self._compile(key, specification, production)
            await self._in_thread(self._store.put, key, data)
            return StoredArtifact(data, "compiled")
        finally:
            if flight.leads:
                await self._in_thread(flight.release)
            self._metrics.publish_store_events()
            self._forget(key, production)

    async def _compile(self, key: str, specification: dict[str, Any], production: _Production) -> bytes:
        if not production.waiters:
            raise asyncio.CancelledError
        try:
            production.job = self._pool.submit(key, specification)
        except PoolFullError as error:
            raise BackPressureError(self._pool.queued, self._pool.queue_size, 429, 1.0) from error
        started = time.monotonic()
        try:
            data = await asyncio.wrap_future(production.job)
        except GrammarError as error:
            by_chance = isinstance(error, ResourceLimitError)
            self._refusals.put(key, error, REMEMBER_RESOURCE_REFUSAL_S if by_chance else REMEMBER_REFUSAL_S)
            self._metrics.count_compilation(time.monotonic() - started)
            raise
        self._metrics.count_compilation(time.monotonic() - started)
        return data

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The store blocks for disk and network; many keys wait at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


class _Metrics:
    """What this replica tells Prometheus."""

    def __init__(self, store: GrammarStore) -> None:
        self._store = store
        self._published: Counts[tuple[str, str]] = Counts()
        self._compiled = 0
        self._compilations = Gauge(**COMPILATIONS)
        self._compilations.set(0, {"place": "grammar_compiler"})
        self._compile_seconds = Histogram(
            "turnstile_grammar_compile_seconds",
            description="Seconds from queueing a compilation to its end.",
            boundaries=_COMPILE_SECONDS,
        )
        self._store_events = Counter(
            "turnstile_grammar_store_events_total",
            description="Hits, misses, puts and troubles of each tier of the grammar store.",
            tag_keys=("tier", "event"),  # type: ignore[arg-type]  # annotated as one key, takes any number
        )

    def count_compilation(self, seconds: float) -> None:
        self._compiled += 1
        self._compilations.set(self._compiled, {"place": "grammar_compiler"})
        self._compile_seconds.observe(seconds)

    def publish_store_events(self) -> None:
        """Add what the store has counted since the last time."""
        for tier, events in self._store.counters().items():
            for event, count in events.items():
                if new := count - self._published[tier, event]:
                    self._store_events.inc(new, {"tier": tier, "event": event})
                    self._published[tier, event] = count


def _refused(error: GrammarError) -> dict[str, Any]:
    return {"status": "refused", "error": error.to_dict()}


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting the failure of a production whose last waiter has left."""
    if not task.cancelled():
        task.exception()

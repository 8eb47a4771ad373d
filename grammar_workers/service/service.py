"""Artifacts (compiled grammars) by grammar key: each grammar is compiled once in the cluster, for all callers.

    look up in the store -> wait if another process compiles the grammar -> compile here -> store

If several callers in this process request a key, they wait for one shared compilation (*production*).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from cachetools import TLRUCache

from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.store import GrammarStore, StoredArtifact
from grammar_workers.artifacts.store.single_flight import POLL_S, Flight
from grammar_workers.errors import GrammarError
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.service.pool import MAX_RUNS, AbandonedError, CompilePool, ResourceLimitError
from grammar_workers.shared_task import SharedTask
from grammar_workers.tracing import Timing

logger = get_logger(SERVE)

# Seconds for which a rejection is cached.
REMEMBER_REFUSAL_S = 300.0
# Seconds for which a rejection for time or memory is cached. It depends on the load, so it is retried sooner.
REMEMBER_RESOURCE_REFUSAL_S = 30.0
# Maximum number of cached rejections. The least recently requested one is dropped first.
MOST_REFUSALS = 4096

_STORE_THREADS = 16

Result = TypeVar("Result")


class Observer:
    """Object to which a `CompileService` reports events, for metrics. This base class ignores them."""

    def compiled(self, queue_seconds: float, compile_seconds: float, artifact_bytes: int, states: int) -> None:
        """Record a successful compilation.

        Args:
            queue_seconds: Time for which the compilation waited for a process, in seconds.
            compile_seconds: Duration of the compilation itself, in seconds.
            artifact_bytes: Size of the artifact (compiled grammar), in bytes.
            states: Number of states of the automaton.
        """

    def refused(self, code: str) -> None:
        """Record a rejected specification.

        Args:
            code: `GrammarError.code` of the rejection.
        """

    def waited(self) -> None:
        """Record that another process has compiled a grammar while this process waited for it."""


class _Production(SharedTask[StoredArtifact]):
    """In-flight request of this process for the artifact of a key. `job` is its compilation, if there is one."""

    job: Future[bytes] | None = None


class CompileService:
    """Provider of artifacts (compiled grammars). It reads them from the store, or compiles them in a pool of processes.

    All calls must come from the same event loop. A rejection is cached for 5 minutes, or for 30 seconds if the
    compilation has exceeded its time or memory.

    Args:
        pool: Compile processes.
        store: Store of artifacts, which other processes share.
        observer: Object to which events are reported, for metrics.
    """

    def __init__(self, pool: CompilePool, store: GrammarStore, observer: Observer) -> None:
        self._pool = pool
        self._store = store
        self._observer = observer
        self._threads = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="grammar-store")
        self._productions: dict[str, _Production] = {}
        self._refusals: TLRUCache[str, GrammarError] = TLRUCache(MOST_REFUSALS, _remembered_until)

    async def artifact(self, key: str, specification: dict[str, Any] | None, tenant: str) -> StoredArtifact | None:
        """Return the artifact (compiled grammar) of a key, and compile it first if necessary.

        All callers of a key share one compilation. A caller that is canceled does not stop the compilation. If all
        callers are canceled, a waiting compilation is dropped, and a running compilation is stopped if it is slow and
        other jobs wait. GrammarError is raised if the specification is rejected, QueueFullError if too many
        compilations wait, and CompileFailedError if the compiler fails.

        Args:
            key: Grammar key.
            specification: Specification, or a `job` (specification with options). None: do not start a compilation.
            tenant: Tenant of the request.

        Returns:
            The artifact. None if `specification` is None, and the artifact is neither stored nor being compiled.
        """
        while True:
            with contextlib.suppress(AbandonedError):  # it ended just as this caller joined it
                return await self._artifact(key, specification, tenant)

    async def _artifact(self, key: str, specification: dict[str, Any] | None, tenant: str) -> StoredArtifact | None:
        if refusal := self._refusals.get(key):
            raise refusal.with_traceback(None)  # else it would keep the frames of all callers
        production = self._productions.get(key)
        if production is None:
            began = time.monotonic()
            if found := self._store.at_hand(key):  # all threads may wait for a store that hangs
                return dataclasses.replace(found, timings=(("lookup", began, time.monotonic()),))
            if specification is None:
                return await self._in_thread(self._store.lookup, key)
            production = self._productions[key] = _Production()
            production.start(self._produce(key, specification, tenant, production))
        return await production.result()

    async def state(self, key: str) -> Literal["queued", "compiling"] | GrammarError | StoredArtifact | None:
        """Return the state of a grammar key in this process and in the store. Nothing is compiled.

        Args:
            key: Grammar key.

        Returns:
            The first of these that applies: the error, if a rejection of the key is cached; `queued` or `compiling`, if
            callers wait for the key; the artifact (compiled grammar), if it is stored. Else None.
        """
        if refusal := self._refusals.get(key):
            return refusal
        if production := self._productions.get(key):
            return "compiling" if production.job is not None and production.job.running() else "queued"
        return self._store.at_hand(key) or await self._in_thread(self._store.lookup, key)

    async def discard(self, key: str) -> None:
        """Remove the artifact (compiled grammar) of a key from the store, and the cached rejection of the key.

        The store has memory, files of this node, and Redis. A missing artifact or rejection is ignored.
        """
        self._refusals.pop(key, None)
        await self._in_thread(self._store.discard, key)

    async def _produce(
        self, key: str, specification: dict[str, Any], tenant: str, production: _Production
    ) -> StoredArtifact:
        """Get the artifact from the store, or compile it, or, while another process leads, wait for it to be stored."""
        flight = self._store.flight(key, MAX_RUNS * self._pool.timeout_s)
        began = time.monotonic()
        try:
            found, looked_up, settled = await self._in_thread(self._look_up, key, flight)
            timings: list[Timing] = [("lookup", began, looked_up)]
            if found is not None:
                return dataclasses.replace(found, timings=tuple(timings))
            while not settled:
                await asyncio.sleep(POLL_S)
                settled = await self._in_thread(flight.settled)
            timings.append(("lock", looked_up, time.monotonic()))
            if not flight.leads and (found := await self._in_thread(self._store.lookup, key)):
                self._observer.waited()
                return dataclasses.replace(found, timings=tuple(timings))
            data = await self._compile(key, specification, tenant, production, timings)
            compiled = time.monotonic()
            await self._in_thread(self._keep, key, data, flight)
            timings.append(("store", compiled, time.monotonic()))
            return StoredArtifact(data, "compiled", tuple(timings))
        finally:
            if flight.leads:
                await self._in_thread(flight.release)
            if self._productions.get(key) is production:
                del self._productions[key]

    def _look_up(self, key: str, flight: Flight) -> tuple[StoredArtifact | None, float, bool]:
        """Return the artifact, the time of the lookup, and whether the flight has settled.

        All of this is one call, because the change to a thread costs more than the work in it.
        """
        found = self._store.lookup(key)
        looked_up = time.monotonic()
        return found, looked_up, found is None and flight.settled()

    def _keep(self, key: str, data: bytes, flight: Flight) -> None:
        self._store.put(key, data)
        flight.release()

    async def _compile(
        self, key: str, specification: dict[str, Any], tenant: str, production: _Production, timings: list[Timing]
    ) -> bytes:
        if not production.waiters:
            raise AbandonedError
        # Serve adds the ID of a request: that of the first caller.
        fields = {"grammar_key": key, "tenant": tenant}
        started = time.monotonic()
        production.job = self._pool.submit(key, specification, tenant, lambda: production.waiters > 0)
        try:
            data = await asyncio.wrap_future(production.job)
        except GrammarError as error:
            self._refusals[key] = error
            self._observer.refused(error.code)
            logger.info(
                "rejected specification: key=%s error=%s", key, error, extra={**fields, "error_code": error.code}
            )
            raise
        took = time.monotonic() - started
        self._store.found_elsewhere(took)
        details = artifact.verify(data, key=key).details()
        seconds = details["compile_seconds"]
        waited = max(0.0, took - seconds)
        self._observer.compiled(waited, seconds, len(data), details["automaton_states"])
        timings += [("queue", started, started + waited), ("compile", started + waited, started + took)]
        extra = {**fields, "compile_seconds": seconds, "queue_seconds": round(waited, 6), "artifact_bytes": len(data)}
        logger.info("compiled grammar: key=%s seconds=%.3f queue_s=%.3f", key, seconds, waited, extra=extra)
        return data

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function of the store in a thread, because it blocks for disk and network."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _remembered_until(key: str, refusal: GrammarError, now: float) -> float:
    """Return the time at which a cached rejection expires, by the clock of `now`."""
    by_chance = isinstance(refusal, ResourceLimitError)
    return now + (REMEMBER_RESOURCE_REFUSAL_S if by_chance else REMEMBER_REFUSAL_S)

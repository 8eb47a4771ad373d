"""From grammar keys to artifacts: each compiled once in the cluster, whoever asks and however often.

    look up in the store -> wait while another process compiles it -> compile here -> store

Everybody in this process who wants the same key at the same time waits for one *production*.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Protocol, TypeVar

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

REMEMBER_REFUSAL_S = 300.0
REMEMBER_RESOURCE_REFUSAL_S = 30.0
"""Time and memory depend on what else the machine does, so such a refusal is worth another try sooner."""
MOST_REFUSALS = 4096
"""Remembered at a time; beyond them the one that was asked for longest ago goes."""

_STORE_THREADS = 16

Result = TypeVar("Result")


class Observer(Protocol):
    """Is told what happens, for metrics."""

    def compiled(self, queue_seconds: float, compile_seconds: float, artifact_bytes: int, states: int) -> None:
        """A compilation ended well: seconds in the queue and in the compiler, and the size of what came out."""

    def refused(self, code: str) -> None:
        """The specification did not survive its compilation; `code` is that of the GrammarError."""

    def waited(self) -> None:
        """A production has waited for another process's compilation of the same key."""


class _Production(SharedTask[StoredArtifact]):
    """The one way in which this process gets hold of a key's artifact; `job` is its compilation, if there is one."""

    job: Future[bytes] | None = None


class CompileService:
    """Productions over one pool and one store, on one event loop."""

    def __init__(self, pool: CompilePool, store: GrammarStore, compile_timeout_s: float, observer: Observer) -> None:
        self._pool = pool
        self._store = store
        self._compile_timeout_s = compile_timeout_s
        self._observer = observer
        self._threads = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="grammar-store")
        self._productions: dict[str, _Production] = {}
        self._refusals: TLRUCache[str, GrammarError] = TLRUCache(MOST_REFUSALS, _remembered_until)

    async def artifact(self, key: str, specification: dict[str, Any] | None, tenant: str) -> StoredArtifact | None:
        """The artifact of `key`, compiled from `specification` for `tenant` if need be.

        Without a specification only what is known, or being compiled, is found; None where it is neither. Raises
        GrammarError when it was refused and QueueFullError when too many compilations wait.

        A caller that is cancelled leaves the others' production alone; when the last one leaves, a compilation that
        has not begun is dropped, and one that takes long while others wait is stopped.
        """
        while True:
            with contextlib.suppress(AbandonedError):  # it ended just when this caller joined those who had left
                return await self._artifact(key, specification, tenant)

    async def _artifact(self, key: str, specification: dict[str, Any] | None, tenant: str) -> StoredArtifact | None:
        if refusal := self._refusals.get(key):
            raise refusal.with_traceback(None)  # else it would hold the frames of everybody who got it
        production = self._productions.get(key)
        if production is None:
            began = time.monotonic()
            if found := self._store.at_hand(key):  # threads may all be waiting for a store that hangs
                return dataclasses.replace(found, timings=(("lookup", began, time.monotonic()),))
            if specification is None:
                return await self._in_thread(self._store.lookup, key)
            production = self._productions[key] = _Production()
            production.start(self._produce(key, specification, tenant, production))
        return await production.result()

    async def state(self, key: str) -> Literal["queued", "compiling"] | GrammarError | StoredArtifact | None:
        """What is known about `key` in this process and in the store; a GrammarError where it was refused."""
        if refusal := self._refusals.get(key):
            return refusal
        if production := self._productions.get(key):
            return "compiling" if production.job is not None and production.job.running() else "queued"
        return self._store.at_hand(key) or await self._in_thread(self._store.lookup, key)

    async def discard(self, key: str) -> None:
        """Forget `key`: its artifact in this node's tiers and in the shared one, and its refusal."""
        self._refusals.pop(key, None)
        await self._in_thread(self._store.discard, key)

    async def _produce(
        self, key: str, specification: dict[str, Any], tenant: str, production: _Production
    ) -> StoredArtifact:
        """From the store, else compiled here, else (while another process has the lead) from the store after all."""
        flight = self._store.flight(key, MAX_RUNS * self._compile_timeout_s)
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
        """The artifact, and when; if there is none, whether the flight is settled: a thread costs more than either."""
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
        # The request's id is added by Serve: that of the first of those who wait for it.
        fields = {"grammar_key": key, "tenant": tenant}
        started = time.monotonic()
        production.job = self._pool.submit(key, specification, tenant, lambda: production.waiters > 0)
        try:
            data = await asyncio.wrap_future(production.job)
        except GrammarError as error:
            self._refusals[key] = error
            self._observer.refused(error.code)
            logger.info("refused grammar %s: %s", key, error, extra={**fields, "error_code": error.code})
            raise
        took = time.monotonic() - started
        self._store.found_elsewhere(took)
        details = artifact.verify(data, key=key).details()
        seconds = details["compile_seconds"]
        waited = max(0.0, took - seconds)
        self._observer.compiled(waited, seconds, len(data), details["automaton_states"])
        timings += [("queue", started, started + waited), ("compile", started + waited, started + took)]
        extra = {**fields, "compile_seconds": seconds, "queue_seconds": round(waited, 6), "artifact_bytes": len(data)}
        logger.info("compiled grammar %s in %.3f s after %.3f s in the queue", key, seconds, waited, extra=extra)
        return data

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The store blocks for disk and network; many keys wait at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _remembered_until(key: str, refusal: GrammarError, now: float) -> float:
    """Seconds of the clock that `now` is of."""
    by_chance = isinstance(refusal, ResourceLimitError)
    return now + (REMEMBER_RESOURCE_REFUSAL_S if by_chance else REMEMBER_REFUSAL_S)

"""The Serve deployment of the grammar tier; the only file of this package that knows Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from ray.serve.exceptions import BackPressureError
from ray.serve.metrics import Counter, Gauge, Histogram

from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.store import GrammarStore, StoredArtifact, open_store
from grammar_workers.errors import GrammarError
from grammar_workers.gc_control import collect_seldom
from grammar_workers.keys import grammar_key
from grammar_workers.options import GrammarOptions
from grammar_workers.service.autoscaling import COMPILATION_BACKLOG, HELD_BACK, HeldBack
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.holders import KeyHolders
from grammar_workers.service.ledger import GrammarLedger
from grammar_workers.service.logs import log_as_serve_does
from grammar_workers.service.memory_guard import GUARD, ProcessFullError
from grammar_workers.service.metrics import TierMetrics
from grammar_workers.service.pool import LOAD_COMPILER, CompilePool
from grammar_workers.service.service import CompileService
from grammar_workers.tracing import tracing

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
_BYTES = [1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e8]
MOST_SENT_ALONG = 1 << 16
"""Bytes of an artifact that travels through the router. Larger ones go straight to those who need them."""

_STATES = [10, 100, 1e3, 1e4, 1e5, 1e6]


class GrammarCompiler:
    """Compiles specifications, each once in the cluster, in processes of its own, and keeps the artifacts in the store.

    Ready (the constructor returns) when its processes have loaded and warmed the vocabulary of `model` and the
    artifacts of the specifications `precompile` are stored; a refusal among these fails the start. `processes`
    compilations run at a time, and as many that take long, in `processes + 1` processes, each within
    `compile_timeout_s` seconds, `compile_cpu_s` seconds of CPU and `memory_limit_mb` MiB; nobody waits for one longer
    than `max_wait_s`. The process may grow by `process_growth_mb` once it is ready. `options` are those of
    `GrammarOptions`; `trust_remote_code` as in `load_vocabulary`.
    """

    def __init__(
        self,
        model: str,
        store_url: str,
        *,
        processes: int = 1,
        compile_timeout_s: float = 30.0,
        compile_cpu_s: float = 2.0,
        memory_limit_mb: int = 4096,
        process_growth_mb: int = 4096,
        max_wait_s: float = 120.0,
        options: dict[str, Any] | None = None,
        precompile: Sequence[dict[str, Any]] = (),
        trust_remote_code: bool = False,
    ) -> None:
        log_as_serve_does()
        grammar_options = GrammarOptions.model_validate(options or {})
        self._options = grammar_options.model_dump()
        self._pool = CompilePool(
            LOAD_COMPILER,
            {"model": model, "options": self._options, "trust_remote_code": trust_remote_code},
            processes=processes,
            timeout_s=compile_timeout_s,
            cpu_s=compile_cpu_s,
            memory_limit_mb=memory_limit_mb,
        )
        self._fingerprint = self._pool.wait_ready()
        self._store = open_store(store_url, self._fingerprint)
        self._metrics = _Metrics(self._store, self._pool)
        self._ledger = GrammarLedger()
        self._held_back = HeldBack()
        self._holders = KeyHolders()
        self._max_wait_s = max_wait_s
        self._service = CompileService(self._pool, self._store, compile_timeout_s, self._metrics)
        for specification in precompile:
            self._precompile(specification, grammar_options)
        GUARD.start(process_growth_mb)
        collect_seldom()

    async def info(self) -> dict[str, Any]:
        """`{"vocabulary_fingerprint", "options"}`: with them anybody can derive grammar keys."""
        return {"vocabulary_fingerprint": self._fingerprint, "options": self._options}

    async def compile(
        self,
        key: str,
        specification: dict[str, Any] | None,
        tenant: str = "",
        traceparent: str = "",
        with_artifact: bool = False,
        only_own: bool = False,
    ) -> dict[str, Any]:
        """Make sure that the artifact of `specification` (or `job`) is in the store under `key`, its grammar key.

        Without a specification it must be there already, and with `only_own` be the tenant's. Returns what `status`
        does, and where a ready artifact was found: `{"source": "compiled" | <tier>, "seconds"}`, and if wanted and not
        large the `artifact` itself. Raises `BackPressureError` (429) when too many compilations wait, of this tenant or
        altogether, or the wait was too long.
        """
        started = time.monotonic()
        span = tracing("compiler").begin("grammar", traceparent)
        try:
            if specification is not None:
                self._holders.bring(key, tenant)
            is_theirs = not only_own or specification is not None or await self._is_of(key, tenant)
            found = await self._artifact(key, specification, tenant) if is_theirs else None
            if found is None:
                span.end(error="unknown", key=key)
                return {"key": key, "status": "unknown"}
            ready = {**_ready(key, found), "source": found.source, "seconds": time.monotonic() - started}
            self._ledger.answered(ready)
            span.end(found.timings, key=key, source=found.source)
            return {**ready, "artifact": found.data} if with_artifact and len(found.data) <= MOST_SENT_ALONG else ready
        except GrammarError as error:
            span.end(error=error.code, key=key)
            return _refused(key, error)
        finally:
            span.end(error="no answer", key=key)

    async def get(
        self, key: str, specification: dict[str, Any] | None, tenant: str = "", anew: bool = False
    ) -> bytes | dict[str, Any]:
        """The artifact itself, compiled if need be, or the same refusal as `compile`; `anew`: what is stored cannot be
        loaded, and is forgotten first.
        """
        try:
            if anew:
                await self._service.discard(key)
            found = await self._artifact(key, specification, tenant)
        except GrammarError as error:
            return _refused(key, error)
        return {"key": key, "status": "unknown"} if found is None else found.data

    async def status(self, key: str, tenant: str = "", administrator: bool = True) -> dict[str, Any]:
        """`{"key", "status"}`, one of "unknown", "queued", "compiling", "refused" (with `error`, see
        `GrammarError.to_dict`) and "ready" (with `notes`, `unenforced`, `owner`, `automaton_states`,
        `artifact_bytes` and `compile_seconds`). A key of others is unknown to all but administrators.
        """
        if not administrator and not await self._is_of(key, tenant):
            return {"key": key, "status": "unknown"}
        match await self._service.state(key):
            case None:
                return {"key": key, "status": "unknown"}
            case GrammarError() as error:
                return _refused(key, error)
            case StoredArtifact() as found:
                return _ready(key, found)
            case state:
                return {"key": key, "status": state}

    async def discard(self, key: str, tenant: str, administrator: bool) -> dict[str, Any]:
        """Forget `key` unless it belongs to another tenant than the caller.

        Returns the status it had; "forbidden" where it stays. Automata that replicas hold go on working.
        """
        before = await self.status(key)
        if not administrator and before["status"] == "ready" and before.get("owner", tenant) != tenant:
            return {"key": key, "status": "forbidden"}
        if not administrator and before["status"] != "ready" and not self._holders.holds(key, tenant):
            return {"key": key, "status": "unknown"}
        if before["status"] in ("ready", "refused"):
            await self._service.discard(key)
        return before

    async def report(self) -> dict[str, Any]:
        """For people, since the start: `waiting` and `running` compilations, how many were `compiled` or refused, what
        the `store` counts (`GrammarStore.stats`), and the `slowest` and `most_used` grammars (`GrammarLedger`).
        """
        return {
            "waiting": self._pool.queued,
            "running": self._pool.running,
            "compiled": self._metrics.compiled_grammars,
            "store": self._store.stats(),
            "slowest": self._ledger.slowest(),
            "most_used": self._ledger.most_used(),
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve for `grammar_workers.service.autoscaling`."""
        return {COMPILATION_BACKLOG: float(self._pool.backlog), HELD_BACK: float(self._held_back.total())}

    async def report_held_back(self, router: str, waiting: int) -> None:
        """Called by each router every few seconds with the number of new grammars that it holds back."""
        self._held_back.report(router, waiting)

    def check_health(self) -> None:
        """Called by Serve every few seconds: unhealthy while no compile process can be started."""
        self._metrics.publish()
        self._pool.check_health()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()

    async def _is_of(self, key: str, tenant: str) -> bool:
        """Return whether the tenant has sent the specification, as far as this process remembers, or the store knows.

        What was compiled at the start is everybody's.
        """
        if self._holders.holds(key, tenant):
            return True
        found = await self._service.state(key)
        return isinstance(found, StoredArtifact) and _ready(key, found)["owner"] in ("", tenant)

    async def _artifact(self, key: str, specification: dict[str, Any] | None, tenant: str) -> StoredArtifact | None:
        try:
            GUARD.check()
            async with asyncio.timeout(self._max_wait_s):
                return await self._service.artifact(key, specification, tenant)
        except (ProcessFullError, QueueFullError, TimeoutError) as error:
            raise BackPressureError(self._pool.queued, self._pool.queue_size, 429, 1.0) from error
        finally:
            self._metrics.publish()

    def _precompile(self, specification: dict[str, Any], options: GrammarOptions) -> None:
        key = grammar_key(specification, self._fingerprint, options)
        if self._store.get(key) is None:
            self._store.put(key, self._pool.submit(key, specification).result())


class _Metrics:
    """What this replica tells Prometheus."""

    def __init__(self, store: GrammarStore, pool: CompilePool) -> None:
        self._pool = pool
        self.compiled_grammars = 0
        """Refused ones, too."""
        self._queued = Gauge("turnstile_grammar_queue_length", "Compilations that wait for a process.")
        self._refusals = Counter("turnstile_grammar_refusals_total", "Specifications refused.", ("code",))
        self._waits = Counter(
            "turnstile_grammar_single_flight_waits_total", "Compilations that another process did for this one."
        )
        self._queue_seconds = Histogram(
            "turnstile_grammar_queue_seconds", "Seconds a compilation waited for a process.", boundaries=_SECONDS
        )
        self._compile_seconds = Histogram(
            "turnstile_grammar_compile_seconds", "Seconds a compilation took.", boundaries=_SECONDS
        )
        self._bytes = Histogram("turnstile_grammar_artifact_bytes", "Size of compiled grammars.", boundaries=_BYTES)
        self._states = Histogram("turnstile_grammar_states", "States of compiled automata.", boundaries=_STATES)
        self._shared = TierMetrics(store.stats, "grammar_compiler", Counter, Gauge)

    def compiled(self, queue_seconds: float, compile_seconds: float, artifact_bytes: int, states: int) -> None:
        self.compiled_grammars += 1
        self._queue_seconds.observe(queue_seconds)
        self._compile_seconds.observe(compile_seconds)
        self._bytes.observe(artifact_bytes)
        self._states.observe(states)

    def refused(self, code: str) -> None:
        self.compiled_grammars += 1
        self._refusals.inc(1, {"code": code})

    def waited(self) -> None:
        self._waits.inc()

    def publish(self) -> None:
        """Show the gauges, which Ray forgets when they are not set again, and what the store has counted since."""
        self._queued.set(self._pool.queued)
        self._shared.publish(self.compiled_grammars)


def _refused(key: str, error: GrammarError) -> dict[str, Any]:
    return {"key": key, "status": "refused", "error": error.to_dict()}


def _ready(key: str, found: StoredArtifact) -> dict[str, Any]:
    details = artifact.verify(found.data, key=key).details()
    return {"key": key, "status": "ready", "artifact_bytes": len(found.data), **details}

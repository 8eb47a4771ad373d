"""`GrammarCompiler`, the Serve deployment that compiles grammars. No other module of this package imports Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from cachetools import LRUCache
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
from grammar_workers.service.ledger import GrammarLedger
from grammar_workers.service.logs import log_as_serve_does
from grammar_workers.service.memory_guard import GUARD, ProcessFullError
from grammar_workers.service.metrics import TierMetrics
from grammar_workers.service.pool import LOAD_COMPILER, CompilePool
from grammar_workers.service.service import CompileService, Observer
from grammar_workers.tracing import tracing

# Maximum number of pairs of key and tenant of which it is known that the tenant has sent the specification.
#
# The least recently used pair is dropped. It returns with the next request that has the specification.
_MOST_HOLDERS = 65_536
_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
_BYTES = [1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e8]
# Maximum size in bytes of an artifact that is sent through the router. Replicas fetch larger artifacts themselves.
MOST_SENT_ALONG = 1 << 16

_STATES = [10, 100, 1e3, 1e4, 1e5, 1e6]


class GrammarCompiler:
    """Serve deployment that compiles each specification once in the cluster, and stores the artifacts.

    An artifact is a compiled grammar. The constructor returns when the compile processes are ready and the artifacts of
    `precompile` are stored. The constructor raises GrammarError if a specification in `precompile` is rejected.

    Args:
        model: Folder or Hugging Face ID of the model whose vocabulary is used.
        store_url: URL of the grammar store (see `open_store`).
        processes: Maximum number of running compilations in each of two queues, fast and slow. `processes + 1` compile
            processes are started, so that slow compilations never use all of them.
        compile_timeout_s: Maximum duration of a compilation, in seconds.
        compile_cpu_s: Maximum CPU time of a compilation, in seconds.
        memory_limit_mb: Memory limit of a compile process, in MiB.
        process_growth_mb: MiB by which this process may grow after its start. Above that, requests are rejected.
        queue_timeout_s: Seconds after which a request for a grammar fails.
        options: Fields of `GrammarOptions`. They apply to the fields that a request does not set. None: the defaults.
        precompile: Specifications to compile during the start.
        trust_remote_code: True: run Python files that come with the model, if its tokenizer requires them.
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
        queue_timeout_s: float = 120.0,
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
        # (key, tenant) of tenants that have sent the specification of a key. All requests for a key come here.
        self._holders: LRUCache[tuple[str, str], bool] = LRUCache(_MOST_HOLDERS)
        self._queue_timeout_s = queue_timeout_s
        self._service = CompileService(self._pool, self._store, self._metrics)
        for specification in precompile:
            self._precompile(specification, grammar_options)
        GUARD.start(process_growth_mb)
        collect_seldom()

    async def info(self) -> dict[str, Any]:
        """Return the data that callers need, in addition to a specification, to compute a grammar key.

        Returns:
            A dictionary with `vocabulary_fingerprint` (str) and `options` (all fields of `GrammarOptions`).
        """
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
        """Compile a specification and store its artifact (compiled grammar), unless the artifact is stored already.

        `BackPressureError` (HTTP 429) is raised if too many compilations wait (of this tenant or in total), if this
        process has reached its memory limit, or if the artifact is not ready after `queue_timeout_s` seconds.
        `CompileFailedError` is raised if the compiler fails.

        Args:
            key: Grammar key of the specification.
            specification: Specification, or a `job` (specification with options). None: nothing is compiled.
            tenant: Tenant of the request.
            traceparent: Parent span in the format of W3C Trace Context. Empty: no parent.
            with_artifact: True: the result includes an artifact of at most `MOST_SENT_ALONG` (65,536) bytes.
            only_own: True: if `specification` is None, the tenant may use only grammars whose specification it has sent
                before.

        Returns:
            A dictionary with `key` and `status`. The status is one of:

            - `ready`: the artifact is stored. The dictionary also has `artifact_bytes`, the details of the artifact,
              `source` (`compiled`, or the level of the store that had the artifact), `seconds` (duration of this call),
              and `artifact` (bytes) if it was requested and is not too large.
            - `refused`: the specification was rejected. The dictionary also has `error` (see `GrammarError.to_dict`).
            - `unknown`: there is neither an artifact nor a specification, or the tenant may not use the key.
        """
        started = time.monotonic()
        span = tracing("compiler").begin("grammar", traceparent)
        try:
            if specification is not None:
                self._holders[key, tenant] = True
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
        """Return an artifact (compiled grammar), and compile it first if necessary.

        `BackPressureError` (HTTP 429) is raised if too many compilations wait (of this tenant or in total), if this
        process has reached its memory limit, or if the artifact is not ready after `queue_timeout_s` seconds.
        `CompileFailedError` is raised if the compiler fails.

        Args:
            key: Grammar key of the specification.
            specification: Specification, or a `job` (specification with options). None: nothing is compiled.
            tenant: Tenant of the request.
            anew: True: remove the stored artifact first, because the caller cannot load it.

        Returns:
            The bytes of the artifact. In two cases, a dictionary as from `status`: with the status `refused` if the
            specification is rejected, and `unknown` if there is neither an artifact nor a specification.
        """
        try:
            if anew:
                await self._service.discard(key)
            found = await self._artifact(key, specification, tenant)
        except GrammarError as error:
            return _refused(key, error)
        return {"key": key, "status": "unknown"} if found is None else found.data

    async def status(self, key: str, tenant: str = "", administrator: bool = True) -> dict[str, Any]:
        """Return the status of a grammar. Nothing is compiled.

        Args:
            key: Grammar key.
            tenant: Tenant of the request. Ignored for an administrator.
            administrator: True: the grammars of all tenants are visible. False: grammars of other tenants have the
                status `unknown`.

        Returns:
            A dictionary with `key` and `status`. The status is one of:

            - `unknown`: there is no artifact, no compilation in progress, and no cached rejection.
            - `queued` or `compiling`: a compilation waits or runs.
            - `refused`: the specification was rejected. The dictionary also has `error` (see `GrammarError.to_dict`).
            - `ready`: the artifact is stored. The dictionary also has `artifact_bytes` and the details of the artifact,
              such as `notes`, `unenforced`, `owner` (the tenant), `automaton_states` and `compile_seconds`.
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
        """Remove the artifact (compiled grammar) or the cached rejection of a grammar key.

        Automata that model replicas have loaded still work. A compilation in progress is not stopped.

        Args:
            key: Grammar key.
            tenant: Tenant of the request.
            administrator: True: the grammars of all tenants may be removed. False: only grammars of `tenant`.

        Returns:
            A dictionary as from `status`, with the status before the removal. If the tenant may not remove the grammar,
            nothing is removed. Then the status is `forbidden` for an artifact of another tenant, else `unknown`.
        """
        before = await self.status(key)
        if not administrator and before["status"] == "ready" and before.get("owner", tenant) != tenant:
            return {"key": key, "status": "forbidden"}
        if not administrator and before["status"] != "ready" and not self._holders.get((key, tenant)):
            return {"key": key, "status": "unknown"}
        if before["status"] in ("ready", "refused"):
            await self._service.discard(key)
        return before

    async def report(self) -> dict[str, Any]:
        """Return the figures of this replica for the status page.

        Returns:
            A dictionary. `waiting` and `running` are the present numbers of compilations. `compiled` is the number of
            compilations since the start, rejected ones included. `store` has the figures of the store
            (`GrammarStore.stats`). `slowest` and `most_used` are lists of grammars (see `GrammarLedger`).
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
        """Return the metrics from which `autoscaling.by_backlog` computes the number of replicas, for Serve.

        Returns:
            A dictionary. COMPILATION_BACKLOG is the number of compilations that wait or run here. HELD_BACK is the
            number of uncached grammars that all routers hold back (do not send to a compiler yet).
        """
        return {COMPILATION_BACKLOG: float(self._pool.backlog), HELD_BACK: float(self._held_back.total())}

    async def report_held_back(self, router: str, waiting: int) -> None:
        """Store the report of a router. Each router calls this method every few seconds.

        Args:
            router: Name of the router.
            waiting: Number of uncached grammars that the router holds back (does not send to a compiler yet).
        """
        self._held_back.report(router, waiting)

    def check_health(self) -> None:
        """Publish the metrics, and raise WorkerStartError if the last start of a compile process has failed.

        Serve calls this method every few seconds, and replaces the replica after repeated errors.
        """
        self._metrics.publish()
        self._pool.check_health()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()

    async def _is_of(self, key: str, tenant: str) -> bool:
        """Return whether the tenant has sent the specification, according to this process or the store.

        Grammars that were compiled at the start belong to all tenants.
        """
        if self._holders.get((key, tenant)):
            return True
        found = await self._service.state(key)
        return isinstance(found, StoredArtifact) and _ready(key, found)["owner"] in ("", tenant)

    async def _artifact(self, key: str, specification: dict[str, Any] | None, tenant: str) -> StoredArtifact | None:
        try:
            GUARD.check()
            async with asyncio.timeout(self._queue_timeout_s):
                return await self._service.artifact(key, specification, tenant)
        except (ProcessFullError, QueueFullError, TimeoutError) as error:
            raise BackPressureError(self._pool.queued, self._pool.queue_size, 429, 1.0) from error
        finally:
            self._metrics.publish()

    def _precompile(self, specification: dict[str, Any], options: GrammarOptions) -> None:
        key = grammar_key(specification, self._fingerprint, options)
        if self._store.get(key) is None:
            self._store.put(key, self._pool.submit(key, specification).result())


class _Metrics(Observer):
    """Metrics of this replica for Prometheus."""

    def __init__(self, store: GrammarStore, pool: CompilePool) -> None:
        self._pool = pool
        # Number of compiled grammars, rejected ones included.
        self.compiled_grammars = 0
        self._queued = Gauge("turnstile_grammar_queue_length", "Compilations that wait for a compile worker.")
        self._refusals = Counter("turnstile_grammar_refusals_total", "Rejected specifications.", ("code",))
        self._waits = Counter(
            "turnstile_grammar_single_flight_waits_total",
            "Grammars that this replica did not compile, because another process compiled them.",
        )
        self._queue_seconds = Histogram(
            "turnstile_grammar_queue_seconds",
            "Seconds for which a compilation waited for a compile worker.",
            boundaries=_SECONDS,
        )
        self._compile_seconds = Histogram(
            "turnstile_grammar_compile_seconds", "Duration of a compilation in seconds.", boundaries=_SECONDS
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
        """Set the gauges, which Ray drops if they are not set again, and add the new counts of the store."""
        self._queued.set(self._pool.queued)
        self._shared.publish(self.compiled_grammars)


def _refused(key: str, error: GrammarError) -> dict[str, Any]:
    return {"key": key, "status": "refused", "error": error.to_dict()}


def _ready(key: str, found: StoredArtifact) -> dict[str, Any]:
    details = artifact.verify(found.data, key=key).details()
    return {"key": key, "status": "ready", "artifact_bytes": len(found.data), **details}

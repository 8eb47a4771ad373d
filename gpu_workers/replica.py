"""Model replicas: one engine behind a handle of Serve. The only file of this package that knows Ray."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import time
from collections import Counter as Counts
from collections.abc import AsyncIterator
from typing import Any

from pydantic import ValidationError
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.metrics import Counter, Gauge, Histogram

from gpu_workers.config import AnyEngineConfig, EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.guided.grammar_source import GrammarSource
from gpu_workers.inference_engine import InferenceEngine, in_turn
from gpu_workers.model.loader import load, token_limit
from gpu_workers.model.prompt import chat_template, detokenize, generation_prompt, tokenize
from gpu_workers.output import GenerationOutput
from gpu_workers.request import GenerationRequest, GrammarReference, RequestError, TokenizeRequest
from gpu_workers.speculative.draft_model import load_draft_model
from gpu_workers.speculative.eagle_drafter import load_eagle
from grammar_workers import GrammarOptions, Vocabulary, grammar_key, warm_up
from grammar_workers.artifacts.automaton_cache import AutomatonCache
from grammar_workers.artifacts.store import open_store
from grammar_workers.compile import compilations
from grammar_workers.gc_control import collect_seldom
from grammar_workers.service.logs import log_as_serve_does
from grammar_workers.service.memory_guard import GUARD
from grammar_workers.service.metrics import TierMetrics, begin_at_zero
from grammar_workers.tracing import tracing

_RETRY_PAUSE_S = 0.1
_SWITCH_INTERVAL_S = 1e-4
"""The engine gives the interpreter up at every torch operation, and gets it back after this long (CPython's default:
5 ms) where other threads load automata and read their first rows."""


class Replica:
    """Generates under grammars that other processes compile: everything that does not depend on the kind of engine.

    `model`: a folder or Hugging Face id, `vocabulary` its own; `store_url`: where compiled grammars are kept;
    `compiler`: handle of the GrammarCompiler deployment; `keeps`: as in `GrammarSource`. The process may grow by
    `process_growth_mb` once it is ready. A subclass gives its engine to
    `_begin`. Once constructed a replica answers at full speed; once configured, under the grammars known beforehand,
    too.
    """

    def __init__(
        self,
        model: str,
        store_url: str,
        compiler: DeploymentHandle,
        config: AnyEngineConfig,
        vocabulary: Vocabulary,
        *,
        keeps: bool = False,
        process_growth_mb: int = 4096,
    ) -> None:
        log_as_serve_does()
        self._model = model
        self._process_growth_mb = process_growth_mb
        self._compiler = compiler
        self._grammar_timeout_s = config.grammar_timeout_s
        self._grammars = GrammarSource(
            vocabulary,
            open_store(store_url, vocabulary.fingerprint),
            AutomatonCache(config.automaton_cache_mb << 20),
            self._ask_compiler,
            keeps=keeps,
        )

    def _begin(self, engine: InferenceEngine) -> None:
        """From here on requests are answered; what `engine` has generated so far is no traffic."""
        self._engine = engine
        self._metrics = _Metrics(engine, self._grammars)
        GUARD.start(self._process_growth_mb)
        collect_seldom()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve before the replica counts as ready, in the event loop that the compiler's handle will know.

        Fetches the automata of `{"precompile": [specification, ...]}` and prepares the engine for them.
        """
        if specifications := user_config["precompile"]:
            options = GrammarOptions.model_validate((await self._compiler.info.remote())["options"])
            for specification in specifications:
                key = grammar_key(specification, self._engine.vocabulary.fingerprint, options)
                await self._prepare(GrammarReference(key=key, specification=specification))

    async def generate(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Streams one `GenerationRequest` as `GenerationOutput.to_dict`; tokens of an interval travel together.

        The last item, and no other, has a `finish_reason` or is `{"error": {"status", "code", "message", "param"}}`.
        """
        try:
            parsed = GenerationRequest.model_validate(request)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            refusal = RequestError(f"{place}: {first['msg']}", code="invalid_request", param=place)
            yield GenerationOutput(finish_reason="error", error=refusal.to_dict()).to_dict()
            return
        span = tracing("replica").begin("generate", parsed.traceparent)
        try:
            # Closed at once when the consumer goes away: that is what frees the slot.
            async with contextlib.aclosing(self._engine.generate(parsed)) as outputs:
                async for output in outputs:
                    if output.finish_reason is not None:
                        failure = None if output.error is None else output.error["message"]
                        span.end(output.spans, error=failure, finish_reason=output.finish_reason)
                    yield output.to_dict()
        finally:
            span.end(error="cancelled")

    async def info(self, template_arguments: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """What callers need to know about the model; `generation_prompts` for each of `template_arguments`."""
        return {
            "model": self._model,
            "max_length": self._engine.max_length,
            "vocabulary_fingerprint": self._engine.vocabulary.fingerprint,
            "vocabulary_size": self._engine.vocabulary.size,
            "chat_template": chat_template(self._engine.tokenizer),
            "generation_prompts": [
                generation_prompt(self._engine.tokenizer, **arguments) for arguments in template_arguments or ()
            ],
        }

    async def tokenize(self, request: dict[str, Any]) -> dict[str, Any]:
        """The tokens of a `TokenizeRequest`, or `{"error": ...}` as in `generate`."""
        parsed = TokenizeRequest.model_validate(request)
        try:
            threads = self._engine.tokenizing
            answer = await in_turn(threads, parsed.tenant, tokenize, self._engine.tokenizer, parsed)
        except RequestError as error:
            return {"error": error.to_dict()}
        return {"count": len(answer["tokens"]), "max_model_len": self._engine.max_length, **answer}

    async def detokenize(self, tokens: list[int], tenant: str = "") -> dict[str, Any]:
        """The text of tokens as `prompt`, or `{"error": ...}` as in `generate`."""
        tokenizer = self._engine.tokenizer
        limit = token_limit(tokenizer, self._engine.vocabulary.size)
        try:
            return {"prompt": await in_turn(self._engine.tokenizing, tenant, detokenize, tokenizer, tokens, limit)}
        except RequestError as error:
            return {"error": error.to_dict()}

    async def report(self) -> dict[str, Any]:
        """For people: generations that are `running` and `waiting`, how many have `ended` by finish reason, output
        `tokens` since the start, and what the `store` and the automata in memory count (`GrammarSource.stats`).
        """
        statistics = self._engine.statistics
        return {
            "running": self._engine.running,
            "waiting": self._engine.waiting,
            "ended": {str(reason): many for reason, many in statistics.ended.items()},
            "tokens": statistics.sampled_tokens + statistics.forced_tokens,
            "store": self._grammars.stats(),
        }

    async def check_health(self) -> None:
        """Called by Serve every few seconds; it replaces a replica whose check raises."""
        self._metrics.publish()
        self._engine.check_health()

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()

    async def _ask_compiler(self, grammar: GrammarReference, anew: bool) -> bytes | dict[str, Any]:
        """The compiler's answer, over as many compiler replicas as it takes: asking twice changes nothing."""
        handle = self._compiler.options(session_id=grammar.key)
        deadline = time.monotonic() + self._grammar_timeout_s
        while True:
            try:
                return await handle.get.remote(grammar.key, grammar.specification, grammar.tenant, anew)
            except (RayActorError, ReplicaUnavailableError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RETRY_PAUSE_S)
            except BackPressureError as error:
                message = "the grammar compilers are at their capacity"
                raise RequestError(message, code="server_full", status=429) from error

    async def _prepare(self, grammar: GrammarReference) -> None:
        """Makes what the engine needs for a grammar known beforehand."""
        raise NotImplementedError

    async def _generate_once(self, prompt_tokens: int, **fields: Any) -> None:
        """One real generation behind a prompt of that length: everything that is slow the first time happens now."""
        request = GenerationRequest.model_validate(
            {
                "request_id": "warm-up",
                "prompt": [0] * prompt_tokens,
                "sampling": {"max_tokens": 4, "top_p": 0.9},
                **fields,
            }
        )
        async for output in self._engine.generate(request):
            if output.error is not None:
                raise RuntimeError(f"the model cannot generate: {output.error['message']}")


@serve.deployment(name="ModelReplica")
class ModelReplica(Replica):
    """A replica on the native engine; `engine`: an `EngineConfig` as plain data, the others as in `Replica`."""

    def __init__(
        self,
        model: str,
        store_url: str,
        compiler: DeploymentHandle,
        *,
        engine: dict[str, Any],
        process_growth_mb: int = 4096,
    ) -> None:
        config = EngineConfig.model_validate(engine)
        loaded = load(model, config)
        warm_up(loaded.vocabulary)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        super().__init__(model, store_url, compiler, config, loaded.vocabulary, process_growth_mb=process_growth_mb)
        drafter = load_draft_model(config, loaded) or load_eagle(config, loaded)
        self._engine = Engine(loaded, config, self._grammars.fetch, drafter)
        # Serve constructs a replica inside its event loop, which cannot be waited for here.
        length = min(config.prefill_chunk, loaded.max_length // 2)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._generate_once(length)).result()
        self._begin(self._engine)

    async def _prepare(self, grammar: GrammarReference) -> None:
        """Makes mask rows ahead."""
        fsm = await self._grammars.fetch(grammar)
        await asyncio.to_thread(fsm.fill_rows)


class _Metrics:
    """What this replica tells Prometheus."""

    def __init__(self, engine: InferenceEngine, grammars: GrammarSource) -> None:
        self._engine = engine
        self._shared = TierMetrics(grammars.stats, "model_replica", Counter, Gauge)
        self._published = self._counts()  # the warm-up is no traffic
        self._counters = {
            "origin": Counter(
                "turnstile_output_tokens_total",
                "Tokens generated: `sampled` from features, or `forced`, the only ones that a grammar allowed.",
                ("origin",),
            ),
            "verdict": Counter(
                "turnstile_draft_tokens_total",
                "Drafted tokens: `accepted`, which saves a pass, or `rejected`.",
                ("verdict",),
            ),
            "finish_reason": Counter(
                "turnstile_generations_total",
                "Generations by how they ended: `error` by a fault of the server, `refused` by one of the request.",
                ("finish_reason",),
            ),
        }
        begin_at_zero(self._counters["finish_reason"], {"finish_reason": "error"})
        self._running = Gauge("turnstile_running_sequences", "Sequences that hold a slot.")
        self._waiting = Gauge("turnstile_waiting_sequences", "Sequences that wait for a slot.")
        self._rejection_mass = Histogram(
            "turnstile_rejection_mass",
            "Probability that the model gave to forbidden tokens, of a sample of rows under grammars.",
            boundaries=[0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999],
        )
        self._grammar_waits = Histogram(
            "turnstile_grammar_late_seconds",
            "Seconds between the end of prefill and the arrival of the grammar, of generations that waited for it.",
            boundaries=[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100],
        )
        self._masks = Counter("turnstile_masks_total", "Tokens drawn under the mask of a grammar.")
        self._masks_published = 0
        self._compiled_to_warm_up = compilations()

    def publish(self) -> None:
        """Shows the gauges, which Ray forgets when they are not set again, and adds what was counted since."""
        counts = self._counts()
        for (tag, value), new in (counts - self._published).items():
            self._counters[tag].inc(new, {tag: value})
        self._published = counts
        while self._engine.rejection_masses:
            self._rejection_mass.observe(self._engine.rejection_masses.popleft())
        while self._engine.grammar_waits:
            self._grammar_waits.observe(self._engine.grammar_waits.popleft())
        if new_masks := self._engine.statistics.masks - self._masks_published:
            self._masks.inc(new_masks)
            self._masks_published += new_masks
        # Others than 0 are an alarm: grammars come from the store or the compilers.
        self._shared.publish(compilations() - self._compiled_to_warm_up)
        self._running.set(self._engine.running)
        self._waiting.set(self._engine.waiting)

    def _counts(self) -> Counts[tuple[str, str]]:
        """(tag of a counter, its value) -> count since the start."""
        statistics = self._engine.statistics
        counts = Counts({("finish_reason", str(reason)): many for reason, many in statistics.ended.items()})
        counts["origin", "sampled"] = statistics.sampled_tokens
        counts["origin", "forced"] = statistics.forced_tokens
        counts["verdict", "accepted"] = statistics.accepted_tokens
        counts["verdict", "rejected"] = statistics.drafted_tokens - statistics.accepted_tokens
        return counts

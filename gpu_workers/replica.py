"""Model replicas: Ray Serve deployments that serve one inference engine each.

`Replica` is the base class for all engines, `ModelReplica` runs the native engine, and `deployments.vllm.replica` runs
vLLM. This is the only module of `gpu_workers` that imports Ray.
"""

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
# Seconds after which CPython switches threads (default: 5 ms).
#
# The engine thread releases the interpreter in every torch operation. While other threads load automata and compute
# masks, it waits up to this long to get the interpreter back.
_SWITCH_INTERVAL_S = 1e-4


class Replica:
    """Base class of model replicas: everything that does not depend on the kind of engine.

    A replica loads grammars that other processes (the GrammarCompiler deployment) compile. A subclass creates the
    engine and passes it to `_begin`. `reconfigure` then loads the grammars that the config lists in `precompile`.

    Args:
        store_url: URL of the store of compiled grammars.
        compiler: Handle of the GrammarCompiler deployment.
        config: Settings of the engine.
        vocabulary: Vocabulary of the model.
        keeps: If true, grammars from the compiler are put into the store, for other processes that read only the store.
        process_growth_mb: Memory, in MiB, by which the process may grow after it is ready. Beyond this limit, requests
            fail.
    """

    def __init__(
        self,
        store_url: str,
        compiler: DeploymentHandle,
        config: AnyEngineConfig,
        vocabulary: Vocabulary,
        *,
        keeps: bool = False,
        process_growth_mb: int = 4096,
    ) -> None:
        log_as_serve_does()
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
        """Start to serve requests. Generations before this call (the warm-up) do not count in the metrics."""
        self._engine = engine
        self._metrics = _Metrics(engine, self._grammars)
        GUARD.start(self._process_growth_mb)
        collect_seldom()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Load the grammars to precompile, so that the first requests with them are fast.

        Ray Serve calls this method before the replica counts as ready. An invalid specification raises an error, and
        the replica does not become ready.

        Args:
            user_config: `{"precompile": [specification, ...]}`, with grammar specifications as plain data.
        """
        if specifications := user_config["precompile"]:
            options = GrammarOptions.model_validate((await self._compiler.info.remote())["options"])
            for specification in specifications:
                key = grammar_key(specification, self._engine.vocabulary.fingerprint, options)
                await self._prepare(GrammarReference(key=key, specification=specification))

    async def generate(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Stream the output of one request.

        Args:
            request: A `GenerationRequest` as plain data.

        Yields:
            Outputs as plain data (see `GenerationOutput.to_dict`), each with the text and tokens since the previous
            output. Only the last item has a `finish_reason`. If the generation fails, the last item is
            `{"error": {"status": ..., "code": ..., "message": ..., "param": ...}}` instead; for an invalid request, the
            code is `invalid_request`.
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
            # Close the generator as soon as the consumer goes away: closing it frees the slot.
            async with contextlib.aclosing(self._engine.generate(parsed)) as outputs:
                async for output in outputs:
                    if output.finish_reason is not None:
                        failure = None if output.error is None else output.error["message"]
                        span.end(output.spans, error=failure, finish_reason=output.finish_reason)
                    yield output.to_dict()
        finally:
            span.end(error="cancelled")

    async def info(self, template_arguments: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Return the properties of the model that routers need.

        Args:
            template_arguments: Sets of arguments of the chat template, such as `[{"enable_thinking": True}]`. The
                result has one generation prompt for each set. None: no generation prompts.

        Returns:
            A dict with these keys:

            - `max_model_len`: maximum number of tokens of a sequence.
            - `chat_template`: source text of the chat template; None if the model has none.
            - `generation_prompts`: for each set of arguments, the text that the chat template adds to open an assistant
              message.
        """
        return {
            "max_model_len": self._engine.max_model_len,
            "chat_template": chat_template(self._engine.tokenizer),
            "generation_prompts": [
                generation_prompt(self._engine.tokenizer, **arguments) for arguments in template_arguments or ()
            ],
        }

    async def tokenize(self, request: dict[str, Any]) -> dict[str, Any]:
        """Tokenize a prompt or chat messages.

        Args:
            request: A `TokenizeRequest` as plain data. If it is invalid, pydantic's ValidationError is raised.

        Returns:
            A dict with `count` (number of tokens), `tokens` (token IDs), `token_strs` (the tokens as the tokenizer
            writes them; None unless requested) and `max_model_len`. If tokenization fails, for example because the
            model has no chat template: `{"error": {"status": ..., "code": ..., "message": ..., "param": ...}}`.
        """
        parsed = TokenizeRequest.model_validate(request)
        try:
            threads = self._engine.tokenizing
            answer = await in_turn(threads, parsed.tenant, tokenize, self._engine.tokenizer, parsed)
        except RequestError as error:
            return {"error": error.to_dict()}
        return {"count": len(answer["tokens"]), "max_model_len": self._engine.max_model_len, **answer}

    async def detokenize(self, tokens: list[int], tenant: str = "") -> dict[str, Any]:
        """Return the text of token IDs, with special tokens as their names.

        Args:
            tokens: Token IDs, at least 0.
            tenant: Tenant on whose behalf the call runs.

        Returns:
            `{"prompt": text}`. If an ID does not exist or the process has no memory left:
            `{"error": {"status": ..., "code": ..., "message": ..., "param": ...}}`.
        """
        tokenizer = self._engine.tokenizer
        limit = token_limit(tokenizer, self._engine.vocabulary.size)
        try:
            return {"prompt": await in_turn(self._engine.tokenizing, tenant, detokenize, tokenizer, tokens, limit)}
        except RequestError as error:
            return {"error": error.to_dict()}

    async def report(self) -> dict[str, Any]:
        """Return the figures of this replica for the status page.

        Returns:
            A dict with `running` and `waiting` (numbers of generations now), `ended` (number of ended generations by
            finish reason), `tokens` (number of output tokens since the start) and `store` (hits, misses and sizes of
            the grammar caches, from `GrammarSource.stats`).
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
        """Publish the metrics, and raise RuntimeError if the engine can no longer serve requests.

        Ray Serve calls this method every few seconds, and replaces a replica whose check raises an error.
        """
        self._metrics.publish()
        self._engine.check_health()

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()

    async def _ask_compiler(self, grammar: GrammarReference, anew: bool) -> bytes | dict[str, Any]:
        """Return the compiler's response; after a lost compiler replica, call again (calls are idempotent)."""
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
        """Prepare the engine for a grammar of `precompile`."""
        raise NotImplementedError

    async def _generate_once(self, prompt_tokens: int, **fields: Any) -> None:
        """Run one generation with a prompt of `prompt_tokens` tokens before clients do: the first one is slow."""
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
    """Ray Serve deployment of a replica that runs the native engine.

    The constructor loads the model, and generates once to warm the engine up. It raises UnsupportedModelError if the
    engine cannot run the model, and RuntimeError if the first generation fails.

    Args:
        model: Folder or Hugging Face ID of the model.
        store_url: URL of the store of compiled grammars.
        compiler: Handle of the GrammarCompiler deployment.
        engine: An `EngineConfig` as plain data.
        process_growth_mb: Memory, in MiB, by which the process may grow after it is ready. Beyond this limit, requests
            fail.
    """

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
        super().__init__(store_url, compiler, config, loaded.vocabulary, process_growth_mb=process_growth_mb)
        drafter = load_draft_model(config, loaded) or load_eagle(config, loaded)
        self._engine = Engine(loaded, config, self._grammars.fetch, drafter)
        # Serve constructs a replica inside a running event loop, so the warm-up needs a loop on another thread.
        length = min(config.long_prefill_token_threshold, loaded.max_model_len // 2)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._generate_once(length)).result()
        self._begin(self._engine)

    async def _prepare(self, grammar: GrammarReference) -> None:
        """Prefetch the masks of the grammar."""
        fsm = await self._grammars.fetch(grammar)
        await asyncio.to_thread(fsm.prefetch_masks)


class _Metrics:
    """Prometheus metrics of a model replica."""

    def __init__(self, engine: InferenceEngine, grammars: GrammarSource) -> None:
        self._engine = engine
        self._shared = TierMetrics(grammars.stats, "model_replica", Counter, Gauge)
        self._published = self._counts()  # the warm-up does not count
        self._counters = {
            "origin": Counter(
                "turnstile_output_tokens_total",
                "Output tokens that were `sampled`, or `forced`: the only token that the grammar allowed.",
                ("origin",),
            ),
            "status": Counter(
                "turnstile_draft_tokens_total",
                "Draft tokens that were `accepted` or `rejected`. `verdict` is a deprecated label.",
                ("status", "verdict"),  # type: ignore[arg-type] # Ray's annotation allows one label only
            ),
            "finish_reason": Counter(
                "turnstile_generations_total",
                "Ended generations. `error`: because of the server. `refused`: because of the request.",
                ("finish_reason",),
            ),
        }
        begin_at_zero(self._counters["finish_reason"], {"finish_reason": "error"})
        self._running = Gauge("turnstile_running_sequences", "Running sequences.")
        self._waiting = Gauge("turnstile_waiting_sequences", "Sequences that wait for a slot of the KV cache.")
        self._rejection_mass = Histogram(
            "turnstile_rejection_mass",
            "Probability, 0 to 1, that the model gave to disallowed tokens, for a sample of the masks.",
            boundaries=[0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999],
        )
        boundaries = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
        self._grammar_waits = (
            Histogram(
                "turnstile_grammar_wait_seconds",
                "Seconds between the end of prefill and the arrival of the grammar, of generations that waited for it.",
                boundaries=boundaries,
            ),
            Histogram(
                "turnstile_grammar_late_seconds",
                "Deprecated name of `turnstile_grammar_wait_seconds`.",
                boundaries=boundaries,
            ),
        )
        self._masks = Counter("turnstile_masks_total", "Tokens sampled under the mask of a grammar.")
        self._masks_published = 0
        self._compiled_to_warm_up = compilations()

    def publish(self) -> None:
        """Set the gauges and add the counts since the previous call. Ray drops a gauge that is not set again."""
        counts = self._counts()
        for (label, value), new in (counts - self._published).items():
            self._counters[label].inc(new, {label: value, **({"verdict": value} if label == "status" else {})})
        self._published = counts
        while self._engine.rejection_masses:
            self._rejection_mass.observe(self._engine.rejection_masses.popleft())
        while self._engine.grammar_waits:
            seconds = self._engine.grammar_waits.popleft()
            for histogram in self._grammar_waits:
                histogram.observe(seconds)
        if new_masks := self._engine.statistics.masks - self._masks_published:
            self._masks.inc(new_masks)
            self._masks_published += new_masks
        # An alert fires on any value but 0: a replica must load grammars from the store or the compilers.
        self._shared.publish(compilations() - self._compiled_to_warm_up)
        self._running.set(self._engine.running)
        self._waiting.set(self._engine.waiting)

    def _counts(self) -> Counts[tuple[str, str]]:
        """Return counts since the start, by name and value of the label: `("finish_reason", "stop") -> 7`."""
        statistics = self._engine.statistics
        counts = Counts({("finish_reason", str(reason)): many for reason, many in statistics.ended.items()})
        counts["origin", "sampled"] = statistics.sampled_tokens
        counts["origin", "forced"] = statistics.forced_tokens
        counts["status", "accepted"] = statistics.accepted_tokens
        counts["status", "rejected"] = statistics.drafted_tokens - statistics.accepted_tokens
        return counts

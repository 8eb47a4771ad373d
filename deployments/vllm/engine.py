"""vLLM's `AsyncLLM` as the engine of a model replica: our prompts, texts and events around its tokens.

    request --prompt--> token ids --AsyncLLM--> token ids --text--> outputs
           `--grammar in the store--> `turnstile:KEY`

vLLM runs the model in processes of its own, the EngineCore and its workers; there the plugin makes the masks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from deployments.vllm.engine_load import Load, stat_loggers
from deployments.vllm.output import OutputReader
from deployments.vllm.sampling import check_supported, sampling_params
from deployments.vllm.settings import BACKEND
from gpu_workers.config import VllmEngineConfig
from gpu_workers.guided.grammar_source import GrammarSource
from gpu_workers.inference_engine import Statistics, counted, in_turn, too_late
from gpu_workers.model.loader import token_limit
from gpu_workers.model.prompt import PromptEncoder
from gpu_workers.output import GenerationOutput
from gpu_workers.request import GenerationRequest, GrammarReference, RequestError
from grammar_workers import TokenFSM, Vocabulary
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.service.tenant_threads import TenantThreads

logger = get_logger(SERVE)


class VllmEngine:
    """One model in vLLM that many generations share: an `InferenceEngine`.

    `grammars` keeps what it fetches in the store `store_url`, where the EngineCore finds it. `on_death` is called when
    the EngineCore has died: nothing brings it back. Raises ValueError for engine arguments that vLLM does not take.
    """

    def __init__(
        self,
        model: str,
        store_url: str,
        config: VllmEngineConfig,
        vocabulary: Vocabulary,
        tokenizer: Tokenizer,
        grammars: GrammarSource,
        on_death: Callable[[], None],
    ) -> None:
        self.vocabulary = vocabulary
        self.tokenizer = tokenizer
        self.statistics = Statistics()
        self.rejection_masses: deque[float] = deque()
        self.grammar_waits: deque[float] = deque()
        self._grammar_timeout_s = config.grammar_timeout_s
        self._grammars = grammars
        self._on_death = on_death
        self._adapters = {name: (number, path) for number, (name, path) in enumerate(config.lora_adapters.items(), 1)}
        self._asked = 0  # generations in vLLM
        self._load = Load(self.statistics)
        self._llm = _start(model, store_url, config, self._load)
        model_config = self._llm.vllm_config.model_config
        self.max_length: int = model_config.max_model_len
        self._token_limit = token_limit(tokenizer, model_config.get_vocab_size())
        self._prompts = PromptEncoder(
            tokenizer,
            token_limit=self._token_limit,
            max_length=self.max_length,
            longest_token=vocabulary.longest_token,
        )
        self.tokenizing = TenantThreads("tokenize", may_end=True)
        self._threads = TenantThreads("grammar")

    @property
    def running(self) -> int:
        return min(self._load.running, self._asked)  # an idle EngineCore tells nothing

    @property
    def waiting(self) -> int:
        return self._asked - self.running

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Streams one output. The last item, and no other, has a `finish_reason`; closing the iterator cancels."""
        return counted(self._outputs_in_time(request), self.statistics)

    async def _outputs_in_time(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        loop = asyncio.get_running_loop()
        deadline = None if request.timeout_s is None else loop.time() + request.timeout_s
        reason = None
        async with contextlib.aclosing(self._outputs(request)) as outputs:
            while reason is None:
                left = None if deadline is None else max(deadline - loop.time(), 0)
                try:
                    output = await asyncio.wait_for(anext(outputs), left)
                except TimeoutError:
                    raise too_late(request) from None
                reason = output.finish_reason
                yield output

    def check_health(self) -> None:
        """Raises RuntimeError when the EngineCore has died."""
        if self._llm.errored:
            self._on_death()
            raise RuntimeError("vLLM's EngineCore has died")

    def close(self) -> None:
        self._llm.shutdown()

    async def _outputs(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """`generate` without its deadline. Raises RequestError."""
        check_supported(request.sampling)
        request.sampling.check_token_ids(self._token_limit)
        prompt = await in_turn(self.tokenizing, request.tenant, self._prompts.encode, request)
        fsm = None if request.grammar is None else await self._automaton(request.grammar)
        room = self.max_length - len(prompt)
        limits = {"max_tokens": min(request.sampling.max_tokens or room, room), "prompt_tokens": len(prompt)}
        make_reader = functools.partial(OutputReader, request, self.vocabulary, fsm, **limits)
        reader = await in_turn(self._threads, request.tenant, make_reader)
        if reader.finish_reason is not None:
            yield GenerationOutput(finish_reason=reader.finish_reason, prompt_tokens=len(prompt))
            return
        async with contextlib.aclosing(self._completions(request, prompt, reader)) as completions:
            async for completion in completions:
                output = reader.take(completion.token_ids, completion.logprobs)
                self.statistics.sampled_tokens += len(output.token_ids)
                self.statistics.masks += 0 if fsm is None else len(output.token_ids)
                if output.finish_reason is None and completion.finish_reason is not None:
                    ended = reader.end, output, completion.finish_reason
                    output = await in_turn(self._threads, request.tenant, *ended)
                yield output
                if output.finish_reason is not None:
                    return

    async def _automaton(self, grammar: GrammarReference) -> TokenFSM:
        """When it is here, the artifact is in the store. Raises RequestError."""
        try:
            async with asyncio.timeout(self._grammar_timeout_s):
                return await self._grammars.fetch(grammar)
        except TimeoutError as error:
            message = f"the grammar did not arrive within {self._grammar_timeout_s:g} s"
            raise RequestError(message, code="grammar_timeout", status=503) from error

    async def _completions(
        self, request: GenerationRequest, prompt: list[int], reader: OutputReader
    ) -> AsyncGenerator[Any, None]:
        """vLLM's `CompletionOutput`s. Raises RequestError.

        Files of the store make room for others while this process still has the automaton: then the artifact is put
        there once more.
        """
        for is_last in (False, True):
            try:
                async with contextlib.aclosing(self._ask(request, prompt, reader)) as completions:
                    async for completion in completions:
                        yield completion
                return
            except _GrammarLostError:
                if is_last or request.grammar is None:
                    raise
                await self._grammars.store_again(request.grammar)

    async def _ask(
        self, request: GenerationRequest, prompt: list[int], reader: OutputReader
    ) -> AsyncGenerator[Any, None]:
        """One generation of vLLM, for `reader`. Raises RequestError."""
        tokens = {"prompt_token_ids": [*prompt, *request.emitted_token_ids]}
        name = f"{request.request_id}-{request.choice_index}"
        first = True
        self._asked += 1
        try:
            params = sampling_params(request, reader.left, self.vocabulary.eos_token_ids, reader.begun)
            lora = self._lora_request(request.adapter)
            async with contextlib.aclosing(self._llm.generate(tokens, params, name, lora_request=lora)) as results:
                async for result in results:
                    (completion,) = result.outputs
                    if first and completion.finish_reason == "error" and request.grammar is not None:
                        raise _GrammarLostError
                    first = False
                    yield completion
        except Exception as error:
            if self._llm.errored:
                self._on_death()
                raise RequestError("vLLM's EngineCore has died", code="unavailable", status=503) from error
            raise _refusal(error) from error
        finally:
            self._asked -= 1

    def _lora_request(self, adapter: str | None) -> Any:
        """vLLM's own, which loads the adapter where it is new. Raises RequestError for a name that is none."""
        from vllm.lora.request import LoRARequest

        if adapter is None:
            return None
        if adapter not in self._adapters:
            raise RequestError(
                f"there is no adapter {adapter[:80]!r}", code="model_not_found", status=404, param="model"
            )
        number, path = self._adapters[adapter]
        return LoRARequest(adapter, number, path)


class _GrammarLostError(RequestError):
    """vLLM has not found the artifact of a key."""

    def __init__(self) -> None:
        super().__init__("vLLM has not found the grammar", code="internal_error", status=500)


def _refusal(error: Exception) -> RequestError:
    """vLLM's error as ours."""
    from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMNotFoundError

    if isinstance(error, RequestError):
        return error
    if isinstance(error, VLLMNotFoundError):
        return _GrammarLostError()
    if isinstance(error, VLLMClientError):
        parameter = getattr(error, "parameter", None)
        return RequestError(f"vLLM refuses this request: {error}", code="invalid_value", param=parameter)
    if isinstance(error, GracefulHTTPError):
        return RequestError("too many generations are waiting already", code="server_full", status=429)
    logger.error("vLLM failed: %r", error, exc_info=error)
    return RequestError("vLLM could not generate", code="internal_error", status=500)


def _start(model: str, store_url: str, config: VllmEngineConfig, load: Load) -> Any:
    """An `AsyncLLM` whose EngineCore makes masks from the store. Raises ValueError for what vLLM does not take."""
    # Read by the plugin in this process and in those that vLLM starts; grammars come compiled, from the grammar tier.
    os.environ.update(TURNSTILE_VLLM="1", TURNSTILE_STORE=store_url, TURNSTILE_COMPILE_PROCESSES="0")
    for another in ("TURNSTILE_URL", "TURNSTILE_COMPILER_DEPLOYMENT"):
        os.environ.pop(another, None)
    from vllm import AsyncEngineArgs, __version__
    from vllm.v1.engine.async_llm import AsyncLLM

    from deployments.vllm.installation import is_installed

    try:
        arguments = AsyncEngineArgs(
            model=model,
            structured_outputs_config={"backend": BACKEND},
            trust_remote_code=config.trust_remote_code,
            **{"disable_log_stats": True, **config.engine_args},
        )
    except TypeError as error:
        raise ValueError(f"replica.engine.engine_args: vLLM {__version__} does not take them: {error}") from error
    if not is_installed():
        raise ValueError("vLLM does not load Turnstile's plugin: is turnstile-llm installed beside it?")
    return AsyncLLM.from_engine_args(arguments, stat_loggers=stat_loggers(load))

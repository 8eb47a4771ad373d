"""vLLM as the inference engine of a Turnstile model replica.

Turnstile converts the prompt to tokens, and the tokens of the output to text. vLLM's `AsyncLLM` generates the tokens:

    request --prompt--> token ids --AsyncLLM--> token ids --text--> outputs
           `--grammar in the store--> `turnstile:KEY`

vLLM runs the model in its own processes, the EngineCore and its workers. In the EngineCore, Turnstile's plugin loads
the compiled grammar from the store by KEY, and computes the masks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from deployments.vllm.engine_load import Load, stat_loggers
from deployments.vllm.output import OutputReader
from deployments.vllm.sampling import check_supported, sampling_params
from deployments.vllm.settings import BACKEND
from gpu_workers.config import VllmEngineConfig
from gpu_workers.guided.grammar_source import GrammarSource
from gpu_workers.inference_engine import InferenceEngine, Statistics, in_turn, too_late
from gpu_workers.model.loader import token_limit
from gpu_workers.output import GenerationOutput
from gpu_workers.request import GenerationRequest, RequestError
from grammar_workers import Vocabulary
from grammar_workers.logs import SERVE, get_logger

logger = get_logger(SERVE)


class VllmEngine(InferenceEngine):
    """Engine that runs one model in vLLM for many concurrent generations.

    The constructor starts vLLM, loads the model, and sets environment variables of this process. It raises ValueError
    if vLLM rejects the engine arguments, or if vLLM does not load Turnstile's plugin.

    Args:
        model: Folder or Hugging Face ID of the model.
        store_url: URL of the store of compiled grammars. The EngineCore loads grammars from there.
        config: Settings of the engine, with the arguments for vLLM.
        vocabulary: Vocabulary of the model.
        tokenizer: Tokenizer of the model.
        grammars: Source of compiled grammars (automata of constraints). It puts every grammar that it fetches into the
            store.
        on_death: Function that is called when the EngineCore has died, possibly several times. The EngineCore cannot be
            started again.
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
        self.statistics = Statistics()
        self._grammars = grammars
        self._on_death = on_death
        self._adapters = {name: (number, path) for number, (name, path) in enumerate(config.lora_adapters.items(), 1)}
        self._asked = 0  # generations in vLLM
        self._load = Load(self.statistics)
        self._llm = _start(model, store_url, config, self._load)
        model_config = self._llm.vllm_config.model_config
        super().__init__(
            tokenizer,
            vocabulary,
            token_limit(tokenizer, model_config.get_vocab_size()),
            model_config.max_model_len,
            grammars.fetch,
            config.grammar_timeout_s,
        )

    @property
    def running(self) -> int:
        """Number of generations that run in vLLM: generations in the EngineCore's last step that have not ended."""
        return min(self._load.running, self._asked)  # an idle EngineCore reports nothing

    @property
    def waiting(self) -> int:
        """Number of generations that wait in vLLM: generations that have not ended, minus `running`."""
        return self._asked - self.running

    async def _outputs(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        deadline = None if request.timeout_s is None else asyncio.get_running_loop().time() + request.timeout_s
        reason = None
        async with contextlib.aclosing(self._unlimited_outputs(request)) as outputs:
            while reason is None:
                try:
                    async with asyncio.timeout_at(deadline):
                        output = await anext(outputs)
                except TimeoutError:
                    raise too_late(request) from None
                reason = output.finish_reason
                yield output

    def check_health(self) -> None:
        """If vLLM's EngineCore has died, call `on_death` and raise RuntimeError. Otherwise do nothing."""
        if self._llm.errored:
            self._on_death()
            raise RuntimeError("vLLM's EngineCore has died")

    def close(self) -> None:
        """Shut down vLLM and its processes. Running generations end with an error."""
        self._llm.shutdown()

    async def _unlimited_outputs(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Stream one output without its deadline. Raises RequestError."""
        check_supported(request.sampling)
        prompt = await self._encode(request)
        fsm = None if request.grammar is None else await self._automaton(request.grammar)
        room = self.max_model_len - len(prompt)
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

    async def _completions(
        self, request: GenerationRequest, prompt: list[int], reader: OutputReader
    ) -> AsyncGenerator[Any, None]:
        """Yield vLLM's `CompletionOutput`s. An artifact that the store has evicted is stored again, once."""
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
        """Yield the results of one generation of vLLM. Raises RequestError."""
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
        """Return vLLM's LoRA request, which loads a new adapter. Raises RequestError for an unknown name."""
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
    """vLLM has not found the artifact of a grammar key."""

    def __init__(self) -> None:
        super().__init__("vLLM has not found the grammar", code="internal_error", status=500)


def _refusal(error: Exception) -> RequestError:
    """Return the RequestError for an error of vLLM."""
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
    logger.error("vLLM failed: error=%r", error, exc_info=error)
    return RequestError("vLLM could not generate", code="internal_error", status=500)


def _start(model: str, store_url: str, config: VllmEngineConfig, load: Load) -> Any:
    """Return an `AsyncLLM` whose EngineCore computes masks from the store. Raises ValueError for rejected arguments."""
    # The plugin reads them in this process and in vLLM's processes. The grammar compilers compile all grammars.
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

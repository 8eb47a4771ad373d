"""Interface between a model replica and its engine: `InferenceEngine`, implemented by the native engine and by vLLM."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from transformers import PreTrainedTokenizerBase as Tokenizer

from gpu_workers.model.prompt import PromptEncoder
from gpu_workers.output import FinishReason, GenerationOutput
from gpu_workers.request import GenerationRequest, GrammarReference, RequestError
from grammar_workers import TokenFSM, Vocabulary
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.memory_guard import GUARD, ProcessFullError
from grammar_workers.service.tenant_threads import TenantThreads

_Result = TypeVar("_Result")
OUT_OF_MEMORY = "the request takes more memory than this process has left (process_growth_mb)"


@dataclass(slots=True)
class Statistics:
    """Counters since the start of an engine, which the metrics code reads.

    The event loop writes `ended`. The thread that runs the batch writes all other counters.

    Attributes:
        steps: Number of forward passes of the batch.
        fed_tokens: Number of tokens that went through forward passes, prompt tokens and drafts included.
        sampled_tokens: Number of output tokens that were sampled.
        masks: Number of output tokens that were sampled under a mask.
        forced_tokens: Number of output tokens that were appended without sampling, because the grammar allowed no other
            token.
        drafted_tokens: Number of draft tokens (proposed tokens of speculative decoding) that went through forward
            passes.
        accepted_tokens: Number of draft tokens that became output tokens; each saves one forward pass.
        ended: Number of ended generations by finish reason. Failed generations count as `refused` if the HTTP status of
            the error is below 500, otherwise as `error`.
    """

    steps: int = 0
    fed_tokens: int = 0
    sampled_tokens: int = 0
    masks: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*get_args(FinishReason), "refused"), 0))


class InferenceEngine(ABC):
    """Base class of engines: one model that serves many concurrent generations.

    Each generation ends with exactly one output that has a `finish_reason`.

    Args:
        tokenizer: Tokenizer of the model.
        vocabulary: Vocabulary of the model.
        token_limit: One past the largest token ID of the model.
        max_model_len: Maximum number of tokens of a sequence, prompt and output together.
        fetch_grammar: Coroutine function that takes the `GrammarReference` of a request and returns its automaton
            (TokenFSM). It is called once per generation with a grammar, in the event loop. If it raises a RequestError,
            the generation ends with this error.
        grammar_timeout_s: Maximum number of seconds that a request waits for its grammar.

    Attributes:
        tokenizer: Tokenizer of the model.
        vocabulary: Bytes of each token, and the end tokens.
        max_model_len: Maximum number of tokens of a sequence, prompt and output together.
        tokenizing: Threads on which the tokenizer runs, with fair queueing between tenants.
        statistics: Counters since the start of the engine. Subclasses set this attribute.
        rejection_masses: Probabilities, in [0, 1], that the model gave to all disallowed tokens together (rejection
            mass). There is one entry per measured token, oldest first. The metrics code reads and removes the entries.
        grammar_waits: Seconds for which generations were idle until their grammar arrived, one entry per generation.
            The metrics code reads and removes the entries.
    """

    statistics: Statistics

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        token_limit: int,
        max_model_len: int,
        fetch_grammar: Callable[[GrammarReference], Awaitable[TokenFSM]],
        grammar_timeout_s: float,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.max_model_len = max_model_len
        self.tokenizing = TenantThreads("tokenize", may_end=True)
        self.rejection_masses: deque[float] = deque()
        self.grammar_waits: deque[float] = deque()
        self._threads = TenantThreads("grammar")
        self._token_limit = token_limit
        self._fetch_grammar = fetch_grammar
        self._grammar_timeout_s = grammar_timeout_s
        self._prompts = PromptEncoder(
            tokenizer, token_limit=token_limit, max_model_len=max_model_len, longest_token=vocabulary.longest_token
        )

    @property
    @abstractmethod
    def running(self) -> int:
        """Number of generations that are in the batch."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Number of generations that wait for a place in the batch."""

    @abstractmethod
    def check_health(self) -> None:
        """Raise RuntimeError if the engine can no longer serve requests. Otherwise return nothing."""

    @abstractmethod
    def close(self) -> None:
        """End every generation with an error, and stop the engine."""

    @abstractmethod
    def _outputs(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Stream the output of one request. RequestError may be raised."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Stream the output of one request.

        Closing the iterator early cancels the generation. To resume an unfinished generation on another replica, append
        the token IDs of all outputs so far to `emitted_token_ids` of the request.

        Args:
            request: The prompt, sampling settings and grammar. `timeout_s` limits the time of the whole generation;
                None: no limit.

        Returns:
            Iterator over outputs, each with the text and tokens since the previous output. Only the last output has a
            `finish_reason`. The iterator raises no RequestError: if the generation fails, the last output has the
            `finish_reason` "error" and the error. With the error code `unavailable`, another engine can finish the
            generation.
        """
        return counted(self._outputs(request), self.statistics)

    async def _encode(self, request: GenerationRequest) -> list[int]:
        """Return the token IDs of the prompt. RequestError is raised if the prompt or a token ID is invalid."""
        request.sampling.check_token_ids(self._token_limit)
        return await in_turn(self.tokenizing, request.tenant, self._prompts.encode, request)

    async def _automaton(self, grammar: GrammarReference) -> TokenFSM:
        """Return the automaton of a grammar. RequestError is raised after `grammar_timeout_s`."""
        try:
            async with asyncio.timeout(self._grammar_timeout_s):
                return await self._fetch_grammar(grammar)
        except TimeoutError as error:
            message = f"the grammar did not arrive within {self._grammar_timeout_s:g} s"
            raise RequestError(message, code="grammar_timeout", status=503) from error


async def counted(
    outputs: AsyncGenerator[GenerationOutput, None], statistics: Statistics
) -> AsyncGenerator[GenerationOutput, None]:
    """Pass on the outputs of one generation, and count its finish reason when it ends.

    Args:
        outputs: Outputs of the generation. The iterator may raise a RequestError.
        statistics: Counters of the engine. When the generation ends, one entry of `statistics.ended` is increased by 1:
            `refused` for an error with an HTTP status below 500, `cancelled` if the caller stops reading early, and the
            finish reason in all other cases.

    Yields:
        Each item of `outputs`. A RequestError is not raised: it becomes the last item, with the finish reason `error`.
    """
    last = GenerationOutput(finish_reason="cancelled")
    try:
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                last = output if output.finish_reason is not None else last
                yield output
    except RequestError as error:
        last = GenerationOutput(finish_reason="error", error=error.to_dict())
        yield last
    finally:
        refused = last.error is not None and last.error["status"] < 500
        statistics.ended["refused" if refused else str(last.finish_reason)] += 1


async def in_turn(threads: TenantThreads, tenant: str, function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Run a blocking function in a thread, with fair queueing between tenants, and wait for its result.

    An exception of `function` is raised unchanged, except MemoryError.

    Args:
        threads: The threads and their queue.
        tenant: Tenant on whose behalf the function runs.
        function: The blocking function.
        *arguments: Arguments of the function.

    Returns:
        The return value of `function`.

    Raises:
        RequestError: The process has reached its memory limit, or `function` has raised MemoryError (code
            `out_of_memory`, HTTP status 503). Or too many calls are queued (code `server_full`, HTTP status 429).
    """
    try:
        GUARD.check()
        return await threads.run(tenant, function, *arguments)
    except (MemoryError, ProcessFullError) as error:
        raise RequestError(str(error) or OUT_OF_MEMORY, code="out_of_memory", status=503) from error
    except QueueFullError as error:
        message = "too many prompts of this client wait to be tokenized; try again later"
        raise RequestError(message, code="server_full", status=429) from error


def too_late(request: GenerationRequest) -> RequestError:
    """Return the error of a request whose `timeout_s` has passed (code `deadline_exceeded`, HTTP status 408)."""
    message = f"the output was not complete within {request.timeout_s:g} s"
    return RequestError(message, code="deadline_exceeded", status=408, param="timeout_s")

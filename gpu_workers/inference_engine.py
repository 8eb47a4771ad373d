"""What a model replica needs of its engine, and what an engine counts: the same for the native one and vLLM's."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, get_args

from transformers import PreTrainedTokenizerBase as Tokenizer

from gpu_workers.output import FinishReason, GenerationOutput
from gpu_workers.request import GenerationRequest, RequestError
from grammar_workers import Vocabulary
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.memory_guard import GUARD, ProcessFullError
from grammar_workers.service.tenant_threads import TenantThreads

_Result = TypeVar("_Result")
OUT_OF_MEMORY = "the request takes more memory than this process has left (process_growth_mb)"


@dataclass(slots=True)
class Statistics:
    """Counters since the start. Written by the engine thread; `ended` by the event loop.

    Output tokens are `sampled_tokens`, drawn from hidden states, `masks` of them under a mask, and `forced_tokens`,
    appended without; of `drafted_tokens` in forward passes, `accepted_tokens` saved a pass each.
    """

    steps: int = 0
    fed_tokens: int = 0
    sampled_tokens: int = 0
    masks: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*get_args(FinishReason), "refused"), 0))


class InferenceEngine(Protocol):
    """One model that many generations share; every one of them ends with exactly one terminal output."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def tokenizing(self) -> TenantThreads:
        """Threads for the tokenizer."""

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, prompt and output together."""

    @property
    def statistics(self) -> Statistics: ...

    @property
    def running(self) -> int:
        """Generations that take part in steps."""

    @property
    def waiting(self) -> int:
        """Generations that wait for a place among them."""

    @property
    def rejection_masses(self) -> deque[float]:
        """Probabilities that masks took away, of a sample of rows; whoever publishes them pops them."""

    @property
    def grammar_waits(self) -> deque[float]:
        """Seconds that generations could do nothing but wait for their grammar; popped like `rejection_masses`."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Streams one output. The last item, and no other, has a `finish_reason`; closing the iterator cancels.

        Its token ids behind `emitted_token_ids` are the whole output: with them another replica goes on. An error of
        code `unavailable` says that this engine cannot finish, and another one can.
        """

    def check_health(self) -> None:
        """Raises RuntimeError when the engine cannot serve any more."""

    def close(self) -> None:
        """Ends every generation with an error event and the engine with them."""


async def counted(
    outputs: AsyncGenerator[GenerationOutput, None], statistics: Statistics
) -> AsyncGenerator[GenerationOutput, None]:
    """Streams `outputs`, a RequestError as the last of them, and counts how they ended."""
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
    """Run a function in `threads`. Raises RequestError where too many calls wait or the process is full, and what
    `function` raises.
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
    """Return the error of a request whose `timeout_s` has passed."""
    message = f"the output was not complete within {request.timeout_s:g} s"
    return RequestError(message, code="deadline_exceeded", status=408, param="timeout_s")

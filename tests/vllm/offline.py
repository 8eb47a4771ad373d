"""vLLM's engine in a process of its own, without a server: what it answers, in how many steps, with which drafts."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from tests.vllm.server import MODEL, environment

T = TypeVar("T")

_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Request:
    """`sampling`: of vLLM's SamplingParams; `constraint`: of its StructuredOutputsParams, none: unguided."""

    prompt: str
    sampling: dict[str, Any] = field(default_factory=dict)
    constraint: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    prompt_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None = None
    """The stop token or string of the request that ended it."""


@dataclass(slots=True)
class Counts:
    """Of the engine's scheduler. `steps`: forward passes; `proposed`: drafts that a pass verified."""

    steps: int = 0
    proposed: int = 0
    accepted: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    answers: list[Answer]
    counts: Counts


class EngineProcess:
    """Runs one engine after the other. The store of grammars is in `folder`; `settings`: environment variables."""

    def __init__(self, folder: Path, **settings: str) -> None:
        fixed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
        variables = environment(folder / "store", **fixed, **settings)
        self._process = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_set, initargs=(variables,))

    def run(self, arguments: dict[str, Any], batches: Sequence[Sequence[Request]]) -> list[Run]:
        """Each batch's answers from one engine. `arguments`: of vLLM's LLM, over ours. Raises what it raises."""
        return self.call(run_engine, arguments, batches)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a function returns there."""
        return self._process.submit(function, *arguments).result(_TIMEOUT_S)

    def close(self) -> None:
        self._process.shutdown()


def _set(variables: dict[str, str]) -> None:
    os.environ.update(variables)


def run_engine(arguments: dict[str, Any], batches: Sequence[Sequence[Request]]) -> list[Run]:
    """In this process, which must have the variables of an `EngineProcess`: what its `run` says."""
    from vllm import LLM
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = _expand
    llm = LLM(
        **{
            "model": str(MODEL),
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "enforce_eager": True,
            "dtype": "float32",
            "structured_outputs_config": {"backend": "outlines"},
            **arguments,
        }
    )
    try:
        return [_answer(llm, batch) for batch in batches]
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def _expand(values: Any, ends: Any, tokens: int, replace_from: float = 0, replace_to: float = 0) -> Any:
    """Each request's value for each of its drafts: vLLM's own on CPUs is memory that nobody wrote (vLLM issue 55005).

    Drafts would be accepted at any temperature but the request's. `ends`: of each request's drafts, [requests].
    """
    import torch

    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    return values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts, output_size=tokens)


def _answer(llm: Any, batch: Sequence[Request]) -> Run:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    counts = _count(llm.llm_engine.engine_core.engine_core.scheduler)
    outputs = llm.chat(
        [[{"role": "user", "content": request.prompt}] for request in batch],
        [
            SamplingParams(
                **request.sampling,
                structured_outputs=None
                if request.constraint is None
                else StructuredOutputsParams(**request.constraint),
            )
            for request in batch
        ],
        use_tqdm=False,
    )
    return Run([_answered(output) for output in outputs], counts)


def _answered(output: Any) -> Answer:
    first = output.outputs[0]
    reason = str(first.finish_reason)
    return Answer(list(output.prompt_token_ids), first.text, list(first.token_ids), reason, first.stop_reason)


def _count(scheduler: Any) -> Counts:
    """Counts what the scheduler does from now on."""
    counts = Counts()
    update, preempt = type(scheduler).update_from_output, type(scheduler)._preempt_request

    def update_from_output(scheduled: Any, result: Any) -> Any:
        counts.steps += scheduled.total_num_scheduled_tokens > 0
        for request_id, drafts in scheduled.scheduled_spec_decode_tokens.items():
            counts.proposed += sum(draft >= 0 for draft in drafts)
            sampled = result.sampled_token_ids[result.req_id_to_index[request_id]]
            counts.accepted += max(len(sampled) - 1, 0)
        return update(scheduler, scheduled, result)

    def preempt_request(*arguments: Any, **keywords: Any) -> None:
        counts.preemptions += 1
        preempt(scheduler, *arguments, **keywords)

    scheduler.update_from_output, scheduler._preempt_request = update_from_output, preempt_request
    return counts

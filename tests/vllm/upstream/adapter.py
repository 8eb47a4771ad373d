"""The `conftest.py` of vLLM's own tests: the embedded model, our backend, and the way of requests into the engine.

A copy of this file stands in the folder of those tests (`tests.vllm.upstream.run`). What they send to a manager or a
backend has not come through vLLM's API process, so constraints are compiled here, as the plugin does it there.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import vllm.v1.engine.llm_engine  # where the plugin waits for it
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.plugins import load_general_plugins
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager, backend_guidance, backend_outlines, backend_xgrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

sys.setrecursionlimit(10_000)  # one file of theirs reads a deep schema, for Python 3.12 or later
load_general_plugins()

from deployments.vllm.admission import Admission  # noqa: E402
from deployments.vllm.settings import read_settings  # noqa: E402
from gpu_workers.vllm.backend import GrammarLoader, MaskBackend  # noqa: E402
from gpu_workers.vllm.reference import is_reference  # noqa: E402
from grammar_workers.vocabulary.vocabulary import load_vocabulary  # noqa: E402

MODEL = os.environ["UPSTREAM_MODEL"]


@functools.cache
def admission() -> Admission:
    made = Admission(MODEL, read_settings())
    made.wait_ready()
    return made


def referring(constraint: Any) -> StructuredOutputsParams:
    """What the plugin sends to the engine in place of a constraint."""
    if constraint.grammar is not None and is_reference(constraint.grammar):
        return constraint
    found = StructuredOutputsParams(grammar=admission().submit(constraint, 0, None).result())
    found._backend = "outlines"
    return found


class Backend(MaskBackend):
    """Ours by the constructor of vLLM's backends, for constraints as a client sends them."""

    def __init__(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> None:
        vocabulary = load_vocabulary(MODEL)
        super().__init__(vocabulary, GrammarLoader(vocabulary, read_settings().store), vocab_size)

    def compile_grammar(self, request_type: Any, grammar_spec: str, stop_token_ids: Any = None) -> Any:
        constraint = StructuredOutputsParams(**{request_type.name.lower(): grammar_spec})
        return super().compile_grammar(request_type, str(referring(constraint).grammar), stop_token_ids)


if hasattr(backend_guidance.GuidanceBackend, "is_tokenizer_supported"):  # vLLM 0.32 asks it for `auto`
    Backend.is_tokenizer_supported = backend_guidance.GuidanceBackend.is_tokenizer_supported  # type: ignore[attr-defined]
backend_guidance.GuidanceBackend = backend_xgrammar.XgrammarBackend = Backend
_grammar_init = StructuredOutputManager.grammar_init


def grammar_init(self: StructuredOutputManager, request: Any) -> None:
    if self.backend is not None and request.structured_output_request is not None:
        request.sampling_params.structured_outputs = referring(request.sampling_params.structured_outputs)
        request.structured_output_request = _with(request.structured_output_request, request.sampling_params)
    _grammar_init(self, request)


def _with(request: StructuredOutputRequest, sampling: SamplingParams) -> StructuredOutputRequest:
    assert sampling.structured_outputs is not None
    request.params = sampling.structured_outputs
    return request


StructuredOutputManager.grammar_init = grammar_init  # type: ignore[method-assign]


@ReasoningParserManager.register_module("deepseek_r1", force=True)
class Reasoning(BaseThinkingReasoningParser):
    """Reasoning between two special tokens that the embedded model has."""

    start_token = "<|user|>"
    end_token = "<|system|>"


class Runner:
    """What vLLM's tests use of their `VllmRunner`."""

    def __init__(self, model: str, **arguments: Any) -> None:
        for name in ("load_format", "config_format", "tokenizer_mode"):
            arguments.pop(name, None)
        self.llm = LLM(model=model, dtype="float32", **{"max_num_seqs": 16, **arguments, "enforce_eager": True})

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        del self.llm
        cleanup_dist_env_and_memory()
        gc.collect()


@pytest.fixture
def vllm_runner() -> Iterator[type[Runner]]:
    yield Runner


__all__ = ["backend_outlines", "vllm"]

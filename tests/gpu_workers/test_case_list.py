"""The cases that any teaching version of constrained decoding must show, by name, on this engine."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn

from gpu_workers.guided.masks import Constraint, MaskReader
from gpu_workers.model.output_head import OutputHead
from gpu_workers.request import SamplingParameters
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row
from gpu_workers.sampling.sampler import Draw, Sampler
from gpu_workers.sequence.sequence import Sequence
from grammar_workers import compile_grammar
from tests.gpu_workers.support import (
    END,
    TableFSM,
    byte_vocabulary,
    grammars,
    request,
    run,
    running_engine,
    text_fsm,
)

WIDTH = 64


def row(*token_ids: int, sparse_limit: int = 256) -> AllowedTokens:
    bits = np.zeros(WIDTH, np.uint8)
    bits[list(token_ids)] = 1
    return read_row(np.packbits(bits, bitorder="little").view(np.uint32), [0], sparse_limit)


def sampler() -> Sampler:
    """The hidden states are the logits."""
    return Sampler(OutputHead(nn.Identity(), WIDTH, separable=False))


def draws(allowed: AllowedTokens | None, many: int, **settings: Any) -> list[Draw]:
    return [Draw(SamplingParameters(seed=1, **settings), 0, position, allowed) for position in range(many)]


@pytest.mark.parametrize("sparse_limit", [1, 256])
def test_a_mask_disallows(sparse_limit: int) -> None:
    """The likeliest tokens are forbidden, and nobody draws them at any temperature."""
    logits = torch.zeros(200, WIDTH)
    logits[:, 10:20] = 50.0
    for temperature in (0.0, 1.0, 100.0):
        drawn = sampler().sample(logits, draws(row(3, 4, 21, sparse_limit=sparse_limit), 200, temperature=temperature))
        assert set(drawn) <= {3, 4, 21}


@pytest.mark.parametrize("sparse_limit", [1, 256])
def test_a_mask_preserves(sparse_limit: int) -> None:
    """Allowed tokens keep their order and their ratios: with everything else forbidden the odds are still 1 : 3."""
    logits = torch.zeros(4000, WIDTH, dtype=torch.float64)
    logits[:, 7] = np.log(3)
    logits[:, 9] = 100.0
    both = row(5, 7, sparse_limit=sparse_limit)
    drawn = sampler().sample(logits, draws(both, 4000))
    assert drawn.count(7) / len(drawn) == pytest.approx(0.75, abs=0.03)
    assert sampler().sample(logits, draws(both, 1, temperature=0.0) * 4000)[0] == 7
    everything = row(*range(WIDTH), sparse_limit=sparse_limit)
    assert sampler().sample(logits, draws(everything, 4000)) == sampler().sample(logits, draws(None, 4000))


def test_an_empty_allowed_set() -> None:
    """It ends a complete output, and is that request's error anywhere else; others go on."""
    complete = TableFSM({0: {ord("a"): 1}, 1: {}}, [1])
    stuck = TableFSM({0: {ord("a"): 1}, 1: {}}, [])
    with running_engine(fetch=grammars(complete=complete, stuck=stuck)) as engine:
        fine, failed, free = run(
            engine, request("x", grammar="complete"), request("x", grammar="stuck"), request("x", max_tokens=20)
        )
    assert (fine.text, fine.finish_reason) == ("a", "stop")
    assert failed.error is not None and failed.error["status"] == 500
    assert free.error is None


def test_the_state_advances() -> None:
    fsm = text_fsm("abc")
    with running_engine(fetch=grammars(t=fsm)) as engine:
        (result,) = run(engine, request("x", grammar="t"))
        reader = MaskReader(engine.step_loop._mask_threads, [END], 256, wake=lambda: None)
        constraint = Constraint(fsm, fsm.initial_state, reader.table(fsm))  # type: ignore[arg-type]
        states = [constraint.state]
        for token_id in result.token_ids:
            constraint.accept(token_id)
            constraint.catch_up()
            states.append(constraint.state)
    assert result.text == "abc"
    assert states == [0, 1, 2, 3] and constraint.is_terminal


def test_each_request_carries_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests under one automaton share it, and each has a state of its own; one without a grammar has none."""
    fsm = text_fsm("ab", "cd")
    carried: dict[str, list[Constraint | None]] = {}
    append = Sequence.append

    def recording(sequence: Sequence, token_id: int, report: Any = None) -> None:
        append(sequence, token_id, report)
        carried.setdefault(sequence.request.request_id, []).append(sequence.constraint)

    monkeypatch.setattr(Sequence, "append", recording)
    ab, cd, free = (
        request("x", grammar="t", logit_bias={ord("a"): 100.0}),
        request("x", grammar="t", logit_bias={ord("c"): 100.0}),
        request("x", max_tokens=2),
    )
    with running_engine(fetch=grammars(t=fsm)) as engine:
        results = run(engine, ab, cd, free)
    assert [result.text for result in results[:2]] == ["ab", "cd"]
    states = []
    for one in (ab, cd):
        (constraint,) = set(carried[one.request_id])
        assert constraint is not None and constraint.fsm is fsm
        states.append(constraint.state)
    assert states == [2, 4]
    assert carried[free.request_id] == [None, None]


def test_the_terminal_check() -> None:
    """An output may end in terminal states only, and ends by itself where nothing may follow."""
    fsm = text_fsm("a", "abcd")
    eager = {END: 100.0}
    with running_engine(fetch=grammars(t=fsm)) as engine:
        early, late = run(
            engine,
            request("x", grammar="t", logit_bias=eager),
            request("x", grammar="t", logit_bias={END: -100.0}),
        )
    assert early.token_ids == [ord("a"), END]
    assert late.token_ids == list(b"abcd")
    assert early.finish_reason == late.finish_reason == "stop"


def test_masked_sampling() -> None:
    """Truncation happens inside the allowed set: top-k 1 of forbidden tokens would leave nothing."""
    logits = torch.arange(WIDTH, dtype=torch.float64).expand(50, -1)
    for settings in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}):
        assert set(sampler().sample(logits, draws(row(1, 2, 3), 50, **settings))) == {3}


def test_zero_overhead_without_a_grammar() -> None:
    """No grammar code is entered, whatever settings the request has: every call of every thread is looked at."""
    entered: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        # The vocabulary tells the bytes of tokens, which any text is made of; tenants take turns in the tokenizer.
        if (
            event == "call"
            and path.stem not in ("vocabulary", "tenant_threads", "fair_queue", "memory_guard")
            and (path.stem in ("masks", "allowed_tokens") or "grammar_workers" in path.parts)
        ):
            entered.add(f"{path.stem}.{frame.f_code.co_name}")

    settings: list[dict[str, Any]] = [{}, {"temperature": 0}, {"logprobs": 2}, {"banned_words": {"words": ["a"]}}]
    settings += [{"repetition_penalty": 1.2, "min_tokens": 3}, {"diagnostics": True}]
    requests = [request("abc", max_tokens=10, **one) for one in settings]
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        with running_engine(fetch=grammars(t=text_fsm("a", "ab"))) as engine:
            entered.clear()  # what starts the engine
            results = run(engine, *requests)
            without = set(entered)
            run(engine, request("abc", grammar="t"))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert all(result.error is None and result.token_ids for result in results)
    assert not without
    assert {"masks.allowed", "allowed_tokens.read_row"} <= entered


def test_end_to_end_regex() -> None:
    pattern = r"[a-c]{2,6}(-[0-9]+)?\."
    fsm = compile_grammar({"type": "regex", "pattern": pattern}, byte_vocabulary())
    with running_engine(fetch=grammars(r=fsm)) as engine:
        results = run(engine, *(request(f"p{i}", grammar="r", seed=i, max_tokens=60) for i in range(12)))
    finished = [result.text for result in results if result.finish_reason == "stop"]
    assert len(finished) >= 6
    assert all(re.fullmatch(pattern, text) for text in finished)


def test_end_to_end_json_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "size": {"enum": ["S", "M", "L"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        },
        "required": ["ok", "size"],
        "additionalProperties": False,
    }
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, byte_vocabulary())
    with running_engine(fetch=grammars(s=fsm)) as engine:
        results = run(engine, *(request(f"p{i}", grammar="s", seed=i, max_tokens=90) for i in range(12)))
    assert all(result.finish_reason == "stop" for result in results)
    for result in results:
        jsonschema.validate(json.loads(result.text), schema)

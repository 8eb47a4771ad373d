"""Settings that decide how an output ends and what is told about its tokens, through the engine."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from gpu_workers.request import RequestError, SamplingParameters
from tests.gpu_workers.support import (
    CONFIGS,
    END,
    Result,
    engine_config,
    grammars,
    repeat_fsm,
    request,
    run,
    running_engine,
    text_fsm,
    tiny_model,
)


def reports(result: Result) -> list[dict[str, Any]]:
    return [one for output in result.outputs for one in output.reports]


def test_nothing_but_the_grammar_ends_an_output_before_min_tokens() -> None:
    eager = {END: 100.0}
    with running_engine(fetch=grammars(ab=repeat_fsm("ab"), t=text_fsm("true"))) as engine:
        free, late, stopped, constrained, complete = run(
            engine,
            request("x", logit_bias=eager, max_tokens=20),
            request("x", logit_bias=eager, max_tokens=20, min_tokens=7),
            request("x", logit_bias={ord("s"): 100.0}, max_tokens=20, min_tokens=7, stop=["s"], temperature=0),
            request("x", grammar="ab", logit_bias=eager, max_tokens=20, min_tokens=7),
            request("x", grammar="t", max_tokens=20, min_tokens=7),
        )
    assert free.token_ids == [END]
    assert len(late.token_ids) == 8 and late.token_ids[-1] == END and END not in late.token_ids[:-1]
    assert stopped.text == "s" * 7 and stopped.finish_reason == "stop"
    assert len(constrained.token_ids) == 8 and constrained.finish_reason == "stop"
    assert (complete.text, complete.finish_reason) == ("true", "stop")


def test_ignore_eos_leaves_the_end_to_max_tokens_and_the_grammar() -> None:
    eager = {END: 100.0}
    with running_engine(fetch=grammars(ab=repeat_fsm("ab"), t=text_fsm("true"))) as engine:
        free, constrained, complete = run(
            engine,
            request("x", logit_bias=eager, max_tokens=9, ignore_eos=True),
            request("x", grammar="ab", logit_bias=eager, max_tokens=9, ignore_eos=True),
            request("x", grammar="t", max_tokens=9, ignore_eos=True),
        )
    for result in (free, constrained):
        assert len(result.token_ids) == 9 and END not in result.token_ids and result.finish_reason == "length"
    assert (complete.text, complete.finish_reason) == ("true", "stop")


def test_stop_tokens_end_the_output_and_are_no_part_of_its_text() -> None:
    """Under a grammar they count only where the output is complete."""
    with running_engine(fetch=grammars(ab=repeat_fsm("ab"), t=text_fsm("true"))) as engine:
        (plain,) = run(engine, request("x", max_tokens=20, temperature=0))
        stop = plain.token_ids[6]
        at = plain.token_ids.index(stop)
        free, constrained, complete = run(
            engine,
            request("x", max_tokens=20, temperature=0, stop_token_ids=[stop]),
            request("x", grammar="ab", stop_token_ids=[ord("a")], logit_bias={ord("a"): 100.0}, temperature=0),
            request("x", grammar="t", stop_token_ids=[ord("u")]),
        )
    assert free.token_ids == plain.token_ids[: at + 1] and free.finish_reason == "stop"
    assert free.text == bytes(plain.token_ids[:at]).decode("utf-8", "ignore")
    assert (constrained.text, constrained.finish_reason) == ("", "stop")
    assert (complete.text, complete.finish_reason) == ("true", "stop")


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
def test_token_ids_that_do_not_exist_are_refused(name: str) -> None:
    value = {END + 1: 1.0} if name == "logit_bias" else [END + 1]
    with running_engine() as engine:
        (result,) = run(engine, request("x", **{name: value}))
    assert result.error is not None
    assert (result.error["status"], result.error["param"]) == (400, name)
    with pytest.raises(RequestError, match="between 0 and 9"):
        SamplingParameters.model_validate({name: value}).check_token_ids(10)


def test_penalties_change_what_the_batch_and_the_chunks_do_not() -> None:
    settings = {"max_tokens": 30, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.5}
    requests = [request([i] * 9, seed=i, min_p=0.05, logit_bias={65: 5.0}, **settings) for i in range(6)]
    with running_engine(
        config=engine_config(max_num_seqs=1, long_prefill_token_threshold=64, max_num_batched_tokens=64)
    ) as engine:
        alone = [run(engine, one)[0].token_ids for one in requests]
    with running_engine() as engine:
        assert [result.token_ids for result in run(engine, *requests, stagger=1)] == alone


# -- reports ---------------------------------------------------------------------------------------------------------


def model_logprobs(prompt: bytes, output: list[int]) -> torch.Tensor:
    """What the model itself gives each output position: float64 [n, tokens]."""
    with torch.inference_mode():
        logits = tiny_model(CONFIGS["llama"]())(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
    return logits[:, : END + 1].log_softmax(-1)


def test_logprobs_of_free_text_are_the_models() -> None:
    with running_engine() as engine:
        asked, plain = run(
            engine,
            request("abc", max_tokens=12, seed=4, temperature=0.7, logprobs=3, raw_logprobs=True),
            request("abc", max_tokens=12, seed=4, temperature=0.7),
        )
    assert asked.token_ids == plain.token_ids and not reports(plain)
    expected = model_logprobs(b"abc", asked.token_ids)
    assert len(reports(asked)) == len(asked.token_ids)
    for one, token_id, row in zip(reports(asked), asked.token_ids, expected, strict=True):
        assert one["token_id"] == token_id
        assert one["logprob"] == one["raw_logprob"] == pytest.approx(float(row[token_id]), rel=1e-4)
        values, ids = row.topk(3)
        assert [choice["token_id"] for choice in one["top"]] == ids.tolist()
        assert [choice["logprob"] for choice in one["top"]] == pytest.approx(values.tolist(), rel=1e-4)
        assert bytes(one["bytes"]) == (b"" if token_id == END else bytes([token_id]))
    assert json.loads(json.dumps(asked.outputs[0].to_dict())) == asked.outputs[0].to_dict()


@pytest.mark.parametrize("sparse_limit", [1, 256])
def test_logprobs_under_a_grammar_are_those_of_the_allowed_tokens(sparse_limit: int) -> None:
    fsm = text_fsm("aab", "aba", "bb", "b")
    with running_engine(config=engine_config(sparse_limit=sparse_limit), fetch=grammars(t=fsm)) as engine:
        masked, raw, seen = run(
            engine,
            request("abc", grammar="t", seed=2, logprobs=5),
            request("abc", grammar="t", seed=2, logprobs=2, raw_logprobs=True),
            request("abc", grammar="t", seed=2, diagnostics=True),
        )
    assert masked.token_ids == raw.token_ids == seen.token_ids
    expected = model_logprobs(b"abc", masked.token_ids)
    state = 0
    told = zip(masked.token_ids, reports(masked), reports(raw), reports(seen), expected, strict=True)
    for token_id, one, before, diagnosed, row in told:
        allowed = sorted(fsm.allowed_tokens(state))
        mass = float(row[allowed].exp().sum())
        assert one["logprob"] == pytest.approx(float(row[token_id]) - math.log(mass), abs=1e-3)
        assert sorted(choice["token_id"] for choice in one["top"]) == allowed
        assert sum(math.exp(choice["logprob"]) for choice in one["top"]) == pytest.approx(1)
        assert before["raw_logprob"] == pytest.approx(float(row[token_id]), rel=1e-4)
        assert before["top"][0]["raw_logprob"] == pytest.approx(float(row[allowed].max()), rel=1e-4)
        step = diagnosed["diagnostics"]
        assert step["rejection_mass"] == pytest.approx(1 - mass, abs=1e-4)
        assert (step["state"], step["allowed"]) == (state, len(allowed))
        assert step["forced"] == (len(allowed) == 1) and step["rolled_back"] == 0
        assert [choice["token_id"] for choice in step["raw_choices"]] == row.topk(5).indices.tolist()
        assert {choice["token_id"] for choice in step["masked_choices"]} == set(allowed)
        around = step["automaton"]
        shown = {(one["state"], token["token_id"]) for one in around["successors"] for token in one["tokens"]}
        assert shown == {(fsm.next_state(state, token), token) for token in allowed}
        assert around["terminal"] == fsm.is_terminal(state) and around["more_successors"] == 0
        state = fsm.next_state(state, token_id)


def test_the_rejection_mass_of_a_sample_of_rows() -> None:
    fsm = text_fsm("aab", "aba", "bb", "b")
    ask = request("abc", grammar="t", seed=2, diagnostics=True)
    for interval, many in ((1, 3), (0, 0)):
        config = engine_config(rejection_mass_interval=interval)
        with running_engine(config=config, fetch=grammars(t=fsm)) as engine:
            free, result = run(engine, request("abc", max_tokens=5), ask)
            expected = [one["diagnostics"]["rejection_mass"] for one in reports(result)]
            measured = list(engine.rejection_masses)
        assert free.error is None
        assert measured == pytest.approx(expected[: len(measured)], abs=1e-9)
        assert len(measured) >= min(many, len(expected))

"""`finish_within_budget`: complete inside `max_tokens`, whatever the model wants and however completions grow."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from grammar_workers import compile_grammar
from tests.gpu_workers.support import (
    END,
    TableFSM,
    byte_vocabulary,
    collect,
    engine_config,
    grammars,
    random_fsm,
    request,
    run,
    running_engine,
    text_fsm,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "object", "properties": {"k": {"enum": ["a", "bcd"]}}}},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def nested(depth: int) -> TableFSM:
    """`(` opens, `)` closes, up to `depth` deep; complete when all are closed."""
    table = {level: {ord("("): level + 1, ord(")"): level - 1} for level in range(1, depth)}
    return TableFSM({0: {ord("("): 1}, **table, depth: {ord(")"): depth - 1}}, [0])


def grown() -> TableFSM:
    """One letter may ask for nine more: completions can grow faster than tokens are spent."""
    table = {0: {ord("a"): 1}, 1: {ord("a"): 1, ord("."): 20, ord("x"): 2}}
    table |= {state: {ord("y"): state + 1} for state in range(2, 11)} | {11: {ord("."): 20}, 20: {}}
    return TableFSM(table, [20])


def replay(fsm: TableFSM, token_ids: list[int]) -> bool:
    """Whether these tokens (an end token included or not) are a complete output."""
    state = fsm.initial_state
    for token_id in token_ids:
        state = fsm.next_state(state, token_id)
    return state >= 0 and fsm.is_terminal(state)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_output_is_complete(temperature: float) -> None:
    rng = np.random.default_rng(7)
    fsms = {"nested": nested(30), "grown": grown(), "texts": text_fsm("yes", "no", "maybe, who knows")}
    fsms |= {f"random{i}": random_fsm(rng) for i in range(2)}
    likes = {ord("("): 5.0, ord("x"): 5.0, ord("a"): 3.0, END: -10.0}
    cases = [
        (name, {"max_tokens": tokens, "logit_bias": likes, "seed": seed, "temperature": temperature})
        for seed, (name, fsm) in enumerate(fsms.items())
        for tokens in {max(1, len(fsm.shortest_completion(0)) + extra) for extra in (0, 1, 7)}
    ]
    requests = [
        request(f"p{i}", grammar=name, finish_within_budget=True, **more) for i, (name, more) in enumerate(cases)
    ]
    with running_engine(fetch=grammars(**fsms)) as engine:
        results = run(engine, *requests)
    for (name, settings), result in zip(cases, results, strict=True):
        assert result.finish_reason == "stop", (name, settings, result.error)
        assert len(result.token_ids) <= settings["max_tokens"]
        assert replay(fsms[name], result.token_ids)


def test_batches_chunks_and_drafts_change_nothing_and_a_resume_goes_on() -> None:
    fsms = {"nested": nested(30), "grown": grown()}
    settings = {"max_tokens": 14, "finish_within_budget": True, "logit_bias": {ord("("): 3.0, ord("x"): 2.0}}
    requests = [request(f"p{i}", grammar=name, seed=i, **settings) for i in range(2) for name in fsms]
    alone_config = engine_config(
        max_num_seqs=1,
        long_prefill_token_threshold=64,
        max_num_batched_tokens=64,
        num_speculative_tokens=0,
        forced_text=False,
    )
    with running_engine(config=alone_config, fetch=grammars(**fsms)) as engine:
        alone = [run(engine, one)[0] for one in requests]
    with running_engine(fetch=grammars(**fsms)) as engine:
        together = run(engine, *requests, stagger=1)
        assert [result.token_ids for result in together] == [result.token_ids for result in alone]
        for one, result in zip(requests, alone, strict=True):
            for cut in range(1, len(result.token_ids), 4):
                (rest,) = run(engine, one.model_copy(update={"emitted_token_ids": result.token_ids[:cut]}))
                assert result.token_ids[:cut] + rest.token_ids == result.token_ids


def test_what_fits_is_drawn_as_without_a_budget() -> None:
    with running_engine(fetch=grammars(nested=nested(5))) as engine:
        free, bounded = (
            run(engine, request("x", grammar="nested", seed=3, max_tokens=40, finish_within_budget=bound))[0]
            for bound in (False, True)
        )
    assert free.finish_reason == "stop" and free.token_ids == bounded.token_ids


def test_an_impossible_budget_is_refused() -> None:
    with running_engine(fetch=grammars(t=text_fsm("true"))) as engine:
        refused, fits, free = run(
            engine,
            request("x", grammar="t", max_tokens=3, finish_within_budget=True),
            request("x", grammar="t", max_tokens=4, finish_within_budget=True),
            request("x", max_tokens=4),
        )
    assert refused.error is not None
    assert (refused.error["status"], refused.error["code"], refused.error["param"]) == (
        400,
        "budget_too_small",
        "max_tokens",
    )
    assert fits.text == "true" and len(free.token_ids) == 4


def test_a_slow_look_up_stops_its_own_row_only() -> None:
    class Slow(TableFSM):
        def shortest_completion(self, state: int, limit: int = 1000) -> list[int]:
            if state == 2:
                assert self.release.wait(200)
            return super().shortest_completion(state, limit)

    slow = Slow({0: {ord("a"): 1, ord("b"): 2}, 1: {}, 2: {ord("."): 1}}, [1])
    with running_engine(fetch=grammars(slow=slow)) as engine:

        async def scenario() -> None:
            bias = {ord("b"): 100.0}
            waiting = asyncio.create_task(
                collect(engine, request("x", grammar="slow", finish_within_budget=True, logit_bias=bias))
            )
            other = await collect(engine, request("y", max_tokens=30, temperature=0))
            assert len(other.token_ids) == 30 and not waiting.done()
            slow.release.set()
            assert (await waiting).text == "b."

        asyncio.run(scenario())


def test_real_grammars() -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": SCHEMA}, byte_vocabulary())
    shortest = len(fsm.shortest_completion(fsm.initial_state))
    with running_engine(fetch=grammars(s=fsm)) as engine:
        results = run(
            engine,
            *(
                request(f"p{i}", grammar="s", seed=i, max_tokens=shortest + i * 5, finish_within_budget=True)
                for i in range(4)
            ),
        )
    for i, result in enumerate(results):
        assert result.finish_reason == "stop" and len(result.token_ids) <= shortest + i * 5
        assert replay(fsm, result.token_ids)  # type: ignore[arg-type]

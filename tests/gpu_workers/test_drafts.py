"""Drafts save forward passes and change nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpu_workers.config import EngineConfig
from gpu_workers.guided.forced_text import ForcedTextFinder
from gpu_workers.sequence.drafts import AcceptanceRate, Drafter, NgramIndex
from grammar_workers import Vocabulary, compile_grammar
from tests.gpu_workers.support import (
    END,
    TableFSM,
    byte_vocabulary,
    engine_config,
    grammars,
    repeat_fsm,
    request,
    run,
    running_engine,
    text_fsm,
)

PLAIN = {"forced_text": False, "prompt_lookup_max": 0}


def alternating_fsm() -> TableFSM:
    """`ab`, `cd`, `ef` in any order: every second letter is forced."""
    table = {0: {ord(first): ord(first) for first in "ace"}}
    table |= {ord(first): {ord(first) + 1: 0} for first in "ace"}
    return TableFSM(table, [0])


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_same_tokens_in_fewer_forward_passes(temperature: float) -> None:
    """Text that repeats itself (few letters) and text that is half forced; alone, so that steps can be compared."""
    fsms = {"two": repeat_fsm("ab"), "pairs": alternating_fsm()}
    requests = [
        request("abababab", grammar=name, max_tokens=60, temperature=temperature, seed=seed)
        for name in fsms
        for seed in range(3)
    ]
    steps, outputs = [], []
    for settings in (PLAIN, {"draft_cost": 0.05}):
        config = engine_config(max_num_seqs=1, long_prefill_token_threshold=64, max_num_batched_tokens=64, **settings)
        with running_engine(config=config, fetch=grammars(**fsms)) as engine:
            outputs.append([run(engine, one)[0] for one in requests])
            steps.append(engine.statistics.steps)
            counted = engine.statistics
            made = sum(len(result.token_ids) for result in outputs[-1])
            assert counted.sampled_tokens + counted.forced_tokens == made
            assert counted.accepted_tokens <= counted.drafted_tokens
    assert [(result.token_ids, result.text) for result in outputs[0]] == [
        (result.token_ids, result.text) for result in outputs[1]
    ]
    assert steps[1] < 0.7 * steps[0]


def test_a_stop_string_inside_accepted_drafts_ends_there() -> None:
    requests = [request("xyxyxy", grammar="two", max_tokens=60, stop=["ab"], seed=seed) for seed in range(8)]
    outputs = []
    for settings in (PLAIN, {"draft_cost": 0.01}):
        with running_engine(config=engine_config(**settings), fetch=grammars(two=repeat_fsm("ab"))) as engine:
            outputs.append([(result.token_ids, result.text, result.finish_reason) for result in run(engine, *requests)])
    assert outputs[0] == outputs[1]
    assert any(text == "" for _, text, _ in outputs[0]) or any("ab" not in text for _, text, _ in outputs[0])


def test_a_forced_run_stops_at_max_tokens_and_at_its_choice() -> None:
    fsm = text_fsm("forced until here: yes", "forced until here: no")
    with running_engine(fetch=grammars(fsm=fsm)) as engine:
        short, whole = run(engine, request("p", grammar="fsm", max_tokens=5), request("p", grammar="fsm"))
    assert (short.text, short.finish_reason) == ("force", "length")
    assert whole.text in ("forced until here: yes", "forced until here: no")


def test_ngrams_find_the_latest_longest_match() -> None:
    rng = random.Random(0)
    for _ in range(200):
        tokens = [rng.randrange(4) for _ in range(rng.randrange(1, 40))]
        index = NgramIndex(2, 3)
        cut = rng.randrange(len(tokens) + 1)
        index.extend(tokens[:cut])
        index.extend(tokens)
        expected = None
        for size in (3, 2):
            places = [i for i in range(size, len(tokens)) if tokens[i - size : i] == tokens[-size:]]
            if len(tokens) >= size and places:
                expected = places[-1]
                break
        assert index.following(tokens) == expected


def test_a_source_that_fails_is_given_up_and_tried_again_later() -> None:
    rate = AcceptanceRate(0.6)
    drafter = Drafter(EngineConfig(draft_cost=0.25, num_speculative_tokens=8, prompt_lookup_max=2))
    tokens = [1, 2, 3, 4, 1, 2]
    assert [draft.token_id for draft in drafter.propose(tokens, None, 8)[0]] == [3, 4]
    for _ in range(20):
        drafter._ngram_rate.update(False)
        rate.update(False)
    assert rate.value < 0.25
    waits = 0
    while not drafter.propose(tokens, None, 8)[0]:
        waits += 1
    assert 0 < waits < 200
    assert drafter.propose(tokens, None, 0) == ([], [])


# -- forced text -----------------------------------------------------------------------------------------------------


def test_forced_text_has_sole_tokens_first_and_then_one_spelling_of_the_forced_bytes() -> None:
    token_bytes = [bytes([byte]) for byte in range(256)] + [b'"name', b'": ', b"name", b"tru", b"true"]
    vocabulary = Vocabulary([*token_bytes, None], [len(token_bytes)])
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["x1", "y"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    finder = ForcedTextFinder(vocabulary)
    forced = finder.find(fsm, fsm.initial_state, fsm.allowed_mask)
    assert forced.sole == 1 and forced.token_ids[0] == ord("{")
    text = b"".join(vocabulary.token_bytes(token_id) for token_id in forced.token_ids)
    assert text.startswith(b'{"name"')
    state = fsm.initial_state
    for token_id, after in zip(forced.token_ids, forced.states, strict=True):
        state = fsm.next_state(state, token_id)
        assert state == after >= 0


@pytest.mark.parametrize("seed", range(5))
def test_sole_tokens_are_the_only_ones_allowed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    states = 30
    table = {
        state: {
            int(t): int(rng.integers(0, states)) for t in rng.choice(256, int(rng.choice([1, 1, 2])), replace=False)
        }
        for state in range(states)
    }
    fsm = TableFSM(table, [3, 9])
    finder = ForcedTextFinder(byte_vocabulary())
    for state in range(states):
        forced = finder.find(fsm, state, fsm.allowed_mask)  # type: ignore[arg-type]
        here = state
        for token_id, after in zip(forced.token_ids, forced.states, strict=True):
            assert fsm.allowed_tokens(here) == {token_id}  # one byte, one token: forced bytes are sole tokens here
            here = after
        assert forced.sole in (64, len(forced.token_ids))
        stuck = len(forced.token_ids) >= 64
        assert stuck or len(fsm.allowed_tokens(here)) > 1 or fsm.allowed_tokens(here) == {END}


@pytest.mark.parametrize("length", [5, 63, 64, 65, 200])
def test_forced_text_of_states_on_the_way_is_what_a_search_there_finds(length: int) -> None:
    """In full where the limits are not met; otherwise as much as a step can use."""
    token_bytes = [bytes([byte]) for byte in range(256)] + [b"ab", b"abc", b'"n', b'n"', b'": "', b"cd", b'"}']
    vocabulary = Vocabulary([*token_bytes, None], [len(token_bytes)])
    name = ("abcdn" * length)[:length]
    schema = {
        "type": "object",
        "properties": {name: {"enum": ["abc", "abd"]}},
        "required": [name],
        "additionalProperties": False,
    }
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    finder = ForcedTextFinder(vocabulary)
    whole = finder.find(fsm, fsm.initial_state, fsm.allowed_mask)
    found = finder.find_all(fsm, fsm.initial_state, fsm.allowed_mask)
    assert found.pop(fsm.initial_state) == whole and (found or length > 5)
    for start, forced in found.items():
        state = start
        for position, (token_id, after) in enumerate(zip(forced.token_ids, forced.states, strict=True)):
            if position < forced.sole:
                assert fsm.allowed_tokens(state) == {token_id}
            state = fsm.next_state(state, token_id)
            assert state == after >= 0
        there = finder.find(fsm, start, fsm.allowed_mask)
        assert forced.sole == there.sole or forced.sole >= 16
        spelled, fresh = (b"".join(map(vocabulary.token_bytes, text.token_ids)) for text in (forced, there))
        assert fresh.startswith(spelled)
        assert fresh == spelled or len(forced.token_ids) >= 16

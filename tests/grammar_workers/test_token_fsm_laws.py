"""The laws of a TokenFSM, for any grammar and any vocabulary."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.vocabularies import tekken_vocabulary
from grammar_workers import Limits, TokenFSM, Vocabulary, compile_grammar, warm_up, warm_up_formats
from grammar_workers.errors import LimitExceededError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.specifications import CORNER_CASES, SPECIFICATIONS, compile_or_assume
from tests.grammar_workers.vocabularies import (
    LARGE,
    SMALL,
    bytes_vocabulary,
    random_walk,
    shakespeare_vocabulary,
    states_along,
    visited_states,
)

MakeVocabulary = Callable[[], Vocabulary]
small_vocabularies = st.sampled_from(SMALL)
seeds = st.integers(0, 1 << 30).map(random.Random)


def by_stepping(fsm: TokenFSM, state: int, tokens: Any) -> set[int]:
    """The allowed ones among `tokens` as `next_state` sees it."""
    return {token for token in tokens if fsm.next_state(state, token) >= 0}


def check_state(fsm: TokenFSM, state: int, tokens: Any) -> None:
    """Mask, steps, end tokens and counts of one state agree."""
    vocabulary = fsm.vocabulary
    allowed = fsm.allowed_tokens(state)
    assert by_stepping(fsm, state, tokens) == allowed & set(tokens)
    ends = set(vocabulary.eos_token_ids)
    assert allowed, "a dead end"
    assert allowed & ends == (ends if fsm.is_terminal(state) else set())
    assert all(fsm.next_state(state, token) == fsm.end_state for token in allowed & ends)
    assert not any(vocabulary.is_special(token) for token in allowed - ends)
    assert fsm.count_allowed(state) == len(allowed)
    assert fsm.only_ends(state) == (fsm.is_terminal(state) and allowed == ends)


@settings(PROPERTY, max_examples=40)
@given(specification=SPECIFICATIONS, make=small_vocabularies, rng=seeds)
def test_bit_is_set_exactly_when_a_step_exists(
    specification: dict[str, Any], make: MakeVocabulary, rng: random.Random
) -> None:
    fsm = compile_or_assume(specification, make())
    for state in visited_states(fsm, rng):
        check_state(fsm, state, range(len(fsm.vocabulary)))


@pytest.mark.parametrize("make", SMALL)
@pytest.mark.parametrize("name", CORNER_CASES)
def test_bit_is_set_exactly_when_a_step_exists_in_all_of_the_first_states(name: str, make: MakeVocabulary) -> None:
    fsm = compile_grammar(CORNER_CASES[name], make())
    fsm.materialize(max_states=200)
    for state in range(fsm.initial_state, min(fsm.state_count, 200)):
        check_state(fsm, state, range(len(fsm.vocabulary)))


@pytest.mark.parametrize("make", LARGE)
@pytest.mark.parametrize("name", CORNER_CASES)
def test_bit_is_set_exactly_when_a_step_exists_in_large_vocabularies(name: str, make: MakeVocabulary) -> None:
    vocabulary = make()
    fsm = compile_grammar(CORNER_CASES[name], vocabulary)
    rng = random.Random(name)
    for state in visited_states(fsm, rng, walks=2, limit=12):
        allowed = sorted(fsm.allowed_tokens(state))
        sample = set(rng.sample(range(vocabulary.size), 300)) | set(rng.sample(allowed, min(len(allowed), 100)))
        check_state(fsm, state, [*sample, *vocabulary.eos_token_ids])


@settings(PROPERTY, max_examples=30)
@given(specification=SPECIFICATIONS, make=small_vocabularies)
def test_forbidden_and_finished_states_allow_nothing(specification: dict[str, Any], make: MakeVocabulary) -> None:
    fsm = compile_or_assume(specification, make())
    everything = range(len(fsm.vocabulary))
    for state in (-1, fsm.end_state):
        assert fsm.allowed_mask(state).shape == (fsm.vocabulary.mask_words,)
        assert not fsm.allowed_mask(state).any()
        assert not by_stepping(fsm, state, everything)
        assert fsm.forced_tokens(state) == []
    assert fsm.is_terminal(fsm.end_state)
    assert fsm.only_ends(fsm.end_state)
    assert not fsm.is_terminal(-1)
    assert fsm.shortest_completion(fsm.end_state) == []
    for token in (-1, len(fsm.vocabulary), len(fsm.vocabulary) + 31, 1 << 40):
        assert fsm.next_state(fsm.initial_state, token) == -1
    with pytest.raises(ValueError, match="no completion"):
        fsm.shortest_completion(-1)


@pytest.mark.parametrize("integer", [np.int32, np.int64, np.uint32])
def test_numbers_of_numpy_name_the_same_transitions(integer: Callable[[int], int]) -> None:
    fsm = compile_grammar({"type": "regex", "pattern": "(ab|ba)+"}, bytes_vocabulary())
    for tokens in ([97, 98, 97], [97, 97], [98, 98], [98, 97, 98]):
        for _ in range(2):  # the second time, the transitions are known
            named = state = fsm.initial_state
            for token in tokens:
                named, state = fsm.next_state(integer(named), integer(token)), fsm.next_state(state, token)
                assert named == state


def test_the_memory_of_transitions_counts() -> None:
    fsm = compile_grammar({"type": "regex", "pattern": ".{2,}"}, tekken_vocabulary())
    tokens = sorted(fsm.allowed_tokens(fsm.initial_state))[:4000]
    tracemalloc.start()
    before = fsm.nbytes
    reached = {fsm.next_state(fsm.initial_state, token) for token in tokens}
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(reached) < 100
    assert 0.5 * used < fsm.nbytes - before < 2 * used


def test_no_other_integer_names_a_transition() -> None:
    fsm = compile_grammar({"type": "regex", "pattern": "(ab|ba)+"}, bytes_vocabulary())
    state = fsm.next_state(fsm.initial_state, 97)
    for high in range(-4, 5):
        if high:
            assert fsm.next_state(fsm.end_state, (high << 32) + 97) == -1
            assert fsm.next_state(state, (high << 32) + 97) == -1


@settings(PROPERTY, max_examples=40)
@given(specification=SPECIFICATIONS, make=small_vocabularies, rng=seeds, limit=st.integers(0, 20))
def test_forced_tokens_are_what_the_masks_leave(
    specification: dict[str, Any], make: MakeVocabulary, rng: random.Random, limit: int
) -> None:
    fsm = compile_or_assume(specification, make())
    for state in visited_states(fsm, rng, limit=20):
        expected: list[int] = []
        here = state
        while len(expected) < limit:
            allowed = fsm.allowed_tokens(here)
            if len(allowed) != 1 or allowed <= set(fsm.vocabulary.eos_token_ids):
                break
            expected.extend(allowed)
            here = fsm.next_state(here, expected[-1])
        assert fsm.forced_tokens(state, limit) == expected


@settings(PROPERTY, max_examples=40)
@given(specification=SPECIFICATIONS, make=small_vocabularies, rng=seeds)
def test_going_back_is_the_same_as_replaying(
    specification: dict[str, Any], make: MakeVocabulary, rng: random.Random
) -> None:
    fsm = compile_or_assume(specification, make())
    tokens = random_walk(fsm, rng)
    before = states_along(fsm, tokens)
    masks = [fsm.allowed_mask(state).copy() for state in before]
    visited_states(fsm, rng)  # Other branches are explored in between.
    for position in rng.sample(range(len(before)), min(len(before), 5)):
        assert states_along(fsm, tokens[:position])[-1] == before[position]
        assert before[position:] == [before[position], *_continue(fsm, before[position], tokens[position:])]
    # Another process numbers its states differently, and sees the same masks.
    fresh = compile_grammar(specification, fsm.vocabulary)
    for state, mask in zip(states_along(fresh, tokens), masks, strict=True):
        assert np.array_equal(fresh.allowed_mask(state), mask)


def _continue(fsm: TokenFSM, state: int, tokens: list[int]) -> list[int]:
    states = []
    for token in tokens:
        state = fsm.next_state(state, token)
        states.append(state)
    return states


@settings(PROPERTY, max_examples=40)
@given(specification=SPECIFICATIONS, make=small_vocabularies, rng=seeds)
def test_materialising_changes_nothing_observable(
    specification: dict[str, Any], make: MakeVocabulary, rng: random.Random
) -> None:
    lazy = compile_or_assume(specification, make())
    ahead = compile_grammar(specification, make())
    known = ahead.materialize(max_states=200)
    assert known == ahead.state_count
    assert ahead.nbytes >= lazy.nbytes
    for _ in range(3):
        tokens = random_walk(lazy, rng)
        for here, there in zip(states_along(lazy, tokens), states_along(ahead, tokens), strict=True):
            assert np.array_equal(lazy.allowed_mask(here), ahead.allowed_mask(there))
            assert lazy.is_terminal(here) == ahead.is_terminal(there)


@pytest.mark.parametrize(
    "specification",
    [
        CORNER_CASES["short string"],
        CORNER_CASES["pattern and length"],
        CORNER_CASES["regex"],
        CORNER_CASES["choice"],
        {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"ab": {"type": "integer"}, "abc": {"type": "boolean"}},
                "additionalProperties": {"type": "null"},
            },
        },
    ],
)
def test_a_regular_grammar_is_a_finite_table(specification: dict[str, Any]) -> None:
    """Once materialised, no walk finds a further state."""
    fsm = compile_grammar(specification, bytes_vocabulary())
    complete = fsm.materialize()
    rng = random.Random(7)
    for _ in range(30):
        random_walk(fsm, rng)
    assert fsm.materialize() == fsm.state_count == complete


def test_a_recursive_grammar_grows_as_it_is_walked() -> None:
    fsm = compile_grammar(CORNER_CASES["any value"], bytes_vocabulary())
    before = fsm.state_count
    depth = 20
    tokens = fsm.vocabulary.encode(b'[{"a": ' * depth + b"1" + b"}]" * depth)
    assert tokens is not None
    assert fsm.is_terminal(states_along(fsm, tokens)[-1])
    assert fsm.state_count > before


def test_masks_are_read_only_and_stay_valid_while_the_automaton_grows() -> None:
    fsm = compile_grammar(CORNER_CASES["any object"], bytes_vocabulary())
    kept = [fsm.allowed_mask(state) for state in range(1, fsm.materialize(max_states=30))]
    copies = [mask.copy() for mask in kept]
    fsm.materialize(max_states=600)
    for mask, copy in zip(kept, copies, strict=True):
        assert np.array_equal(mask, copy)
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = 1


def test_equal_rows_are_stored_once() -> None:
    """Ten thousand states of a long string share a handful of rows."""
    schema = {"type": "string", "maxLength": 10_000}
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    state = fsm.next_state(fsm.initial_state, ord('"'))
    rows = set()
    for _ in range(10_000):
        state = fsm.next_state(state, ord("a"))
        rows.add(fsm.allowed_mask(state).ctypes.data)
    assert fsm.state_count > 10_000
    assert len(rows) < 40


@pytest.mark.parametrize("name", ["any value", "tree", "union of objects"])
def test_threads_see_one_automaton(name: str) -> None:
    """Many threads on fresh states: every one sees the masks and steps that a lone recognizer sees."""
    vocabulary = tekken_vocabulary()
    alone = compile_grammar(CORNER_CASES[name], vocabulary)
    rng = random.Random(name)
    walks = [random_walk(alone, rng, longest=25) for _ in range(10)]
    expected = [[alone.allowed_mask(state).copy() for state in states_along(alone, walk)] for walk in walks]
    shared = compile_grammar(CORNER_CASES[name], vocabulary)
    numbers: list[list[list[int]]] = []
    failures: list[BaseException] = []
    barrier = threading.Barrier(8)

    def hammer(seed: int) -> None:
        try:
            barrier.wait()
            order = random.Random(seed).sample(range(len(walks)), len(walks))
            seen: dict[int, list[int]] = {}
            for index in order:
                seen[index] = states_along(shared, walks[index])
                for state, mask in zip(seen[index], expected[index], strict=True):
                    assert np.array_equal(shared.allowed_mask(state), mask)
            shared.materialize(max_states=40)
            numbers.append([seen[index] for index in range(len(walks))])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(seen == numbers[0] for seen in numbers)


def test_growth_stops_at_the_memory_limit() -> None:
    """What one long generation makes an automaton hold is bounded, and the error names the limit."""
    limits = Limits(max_fsm_bytes=2 << 20)
    fsm = compile_grammar(CORNER_CASES["any value"], bytes_vocabulary(), limits=limits)
    with pytest.raises(LimitExceededError, match="max_fsm_bytes"):
        fsm.materialize()
    assert fsm.nbytes < 4 << 20
    # What is known already goes on working.
    assert fsm.allowed_tokens(fsm.initial_state)
    assert fsm.is_terminal(states_along(fsm, [ord("1")])[-1])


def test_a_vocabulary_without_json_still_serves_plain_text() -> None:
    fsm = compile_grammar({"type": "regex", "pattern": "[A-Z][a-z]+(, [a-z]+)*[.!?]"}, shakespeare_vocabulary())
    rng = random.Random(3)
    for state in visited_states(fsm, rng):
        check_state(fsm, state, range(len(fsm.vocabulary)))


def test_a_vocabulary_without_json_is_warmed_up() -> None:
    """Replicas and compile workers of a character model start, although nothing in JSON can be spelled."""
    warm_up(shakespeare_vocabulary())
    warm_up_formats(shakespeare_vocabulary())


@settings(PROPERTY, max_examples=30)
@given(specification=SPECIFICATIONS, make=small_vocabularies, rng=seeds)
def test_successors_are_what_steps_reach_and_visit_nothing(
    specification: dict[str, Any], make: MakeVocabulary, rng: random.Random
) -> None:
    fsm = compile_or_assume(specification, make())
    tokens = range(-1, fsm.vocabulary.size + 1)  # those out of range lead nowhere
    for state in visited_states(fsm, rng):
        before = fsm.state_count
        found = fsm.successors(state, tokens)
        assert fsm.state_count == before
        assert sorted(token for one in found for token in one.token_ids) == sorted(fsm.allowed_tokens(state))
        for one in found:
            reached = {fsm.next_state(state, token) for token in one.token_ids}
            assert len(reached) == 1 and one.state in (None, *reached)
            assert one.terminal == fsm.is_terminal(*reached)
        assert len({fsm.next_state(state, one.token_ids[0]) for one in found}) == len(found)
        assert [one.state for one in fsm.successors(state, tokens)] == [
            fsm.next_state(state, one.token_ids[0]) for one in found
        ]
    assert fsm.successors(-1, tokens) == fsm.successors(fsm.end_state, tokens) == []

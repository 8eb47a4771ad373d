"""Automata as bytes: the same language again, and nothing that comes in is trusted."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.vocabularies import sentencepiece_vocabulary
from grammar_workers import Limits, TokenFSM, compile_grammar
from grammar_workers.artifacts import artifact
from grammar_workers.errors import ArtifactError
from grammar_workers.matching.distinct.recognizer import DistinctRecognizer
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.instructions import CALL, GOTO
from tests.grammar_workers.hostile_tables import WIDTHS, Arrays, arrays_of, load, payload_in, payload_of, tables_in
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.specifications import CORNER_CASES, SPECIFICATIONS, compile_or_assume
from tests.grammar_workers.vocabularies import (
    SMALL,
    bytes_vocabulary,
    characters_vocabulary,
    random_walk,
    states_along,
)

ROOT = Path(__file__).parents[2]
REFERENCE = compile_grammar(CORNER_CASES["declared and free names"], bytes_vocabulary())


@settings(PROPERTY, max_examples=40)
@given(specification=SPECIFICATIONS, make=st.sampled_from(SMALL), rng=st.integers(0, 1 << 30).map(random.Random))
def test_the_language_survives(specification: dict[str, Any], make: Any, rng: random.Random) -> None:
    fsm = compile_or_assume(specification, make())
    untouched = fsm.to_bytes()
    tokens = [random_walk(fsm, rng) for _ in range(3)]
    assert fsm.to_bytes() == untouched, "what has been visited is no part of the artifact"
    again = TokenFSM.from_bytes(untouched, fsm.vocabulary, key=fsm.key)
    assert again.key == fsm.key
    assert again.notes == fsm.notes
    assert again.to_bytes() == untouched
    for walk in tokens:
        for here, there in zip(states_along(fsm, walk), states_along(again, walk), strict=True):
            assert np.array_equal(fsm.allowed_mask(here), again.allowed_mask(there))
            assert fsm.is_terminal(here) == again.is_terminal(there)
        assert again.shortest_completion(again.initial_state) == fsm.shortest_completion(fsm.initial_state)


def test_notes_travel_along() -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": {"x-note": 1, "type": "null"}}, bytes_vocabulary())
    assert fsm.notes
    assert TokenFSM.from_bytes(fsm.to_bytes(), bytes_vocabulary()).notes == fsm.notes


def test_another_vocabulary_or_key_is_refused() -> None:
    data = REFERENCE.to_bytes()
    for vocabulary in (characters_vocabulary(), sentencepiece_vocabulary()):
        with pytest.raises(ArtifactError, match="fingerprint"):
            TokenFSM.from_bytes(data, vocabulary)
    with pytest.raises(ArtifactError, match="key"):
        TokenFSM.from_bytes(data, bytes_vocabulary(), key="0" * 64)


@settings(PROPERTY, max_examples=300)
@given(st.data())
def test_any_damage_is_noticed(data: st.DataObject) -> None:
    whole = REFERENCE.to_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                whole[:position],
                whole + whole[: position + 1],
                whole[:position] + bytes([whole[position] ^ (1 << position % 8)]) + whole[position + 1 :],
                whole[:position] + whole[position + 1 :],
                whole[:position] + b"\0" * 8 + whole[position:],
            ]
        )
    )
    with pytest.raises(ArtifactError):
        TokenFSM.from_bytes(damaged, bytes_vocabulary())


# -- with a digest that fits -------------------------------------------------------------------------------------


def reference_arrays() -> Arrays:
    return arrays_of(tables_in(REFERENCE))


def lengths(*values: int) -> bytes:
    """The lengths of all tables, with nothing behind them."""
    assert len(values) == len(WIDTHS)
    return np.array(values, "<i8").tobytes()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0" * 55,
        b"\0" * 1000,
        lengths(10, 1, 1, 0, 1, 1, 0, 0, 0),
        lengths(10**12, 0, 0, 0, 0, 0, 0, 0, 0),
        lengths(2**62, 2**62, 0, 0, 0, 0, 0, 0, 0),
        lengths(-1, 1, 1, 0, 1, 1, 0, 0, 0),
        lengths(2, 0, 1, 0, 1, 1, 0, 0, 0) + b"\0" * 40,
    ],
)
def test_payloads_that_are_no_tables(payload: bytes) -> None:
    with pytest.raises(ArtifactError):
        load(payload)


@pytest.mark.parametrize("payload", [b"", b"?", b"?" + tables_in(REFERENCE)])
def test_unknown_kinds_of_automata_are_refused(payload: bytes) -> None:
    vocabulary = bytes_vocabulary()
    with pytest.raises(ArtifactError, match="kind"):
        TokenFSM.from_bytes(artifact.pack(payload, key="0" * 64, fingerprint=vocabulary.fingerprint), vocabulary)


def test_a_recognizer_that_knows_of_no_distinct_values_does_not_read_them() -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": {"uniqueItems": True}}, bytes_vocabulary())
    payload = payload_in(fsm).removeprefix(DistinctRecognizer.KIND)
    assert load(payload, DistinctRecognizer.KIND).count_allowed(1) == fsm.count_allowed(1)
    with pytest.raises(ArtifactError, match="distinct"):
        load(payload)


def test_bytes_after_the_tables_are_refused() -> None:
    with pytest.raises(ArtifactError):
        load(payload_of(reference_arrays()) + b"\0")


@pytest.mark.parametrize("value", [-(2**31), -1000, 2**31 - 1, 10**6])
def test_no_index_leads_out_of_its_array(value: int) -> None:
    """Each column of each table in turn: refused, unless this column holds no index."""
    refused = 0
    for position, array in enumerate(reference_arrays()):
        for column in range(array.shape[1] if array.ndim == 2 and array.shape[1] < 256 else 1):
            arrays = reference_arrays()
            if not arrays[position].size:
                continue
            arrays[position].reshape(len(array), -1)[-1, column] = value
            try:
                load(payload_of(arrays))
            except ArtifactError:
                refused += 1
    assert refused >= 8


def built(build: Callable[[PushdownBuilder], int]) -> PushdownAutomaton:
    builder = PushdownBuilder(Limits())
    return builder.build(build(builder))


def _goto_itself(builder: PushdownBuilder) -> int:
    state = builder.state()
    builder.set_op(state, builder.op(move=GOTO, target=state))
    return state


def _call_itself(builder: PushdownBuilder) -> int:
    state = builder.state()
    builder.set_op(state, builder.op(move=CALL, target=state, site=[state]))
    return state


def _goto_in_a_circle(builder: PushdownBuilder) -> int:
    first, second = builder.state(), builder.state()
    builder.set_op(first, builder.goto(second))
    builder.set_op(second, builder.goto(first))
    row = builder.row(dict.fromkeys(range(256), first))
    return builder.state(row=row)


def _return_to_a_caller_that_calls_again(builder: PushdownBuilder) -> int:
    """Each exit leads back to a state that calls the same rule again: nothing is ever read."""
    rule = builder.state(exit_label=0)
    caller = builder.state()
    builder.set_op(caller, builder.op(move=CALL, target=rule, site=[caller]))
    return caller


def _call_deeper_on_every_byte(builder: PushdownBuilder) -> int:
    state = builder.state()
    row = builder.row(dict.fromkeys(range(256), state))
    inner = builder.state(row=row)
    builder.set_op(state, builder.op(move=CALL, target=inner, site=[inner]))
    return state


@pytest.mark.parametrize(
    "build",
    [
        _goto_itself,
        _call_itself,
        _goto_in_a_circle,
        _return_to_a_caller_that_calls_again,
        _call_deeper_on_every_byte,
    ],
)
def test_silent_circles_end(build: Callable[[PushdownBuilder], int]) -> None:
    """Tables whose every index is in range, but that move for ever without reading a byte."""
    try:
        fsm = load(built(build).to_bytes())
        state = fsm.initial_state
        for token in (65, 66, 67):
            fsm.allowed_mask(state)
            fsm.is_terminal(state)
            state = max(fsm.next_state(state, token), fsm.end_state)
    except ArtifactError:
        return


def test_tampered_tables_neither_crash_nor_hang() -> None:
    """Nor do they raise anything but typed errors, whatever is asked of them."""
    # One process for all: most of the time it imports. `counters` are registers beyond the bounds of a string.
    tasks = ["counters", "tampered=400", "graphs=400", "distinct=150"]
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.grammar_workers.hostile_tables", "1", *tasks]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stdout + found.stderr[-3000:]
    loaded = dict(line.split() for line in found.stdout.splitlines())
    assert list(loaded) == tasks
    # Some of what was changed must have got past the checks, or nothing was tried.
    assert all(int(loaded[task]) > 20 for task in tasks[1:])


def test_tables_without_a_way_to_an_end_are_told_from_others() -> None:
    """They hold together, so they load; what asks for the way gets a typed error."""
    fsm = load(built(lambda builder: builder.state(row=builder.row({97: 2}))).to_bytes())
    with pytest.raises(ArtifactError, match="without a way to an end"):
        fsm.shortest_completion(fsm.initial_state)


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_and_pickles_say_what_to_do_instead(attempt: Callable[[TokenFSM], object]) -> None:
    fsm = compile_grammar({"type": "choice", "choices": ["a"]}, bytes_vocabulary())
    with pytest.raises(TypeError, match="to_bytes"):
        attempt(fsm)

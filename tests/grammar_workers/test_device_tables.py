"""Device tables say what the TokenFSM says, for every state and token, or there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.vocabularies import tekken_vocabulary
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.matching.export import DeviceTables, TableBuilder
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.specifications import CORNER_CASES, SPECIFICATIONS, compile_or_assume
from tests.grammar_workers.vocabularies import SMALL, bytes_vocabulary

FINITE = ["choice", "regex", "unbounded regex", "pattern and length", "string", "banned words", "tool calls"]
ENDLESS = ["any value", "tree", "grammar with banned words"]


def check(fsm: TokenFSM, tables: DeviceTables, tokens: Any) -> None:
    assert len(tables.next) == len(tables.row_of) == fsm.state_count
    for state in range(fsm.state_count):
        assert np.array_equal(tables.rows[tables.row_of[state]], fsm.allowed_mask(state))
        for token in tokens:
            assert tables.next[state, tables.class_of[token]] == fsm.next_state(state, token)


@settings(PROPERTY, max_examples=15)
@given(specification=SPECIFICATIONS, make=st.sampled_from(SMALL))
def test_tables_advance_as_the_automaton_does(specification: dict[str, Any], make: Any) -> None:
    fsm = compile_or_assume(specification, make())
    if (tables := fsm.device_tables(max_states=60)) is not None:
        check(fsm, tables, range(len(fsm.vocabulary)))


@pytest.mark.parametrize("name", FINITE)
def test_tables_of_a_small_vocabulary(name: str) -> None:
    fsm = compile_grammar(CORNER_CASES[name], bytes_vocabulary())
    tables = fsm.device_tables()
    assert tables is not None
    check(fsm, tables, range(len(fsm.vocabulary)))


def test_tables_of_a_large_vocabulary() -> None:
    """131k tokens fall into a few classes."""
    fsm = compile_grammar(CORNER_CASES["regex"], tekken_vocabulary())
    tables = fsm.device_tables()
    assert tables is not None
    # One token of each class, and some of any.
    _, first = np.unique(tables.class_of, return_index=True)
    check(fsm, tables, [*first.tolist(), *range(0, fsm.vocabulary.size, 999), *fsm.vocabulary.eos_token_ids])
    assert tables.next.shape[1] < 100


@pytest.mark.parametrize("name", ENDLESS)
def test_automata_without_end_have_none(name: str) -> None:
    fsm = compile_grammar(CORNER_CASES[name], bytes_vocabulary())
    assert fsm.device_tables(max_states=100) is None
    assert fsm.state_count <= 100


def test_a_budget_of_bytes() -> None:
    fsm = compile_grammar(CORNER_CASES["regex"], bytes_vocabulary())
    tables = fsm.device_tables()
    assert tables is not None
    assert fsm.device_tables(max_bytes=tables.nbytes) is not None
    assert fsm.device_tables(max_bytes=tables.nbytes - 1) is None


def test_more_classes_than_a_number_holds() -> None:
    tokens = 40_000
    builder = TableBuilder(tokens, 1 << 30)
    assert builder.add(np.arange(tokens, dtype=np.int32) % 30_000)
    assert not builder.add(np.arange(tokens, dtype=np.int32) % 35_000)


def test_end_tokens_lead_to_the_end() -> None:
    vocabulary = Vocabulary([b"a", b"b", None, None], [2, 3])
    fsm = compile_grammar({"type": "regex", "pattern": "a+"}, vocabulary)
    tables = fsm.device_tables()
    assert tables is not None
    after = fsm.next_state(fsm.initial_state, 0)
    assert tables.next[after, tables.class_of[[2, 3]]].tolist() == [fsm.end_state] * 2
    assert (tables.next[fsm.end_state] == -1).all()

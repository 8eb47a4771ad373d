"""Device tables say what the TokenFSM says, for every state that they hold, and where one leaves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.vocabularies import tekken_vocabulary
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.matching.export import LEAVES, DeviceTables, TableBuilder
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.specifications import CORNER_CASES, SPECIFICATIONS, compile_or_assume
from tests.grammar_workers.vocabularies import SMALL, bytes_vocabulary

FINITE = ["choice", "regex", "unbounded regex", "pattern and length", "string", "banned words", "tool calls"]
ENDLESS = ["any value", "tree", "grammar with banned words"]


def check(fsm: TokenFSM, tables: DeviceTables, tokens: Any) -> None:
    assert tables.states == len(tables.row_of) <= fsm.state_count
    left = 0
    for state in range(tables.states):
        assert np.array_equal(tables.rows[tables.row_of[state]], fsm.allowed_mask(state))
        for token in tokens:
            following = fsm.next_state(state, token)
            left += following >= tables.states
            expected = following if following < tables.states else LEAVES
            assert tables.next[state, tables.class_of[token]] == expected
    assert tables.complete <= (left == 0)


@settings(PROPERTY, max_examples=15)
@given(specification=SPECIFICATIONS, make=st.sampled_from(SMALL), max_bytes=st.sampled_from([1 << 24, 5000]))
def test_tables_advance_as_the_automaton_does(specification: dict[str, Any], make: Any, max_bytes: int) -> None:
    fsm = compile_or_assume(specification, make())
    if (tables := fsm.device_tables(ahead=60, max_bytes=max_bytes)) is not None:
        assert tables.nbytes <= max_bytes
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
def test_automata_without_end_are_there_as_far_as_somebody_has_been(name: str) -> None:
    fsm = compile_grammar(CORNER_CASES[name], bytes_vocabulary())
    few = fsm.device_tables(ahead=20)
    assert few is not None and not few.complete and 10 <= few.states <= fsm.state_count < 200
    check(fsm, few, range(len(fsm.vocabulary)))  # visits what they lead to
    more = fsm.device_tables(ahead=20)
    assert more is not None and more.states == fsm.state_count > few.states
    check(fsm, more, range(0, len(fsm.vocabulary), 7))


def test_a_budget_of_bytes() -> None:
    fsm = compile_grammar(CORNER_CASES["regex"], bytes_vocabulary())
    whole = fsm.device_tables()
    assert whole is not None and whole.complete
    again = fsm.device_tables(max_bytes=whole.nbytes)
    assert again is not None and again.complete
    for share in (2, 3, 5):
        part = fsm.device_tables(max_bytes=whole.nbytes // share)
        assert part is not None and not part.complete
        assert part.nbytes <= whole.nbytes // share and part.states < whole.states
        check(fsm, part, range(len(fsm.vocabulary)))
    assert fsm.device_tables(max_bytes=600) is None


def test_more_classes_than_a_number_holds() -> None:
    tokens = 40_000
    builder, row = TableBuilder(tokens, 1 << 30), np.zeros(tokens // 32, np.uint32)
    assert builder.add(np.arange(tokens, dtype=np.int32) % 30_000, 0, row)
    assert not builder.add(np.arange(tokens, dtype=np.int32) % 35_000, 0, row)
    assert builder.finish().next.shape == (1, 30_000)


def test_end_tokens_lead_to_the_end() -> None:
    vocabulary = Vocabulary([b"a", b"b", None, None], [2, 3])
    fsm = compile_grammar({"type": "regex", "pattern": "a+"}, vocabulary)
    tables = fsm.device_tables()
    assert tables is not None
    after = fsm.next_state(fsm.initial_state, 0)
    assert tables.next[after, tables.class_of[[2, 3]]].tolist() == [fsm.end_state] * 2
    assert (tables.next[fsm.end_state] == -1).all()

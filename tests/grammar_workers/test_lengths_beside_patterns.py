"""`minLength` and `maxLength` beside patterns with counts, judged by `re`."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from grammar_workers import Limits, compile_grammar
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.regex.compile import search_automaton
from grammar_workers.pushdown import strings
from grammar_workers.pushdown.automaton import UNBOUNDED
from grammar_workers.pushdown.strings import has_length
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

TEXTS = ["".join(text) for length in range(7) for text in itertools.product("ab", repeat=length)]
LIMITS = Limits()

counts = st.sampled_from(["", "?", "*", "+", "{2}", "{0,3}", "{2,}", "{1,2}", "{3,5}"])
parts = st.tuples(st.sampled_from(["a", "b", "[ab]", "(?:ab)", "(?:aab|b)", "(?:a{3}b?)", "(?:|bb)"]), counts)
bodies = st.lists(parts.map("".join), min_size=1, max_size=3).map("".join)
patterns = st.tuples(bodies, bodies).map(lambda pair: f"^(?:{pair[0]}|{pair[1]})$") | bodies.map(lambda one: f"^{one}$")
bounds = st.integers(0, 5), st.integers(0, 6) | st.none()


def bounded(minimum: int, maximum: int | None) -> dict[str, int]:
    return {"minLength": minimum} | ({} if maximum is None else {"maxLength": maximum})


def size(schema: dict[str, Any]) -> int:
    """Return the size of the automaton of a schema."""
    return compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())._recognizer.size


def end_table(automaton: Dfa, horizon: int) -> NDArray[np.bool_]:
    """Return whether a text may end r characters after a state, bool [horizon, states]."""
    rows = [np.array([*automaton.accepting, 0]) > 0]
    while len(rows) < horizon:
        rows.append(np.append(rows[-1][automaton.table].any(axis=1), False))
    return np.array(rows)[:, :-1]


@settings(PROPERTY, max_examples=50)
@given(pattern=patterns, minimum=bounds[0], maximum=bounds[1])
def test_a_length_beside_a_pattern_keeps_what_both_say(pattern: str, minimum: int, maximum: int | None) -> None:
    right = [
        text
        for text in TEXTS
        if re.search(pattern, text) and minimum <= len(text) <= (UNBOUNDED if maximum is None else maximum)
    ]
    schema = {"type": "string", "pattern": pattern, **bounded(minimum, maximum)}
    try:
        fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    except ValueError:
        assert not right
        return
    assert [text for text in TEXTS if accepts(fsm, json.dumps(text))] == right


@settings(PROPERTY, max_examples=120)
@given(pattern=patterns, minimum=bounds[0], maximum=bounds[1])
def test_the_lengths_of_an_automaton(pattern: str, minimum: int, maximum: int | None) -> None:
    automaton = search_automaton(pattern, LIMITS)
    high = UNBOUNDED if maximum is None else max(minimum, maximum)
    table = end_table(automaton, 150)
    nearest, furthest = strings._ends(automaton, None)
    assert has_length(automaton, (minimum, high)) == bool(table[minimum : high + 1, 0].any())
    for state, lengths in enumerate(table.T):
        found = np.flatnonzero(lengths)
        assert nearest[state] == (found[0] if len(found) else -1)
        assert furthest[state] == (found[-1] if len(found) and found[-1] < 100 else -1 if not len(found) else UNBOUNDED)
    if maximum is not None:
        fitting = strings._fitting(automaton, None, (minimum, high))
        for read, row in enumerate(fitting):
            assert row.tolist() == table[max(minimum - read, 0) : high - read + 1].any(axis=0).tolist()
    guards, states = strings._arrivals(automaton, 1, (minimum, high)), {0}
    for read in range(1, 15):
        states = {target for state in states for target in automaton.successors[state]}
        for state in states:
            may_end = bool(table[max(minimum - read, 0) : max(high - read + 1, 0), state].any())
            assert any(low <= read - 1 <= last for low, last in guards[state]) == may_end
    if strings._is_dense(automaton, None, high - minimum):
        for lengths in table.T:
            gaps = np.diff(np.flatnonzero(lengths))
            assert not len(gaps) or gaps.max() <= high - minimum + 1


SENTENCES = r"^(([a-z]{1,8} ?){1,50}[.!?]){1,20}$"
WORDS = "^([a-z]{1,20} ){1,500}$"
URL = "^https?://[^/]{1,253}/.{0,500}$"
ADDRESS = r'^[^\s@"]{1,64}@[^\s@]{1,255}$'


ADDRESS_END = f"{'b' * 30}.{'c' * 30}.de"


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"pattern": SENTENCES, "minLength": 20}, ["abc def. ", "a. b? " * 4, "abc def? " * 2 + "a.", "abc?" * 5]),
        ({"pattern": WORDS, "minLength": 10}, ["a " * 4, "a " * 5, "abc " * 3, "a" * 21 + " "]),
        ({"pattern": WORDS, "minLength": 10, "maxLength": 50}, ["a " * 4, "a " * 25, "abc " * 13]),
        ({"format": "uri", "pattern": URL, "minLength": 12}, ["http://a/b", "http://a/bcd", "http://abcd"]),
        ({"format": "uri", "pattern": URL, "maxLength": 2048}, ["http://a/", "http://a/b"]),
        ({"format": "uri", "pattern": URL, "minLength": 12, "maxLength": 40}, ["http://a/" + "b" * 31, "http://a/"]),
        ({"format": "email", "pattern": "^.{1,64}@.{1,255}$"}, [f"{'a' * 63}@b.de"]),
        ({"format": "email", "pattern": ADDRESS, "minLength": 100}, [f"{'a' * 34}@{ADDRESS_END}"]),
        ({"format": "email", "pattern": ADDRESS, "maxLength": 2048}, [f"{'a' * 63}@b.de"]),
        ({"format": "email", "pattern": ADDRESS, "minLength": 99, "maxLength": 100}, [f"{'a' * 34}@{ADDRESS_END}"]),
    ],
)
def test_counts_survive_a_length(schema: dict[str, Any], texts: list[str]) -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": {"type": "string", **schema}}, bytes_vocabulary())
    low, high = schema.get("minLength", 0), schema.get("maxLength", UNBOUNDED)
    for text in texts:
        for changed in (text, text[:-1], "z" + text, "zz" + text):
            right = re.search(schema["pattern"], changed) is not None and low <= len(changed) <= high
            assert accepts(fsm, json.dumps(changed)) == right, changed


def test_a_bound_that_the_pattern_keeps_is_not_counted() -> None:
    plain = {"type": "string", "pattern": "^(?:[ab]{2,9}-){1,3}$"}
    unbounded = size(plain)
    for vacuous in ({"maxLength": 30}, {"minLength": 3}, {"minLength": 2, "maxLength": 2000}):
        assert size(plain | vacuous) == unbounded


def test_a_length_that_is_refused_is_the_schemas_own() -> None:
    schema = {"type": "string", "pattern": "^(?:a{1999}|a{1990}(?:a{500})*)$", "minLength": 29000, "maxLength": 29100}
    with pytest.raises(LimitExceededError, match=r"lengths up to 29100 characters .* use a smaller maxLength"):
        compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())

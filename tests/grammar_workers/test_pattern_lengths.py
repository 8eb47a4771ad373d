"""Patterns as a pattern without its count and a length, against the pattern with its count written out."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import Limits, compile_grammar
from grammar_workers.dfa.dfa import intersect
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.regex import lengths as pattern_lengths
from grammar_workers.languages.regex.compile import compile_regex, search_automaton
from grammar_workers.languages.regex.lengths import pattern_and_lengths
from grammar_workers.pushdown.automaton import UNBOUNDED
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

LIMITS = Limits()

fixed = st.sampled_from(["", "a", "[ab]", ".", "é", "ab", "(?:ab|bc)", "(?:a|b)", "[ab]{2}", "(?:ab){2}", r"\w", r"\s"])
others = st.sampled_from(["a?", "(?:a|bc)", "b*", "$", "^", r"\b", "(?=a)", "(?:|ab)"])
counts = st.tuples(st.integers(0, 3), st.integers(0, 3) | st.none()).map(
    lambda pair: f"{{{pair[0]},{'' if pair[1] is None else pair[0] + pair[1]}}}"
)
repeated = st.tuples(st.sampled_from(["a", "[ab]", ".", r"\S", r"\d", "(?:ab)", "(?:[bc])"]), counts).map("".join)
bodies = st.lists(fixed | repeated | others, min_size=1, max_size=4).map("".join)
patterns = bodies.map(lambda body: f"^{body}$") | bodies.map(lambda body: f"^(?:{body})$") | bodies


@settings(PROPERTY, max_examples=300)
@given(pattern=patterns, texts=st.lists(st.text("abc- 1\n", max_size=7), max_size=8))
def test_a_length_says_what_a_count_says(pattern: str, texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_lengths, "_LONG", 1)
        automaton, (minimum, maximum) = pattern_and_lengths.__wrapped__(pattern, LIMITS)
    highest = "" if maximum == UNBOUNDED else maximum
    bounds = compile_regex(rf"[\s\S]{{{minimum},{highest}}}", search=False, limits=LIMITS)
    assert intersect([automaton, bounds], LIMITS) == intersect([search_automaton(pattern, LIMITS), bounds], LIMITS)
    for text in texts:
        if automaton.classify(text) and minimum <= len(text) <= maximum:
            assert re.search(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "states", "lengths"),
    [
        ("^[0-9a-f]{24}$", 1, (24, 24)),
        ("^v[0-9a-f]{1,255}$", 2, (2, 256)),
        (r"^[a-z]{2}-\w{20,}$", 4, (23, UNBOUNDED)),
        ("^....................$", 1, (20, 20)),
        ("^a....................b$", 3, (22, 22)),
        ("^[0-9a-f]{4}$", 5, (0, UNBOUNDED)),
        ("[0-9a-f]{24}$", None, (0, UNBOUNDED)),
        ("^-?[0-9a-f]{24}$", 26, (0, UNBOUNDED)),
        ("^(?:|[0-9a-f]{24})$", 25, (0, UNBOUNDED)),
    ],
)
def test_one_long_repetition_between_fixed_lengths(pattern: str, states: int | None, lengths: tuple[int, int]) -> None:
    automaton, found = pattern_and_lengths(pattern, LIMITS)
    assert found == lengths
    assert states is None or automaton.many_states == states


def test_property_names_and_alternatives_keep_their_counts() -> None:
    long = {"pattern": "^x[ab]{16,20}$"}
    schema = {
        "properties": {"names": {"propertyNames": long, "additionalProperties": True}, "not": {"not": long}},
        "required": ["names"],
    }
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    for many in (15, 16, 20, 21):
        name = "x" + many * "a"
        assert accepts(fsm, f'{{"names": {{"{name}": 1}}}}'.encode()) == (16 <= many <= 20)
        assert accepts(fsm, f'{{"names": {{}}, "not": "{name}"}}'.encode()) == (not 16 <= many <= 20)


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"pattern": "^[ab]{0,20000}$"}, "/pattern"),
        ({"not": {"pattern": "^[ab]{0,20000}$"}}, "/not/pattern"),
        ({"patternProperties": {"^[ab]{0,20000}$": {}}}, "/patternProperties/^[ab]{0,20000}$"),
    ],
)
def test_what_is_too_long_written_out_is_refused_where_it_stands(schema: dict[str, Any], pointer: str) -> None:
    with pytest.raises(LimitExceededError) as caught:
        compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    assert caught.value.pointer == pointer

"""Token patterns and positions, against the regular expressions that they stand for."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import compile_grammar
from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, shakespeare_vocabulary

CLASSES = {
    "UPPER": "[A-Z]",
    "LOWER": "[a-z]",
    "LETTER": "[A-Za-z]",
    "DIGIT": "[0-9]",
    "SPACE": "[ \t]",
    "NEWLINE": "\n",
    "PUNCT": f"[{re.escape(string.punctuation)}]",
    "ANY": r"[\s\S]",
}
LITERALS = ["a", "é", "ab", ":", "\n", "."]
QUANTIFIERS = {q: q for q in ["?", "*", "+", "{2}", "{1,}", "{0,2}", "{0}"]} | {"1": ""}

elements = st.lists(
    st.tuples(st.sampled_from([*CLASSES, *LITERALS]), st.sampled_from(list(QUANTIFIERS))), min_size=1, max_size=4
)


@settings(PROPERTY, max_examples=100)
@given(elements, st.lists(st.text("aAb1:. \n\té", max_size=5), min_size=8, max_size=8))
def test_a_pattern_is_the_regular_expression_that_it_spells(parts: list[tuple[str, str]], texts: list[str]) -> None:
    source = "".join(f"(?:{CLASSES.get(text, re.escape(text))}){QUANTIFIERS[q]}" for text, q in parts)
    fsm = compile_grammar({"type": "pattern", "elements": parts}, bytes_vocabulary())
    for text in texts:
        assert accepts(fsm, text) == bool(re.fullmatch(source, text)), (text, source)


def test_a_speaker_and_a_line_over_a_vocabulary_of_characters() -> None:
    elements = [["UPPER", "+"], [":", "1"], ["NEWLINE", "1"], ["LOWER", "{3,5}"], ["PUNCT", "?"]]
    fsm = compile_grammar({"type": "pattern", "elements": elements}, shakespeare_vocabulary())
    assert accepts(fsm, "ROMEO:\naway!")
    assert accepts(fsm, "R:\nhere")
    assert not accepts(fsm, "R:\nno")
    assert {shakespeare_vocabulary().token_bytes(t) for t in fsm.allowed_tokens(fsm.initial_state)} == {
        character.encode() for character in string.ascii_uppercase
    }


@pytest.mark.parametrize(
    ("elements", "pointer"),
    [
        ([["UPPER", "+"], ["a", "1"], ["LOWER", "++"]], "/elements/2/1"),
        ([["a", "{3,2}"]], "/elements/0/1"),
        ([["a", "{,2}"]], "/elements/0/1"),
        ([["a", "2"]], "/elements/0/1"),
        ([["a", ""]], "/elements/0/1"),
        ([["", "1"]], "/elements/0/0"),
        ([["a\ud800", "1"]], "/elements/0/0"),
        ([["a"]], "/elements/0/1"),
        ([["a", "1", "b"]], "/elements/0"),
        ([["a", 1]], "/elements/0/1"),
        ([], "/elements"),
    ],
)
def test_malformed_elements_are_refused_with_their_place(elements: list[object], pointer: str) -> None:
    with pytest.raises(InvalidSpecificationError) as caught:
        compile_grammar({"type": "pattern", "elements": elements}, bytes_vocabulary())
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("quantifier", ["{999999999}", "{1,1048577}", "{900000}"])
def test_counts_beyond_the_limits_are_refused(quantifier: str) -> None:
    with pytest.raises(LimitExceededError):
        compile_grammar({"type": "pattern", "elements": [["ab", quantifier]]}, bytes_vocabulary())


@settings(PROPERTY, max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from("abcé\n€"), min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.text("abcé\n€", max_size=5), min_size=8, max_size=8),
)
def test_positions_allow_their_characters_one_after_the_other(allowed: list[list[str]], texts: list[str]) -> None:
    fsm = compile_grammar({"type": "positions", "allowed": allowed}, bytes_vocabulary())
    for text in [*texts, "".join(step[0] for step in allowed)]:
        expected = len(text) == len(allowed) and all(c in step for c, step in zip(text, allowed, strict=True))
        assert accepts(fsm, text) == expected, text


@pytest.mark.parametrize(
    ("allowed", "pointer"),
    [
        ([["a"], ["b", "cd"]], "/allowed/1/1"),
        ([["a", ""]], "/allowed/0/1"),
        ([["a"], []], "/allowed/1"),
        ([], "/allowed"),
    ],
)
def test_malformed_positions_are_refused_with_their_place(allowed: list[object], pointer: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_grammar({"type": "positions", "allowed": allowed}, bytes_vocabulary())
    assert caught.value.pointer == pointer


def test_patterns_and_positions_take_part_in_intersections() -> None:
    specification = {
        "type": "all_of",
        "specifications": [
            {"type": "pattern", "elements": [["LETTER", "+"]]},
            {"type": "positions", "allowed": [["a", "1"], ["b", "2"], ["c", "C"]]},
            {"type": "regex", "pattern": "(?!.*C).*"},
        ],
    }
    fsm = compile_grammar(specification, bytes_vocabulary())
    assert accepts(fsm, "abc")
    assert not any(accepts(fsm, text) for text in ("abC", "a2c", "ab"))

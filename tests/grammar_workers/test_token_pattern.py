"""Token patterns and positions, against the regular expressions that they stand for."""

from __future__ import annotations

import itertools
import random
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import TokenFSM, compile_grammar
from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    random_walk,
    shakespeare_vocabulary,
    states_along,
)

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
        ([["a"], [97, 1.5]], "/allowed/1/1"),
        ([["a"], [97, True]], "/allowed/1/1"),
        ([["a"], [97, "b"]], "/allowed/1/1"),
        ([["a"], ["b", 97]], "/allowed/1/1"),
        ([["a"], [97, 10**6]], "/allowed/1/1"),
        ([["a"], [-1]], "/allowed/1/0"),
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


# -- positions of token ids --------------------------------------------------------------------------------------

_TOKENS = sorted(
    token for token in range(256 + 60) if re.fullmatch(rb"[ab]{1,3}", bytes_vocabulary().token_bytes(token))
)
_SPECIAL = 256


def follows(allowed: list[list[str | int]], tokens: list[int]) -> bool:
    """Whether the tokens are the steps of `allowed`, by its definition."""
    step = 0
    for token in tokens:
        if step < len(allowed) and token in allowed[step]:
            step += 1
            continue
        text = bytes_vocabulary().token_bytes(token).decode()
        if not text or any(
            c not in choices for c, choices in itertools.zip_longest(text, allowed[step:][: len(text)], fillvalue=())
        ):
            return False
        step += len(text)
    return step == len(allowed)


steps = st.one_of(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=2),
    st.lists(st.sampled_from([*_TOKENS, _SPECIAL]), min_size=1, max_size=3),
)


@settings(PROPERTY, max_examples=60)
@given(st.lists(steps, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_positions_of_token_ids_are_exactly_these_tokens(allowed: list[list[str | int]], rng: random.Random) -> None:
    allowed.append([_TOKENS[0]])
    vocabulary = bytes_vocabulary()
    compiled = compile_grammar({"type": "positions", "allowed": allowed}, vocabulary)
    for fsm in (compiled, TokenFSM.from_bytes(compiled.to_bytes(), vocabulary)):
        for length in range(6):
            drawn = [rng.choice([*_TOKENS, _SPECIAL]) for _ in range(length)]
            assert fsm.is_terminal(states_along(fsm, drawn)[-1]) == follows(allowed, drawn)
        for longest in (2, 30):
            assert follows(allowed, random_walk(fsm, rng, longest))


def test_positions_of_token_ids_stand_alone() -> None:
    tokens = {"type": "positions", "allowed": [["a"], [97]]}
    tag = {"type": "structural_tag", "tags": [{"begin": "<a>", "content": tokens, "end": "</a>"}], "triggers": ["<a>"]}
    for specification, pointer in (
        ({"type": "all_of", "specifications": [{"type": "regex", "pattern": "a*"}, tokens]}, "/specifications/1"),
        (tag, "/tags/0/content"),
    ):
        with pytest.raises(UnsupportedFeatureError) as caught:
            compile_grammar(specification, bytes_vocabulary())
        assert caught.value.pointer == pointer

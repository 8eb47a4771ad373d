"""Banned words against what Python's `casefold` and `re` find in the texts that are generated."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.vocabularies import sentencepiece_vocabulary, tekken_vocabulary
from grammar_workers import GrammarError, GrammarOptions, Limits, Vocabulary, compile_grammar
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError, UnsatisfiableError
from grammar_workers.languages.banned_in_json import matters_outside
from grammar_workers.languages.banned_words import banned_words
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    characters_vocabulary,
    random_walk,
    shakespeare_vocabulary,
    text_of,
)

LETTERS = "aAbBsSßſ İiıŉnʼ-_é É.\u0307ﬀfKkK0\u0130"
"""Letters that fold to others, to several, or to none; separators; a combining mark, which is no word character."""

words_lists = st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4)


def holds(text: str, words: list[str], case_sensitive: bool, whole_words: bool) -> bool:
    """Whether Python finds one of the words."""
    if not case_sensitive:
        text, words = text.casefold(), [word.casefold() for word in words]
    if whole_words:
        return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words)
    return any(word in text for word in words)


@settings(PROPERTY, max_examples=150)
@given(words_lists, st.lists(st.text(LETTERS, max_size=9), max_size=8), st.booleans(), st.booleans())
@example(["strasse"], ["Straße", "STRASSE", "Strasze"], False, False)
@example(["s"], ["ß", "ſ", "f"], False, False)
@example(["i"], ["İ", "i", "ii"], False, True)
@example(["a b", "b"], ["a b", "ab", "a bb"], True, True)
def test_a_text_is_accepted_exactly_when_python_finds_no_word(
    words: list[str], texts: list[str], case_sensitive: bool, whole_words: bool
) -> None:
    automaton = banned_words(words, Limits(), case_sensitive=case_sensitive, whole_words=whole_words)
    for text in [*texts, *words, *(f"{text}{word}{text}" for text in texts for word in words)]:
        assert bool(automaton.classify(text)) != holds(text, words, case_sensitive, whole_words), text


VOCABULARIES: dict[str, tuple[Callable[[], Vocabulary], list[str]]] = {
    "tekken": (tekken_vocabulary, ["the", "in", "straße", "qu", " a", "на"]),
    "sentencepiece": (sentencepiece_vocabulary, ["the", "in", "straße", "e ", "ation", "İ"]),
    "characters": (shakespeare_vocabulary, ["e", "th", "a b", "Q", "is"]),
}


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_no_banned_word_is_ever_generated(name: str, whole_words: bool) -> None:
    make, words = VOCABULARIES[name]
    vocabulary = make()
    fsm = compile_grammar({"type": "banned_words", "words": words, "whole_words": whole_words}, vocabulary)
    rng = random.Random(name)
    for _ in range(40):
        text = text_of(vocabulary, random_walk(fsm, rng, longest=20)).decode()
        assert not holds(text, words, False, whole_words), text


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from strings_in(member)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


SCHEMAS: list[Any] = [
    True,
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^[a-n]+$"},
    {"enum": ["ab", "a\nb", "null", "nul", 1, True, None, {"ab": "b", "b": 12}]},
    {"type": "array", "items": {"type": ["string", "boolean", "null"]}, "maxItems": 3},
    {"type": "object", "properties": {"ab": {"type": "string"}, "b": {"type": "integer"}}, "maxProperties": 3},
    {
        "type": "object",
        "properties": {"n": {"type": "string"}, "abc": True, "aab": {"type": "number"}},
        "required": ["n"],
        "patternProperties": {"^b": {"type": "string"}},
        "additionalProperties": {"type": "boolean"},
    },
    {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": {"type": "string", "maxLength": 2}},
    {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "integer"}]},
]
_json_words = st.lists(
    st.sampled_from(
        ["a", "b", "ab", "n", "nb", "u00", "true", "e", '"', 'b"', ", ", "{", "\n", "\\", "1", "a\nb", "ul"]
    ),
    min_size=1,
    max_size=3,
)


@settings(PROPERTY, max_examples=15)
@given(
    st.sampled_from(SCHEMAS),
    _json_words,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["minimal", "any"]),
    st.sampled_from([bytes_vocabulary, characters_vocabulary]),
    st.integers(0, 1 << 30).map(random.Random),
)
def test_in_json_neither_decoded_strings_nor_the_raw_text_hold_a_word(
    schema: Any,
    words: list[str],
    case_sensitive: bool,
    whole_words: bool,
    escapes: Any,
    make: Callable[[], Vocabulary],
    rng: random.Random,
) -> None:
    vocabulary = make()
    options = GrammarOptions(escapes=escapes)
    banned = {"type": "banned_words", "words": words, "case_sensitive": case_sensitive, "whole_words": whole_words}
    plain = {"type": "json_schema", "schema": schema}
    free = compile_grammar(plain, vocabulary)

    def allowed(text: str) -> bool:
        decoded = [*strings_in(json.loads(text)), text]
        return not any(holds(one, words, case_sensitive, whole_words) for one in decoded)

    sample = [text_of(vocabulary, random_walk(free, rng, longest=12)).decode() for _ in range(6)]
    try:
        fsm = compile_grammar({"type": "all_of", "specifications": [plain, banned]}, vocabulary, options=options)
    except UnsatisfiableError:
        assert not any(map(allowed, sample))
        return
    for text in sample:
        if vocabulary.encode(text.encode()) is not None:
            assert accepts(fsm, text) == allowed(text), text
    for _ in range(6):
        text = text_of(vocabulary, random_walk(fsm, rng, longest=12)).decode()
        assert allowed(text), text
        assert accepts(free, text), text


def test_a_word_that_an_escape_would_spell() -> None:
    specifications = [
        {"type": "json_schema", "schema": {"type": "string"}},
        {"type": "banned_words", "words": ["u0041"]},
    ]
    options = GrammarOptions(escapes="any")
    fsm = compile_grammar({"type": "all_of", "specifications": specifications}, bytes_vocabulary(), options=options)
    assert not accepts(fsm, '"\\u0041"') and accepts(fsm, '"A"')
    assert any("minimal spelling beside banned words" in note for note in fsm.notes)


@pytest.mark.parametrize(
    ("words", "whole_words", "matters"),
    [
        (["darn"], False, False),
        (["tea"], False, False),
        (["null"], False, True),
        (["n"], True, False),
        (["12"], False, True),
        (['"a'], False, True),
        (["bad word"], False, False),
        ([": "], False, True),
    ],
)
def test_most_words_cannot_occur_outside_of_json_strings(words: list[str], whole_words: bool, matters: bool) -> None:
    """Then the row of a string needs no walk of the whole vocabulary: nothing but its strings is restricted."""
    assert matters_outside(banned_words(words, Limits(), whole_words=whole_words), Limits()) == matters


@pytest.mark.parametrize(
    ("words", "pointer"), [(["a", ""], "/words/1"), (["\ud800"], "/words/0"), ([], "/words"), (["a", 1], "/words/1")]
)
def test_words_that_are_none_are_refused_with_their_place(words: list[Any], pointer: str) -> None:
    with pytest.raises(InvalidSpecificationError) as refused:
        compile_grammar({"type": "banned_words", "words": words}, bytes_vocabulary())
    assert refused.value.pointer == pointer


def test_words_of_many_letters_are_bounded() -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices(string.ascii_letters, k=50)) for _ in range(2000)]
    with pytest.raises(LimitExceededError, match="max_regex_states"):
        compile_grammar({"type": "banned_words", "words": words}, bytes_vocabulary())


def test_hundreds_of_words_compile_within_the_budgets() -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices(string.ascii_lowercase, k=8)) for _ in range(300)]
    fsm = compile_grammar({"type": "banned_words", "words": words}, bytes_vocabulary())
    assert not accepts(fsm, f"x{words[7].upper()}x")
    assert accepts(fsm, words[7][:-1])


def test_nothing_is_left_of_a_choice_of_banned_words() -> None:
    specifications = [{"type": "choice", "choices": ["Bad", "BADLY"]}, {"type": "banned_words", "words": ["bad"]}]
    with pytest.raises(GrammarError, match=r"no choice .*`banned_words` count"):
        compile_grammar({"type": "all_of", "specifications": specifications}, bytes_vocabulary())

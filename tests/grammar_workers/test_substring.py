"""Spans of a text, as a specification and in JSON strings, against Python's `in`."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError, UnsatisfiableError
from grammar_workers.matching.examples import draw_examples
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import SMALL, accepts, bytes_vocabulary, random_walk, text_of

TEXTS = st.text(st.sampled_from('aabAB ,.9_éÉ€😀"\\\n\x01ßKs'), max_size=14)
LONG = " ".join(f"Word {number * 7919 % 10_007} of {number}, and É{number % 97}.\n" for number in range(3500))


def folded(text: str) -> str:
    """What is compared where case is ignored: characters keep their places."""
    return "".join(one.casefold() if len(one.casefold()) == 1 else one for one in text)


def spans(text: str, *, whole_words: bool = False, case_sensitive: bool = True) -> set[str]:
    """All spans by definition, folded if case is ignored."""
    places = [
        place
        for place in range(len(text) + 1)
        if not (whole_words and re.fullmatch(r"\w\w", text[max(place - 1, 0) : place + 1]))
    ]
    found = {text[begin:end] for begin in places for end in places if begin <= end}
    return found if case_sensitive else set(map(folded, found))


def substring(text: str, **options: bool) -> dict[str, Any]:
    return {"type": "substring", "text": text, **options}


def in_json(text: str, options: dict[str, bool] | None = None, **keywords: Any) -> dict[str, Any]:
    asked = {"text": text, **options} if options else text
    return {
        "type": "json_schema",
        "schema": {"type": "string", "x-turnstile": {"substring_of": asked}, **keywords},
    }


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def candidates(text: str, others: list[str]) -> set[str]:
    """Spans of a text, and strings that are nearly some."""
    cut = {text[begin:end] for begin in range(len(text) + 1) for end in range(begin, len(text) + 1)}
    near = {one + other for one in [*others, *sorted(cut)[:20]] for other in ("a", " ", "é")}
    return {*cut, *near, *(one.swapcase() for one in cut)}


OPTIONS = st.fixed_dictionaries({}, optional={"whole_words": st.booleans(), "case_sensitive": st.booleans()})


@given(TEXTS, OPTIONS, st.sampled_from(SMALL))
@settings(PROPERTY)
def test_a_text_is_accepted_exactly_when_it_is_a_span(text: str, options: dict[str, bool], make: Any) -> None:
    vocabulary: Vocabulary = make()
    fsm = compile_grammar(substring(text, **options), vocabulary)
    known = spans(text, **options)
    for one in candidates(text, []):
        spelled = one if options.get("case_sensitive", True) else folded(one)
        # Only those letters have another case that the text or its lower and upper case has.
        if spelled == one or one in text or (one.isascii() and text.isascii()):
            can_spell = vocabulary.spellable is None or vocabulary.spellable.issuperset(one)
            assert accepts(fsm, one) == (spelled in known and can_spell), (one, text, options)


@given(TEXTS, OPTIONS, st.integers(0, 3), st.none() | st.integers(0, 5), st.sampled_from(SMALL))
@settings(PROPERTY)
def test_a_json_string_of_some_length_is_accepted_exactly_when_it_is_a_span(
    text: str, options: dict[str, bool], low: int, high: int | None, make: Any
) -> None:
    vocabulary: Vocabulary = make()
    keywords = {"minLength": low, **({} if high is None else {"maxLength": high})}
    most = len(text) if high is None else high
    known = {one for one in spans(text, **options) if low <= len(one) <= most}
    try:
        fsm = compile_grammar(in_json(text, options, **keywords), vocabulary)
    except UnsatisfiableError:
        if vocabulary.spellable is None:
            assert not known
        return
    for one in candidates(text, []):
        spelled = one if options.get("case_sensitive", True) else folded(one)
        if spelled == one or one in text or (one.isascii() and text.isascii()):
            allowed = spelled in known and (vocabulary.spellable is None or accepts_characters(vocabulary, one))
            assert accepts(fsm, quoted(one)) == allowed, (one, text, options, keywords)


def accepts_characters(vocabulary: Vocabulary, text: str) -> bool:
    return vocabulary.spellable is None or vocabulary.spellable.issuperset(quoted(text))


@given(TEXTS, OPTIONS, st.integers(0, 2**32))
@settings(PROPERTY)
def test_no_walk_gets_stuck(text: str, options: dict[str, bool], seed: int) -> None:
    vocabulary = bytes_vocabulary()
    for specification in (substring(text, **options), in_json(text, options, maxLength=4)):
        fsm = compile_grammar(specification, vocabulary)
        loaded = TokenFSM.from_bytes(fsm.to_bytes(), vocabulary)
        output = text_of(vocabulary, random_walk(loaded, random.Random(seed))).decode()
        found = json.loads(output) if specification["type"] == "json_schema" else output
        if options.get("case_sensitive", True):
            assert found in text
        else:
            assert folded(found) in folded(text)


@pytest.mark.parametrize(
    ("specification", "valid", "invalid"),
    [
        (
            {
                "type": "all_of",
                "specifications": [substring("a red or a green one"), {"type": "regex", "pattern": ".*o.*"}],
            },
            ["or a", "green one"],
            ["red", "two"],
        ),
        (
            {"type": "all_of", "specifications": [substring("ab bc"), {"type": "banned_words", "words": ["b"]}]},
            ["a", "c", " ", ""],
            ["ab", "bc", "ca"],
        ),
        (
            {
                "type": "structural_tag",
                "triggers": ["<q>"],
                "tags": [{"begin": "<q>", "content": substring("one two", whole_words=True), "end": "</q>"}],
            },
            ["see <q>two</q>", "<q>one two</q>"],
            ["<q>wo</q>", "<q>three</q>"],
        ),
        (in_json("abcabd", pattern="^a"), ['"ab"', '"abca"'], ['"b"', '""', '"ac"']),
        (in_json("abcabd", enum=["ab", "ac", "d"]), ['"ab"', '"d"'], ['"ac"', '"a"']),
        (
            {"type": "json_schema", "schema": {"type": "string", "not": {"x-turnstile": {"substring_of": "ab"}}}},
            ['"ba"', '"c"', '"aab"'],
            ['"a"', '"ab"', '""'],
        ),
        (
            {
                "type": "json_schema",
                "schema": {
                    "type": "array",
                    "uniqueItems": True,
                    "items": {"type": ["string", "null"], "minLength": 1, "x-turnstile": {"substring_of": "aba"}},
                },
            },
            ['["a", "ab", null]', "[]"],
            ['["a", "a"]', '[""]', '["aa"]'],
        ),
        (
            {
                "type": "json_schema",
                "schema": {
                    "type": "object",
                    "propertyNames": {"x-turnstile": {"substring_of": "key word"}},
                    "additionalProperties": {"type": "integer"},
                },
            },
            ['{"key": 1}', '{"y w": 1}'],
            ['{"keys": 1}'],
        ),
    ],
)
def test_spans_go_together_with_other_conditions(
    specification: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    fsm = compile_grammar(specification, bytes_vocabulary())
    for text in valid:
        assert accepts(fsm, text), text
    for text in invalid:
        assert not accepts(fsm, text), text


@pytest.mark.parametrize("options", [{}, {"whole_words": True}, {"case_sensitive": False}])
def test_a_text_of_100_kb_is_within_all_limits(options: dict[str, bool]) -> None:
    assert len(LONG.encode()) > 100_000
    words = options.get("whole_words", False)
    for specification in (substring(LONG, **options), in_json(LONG, options, minLength=1, maxLength=500)):
        fsm = compile_grammar(specification, bytes_vocabulary())
        for example in draw_examples(fsm, 3):
            text = example.decode()
            text = text if specification["type"] == "substring" else json.loads(text)
            assert folded(text) in folded(LONG)
        wrap = (lambda text: text) if specification["type"] == "substring" else quoted
        assert accepts(fsm, wrap(LONG[1000:1200] if not words else "of 7, and"))
        assert not accepts(fsm, wrap("Word of"))
        assert accepts(fsm, wrap("ord ")) is not words


def test_a_long_text_beside_another_condition_is_rejected_with_its_limit() -> None:
    for specification in (
        in_json(LONG, pattern="^W"),
        {"type": "all_of", "specifications": [substring(LONG), {"type": "regex", "pattern": "W.*"}]},
    ):
        with pytest.raises(LimitExceededError, match=r"too long beside other conditions.*max_regex_states"):
            compile_grammar(specification, bytes_vocabulary())
    with pytest.raises(LimitExceededError, match="more than 131072"):
        compile_grammar(substring("a" * 131_073), bytes_vocabulary())


@pytest.mark.parametrize(
    ("extension", "pointer"),
    [
        ({"substring_of": 1}, "/x-turnstile/substring_of"),
        ({"substring": "a"}, "/x-turnstile"),
        ({"substring_of": {}}, "/x-turnstile/substring_of/text"),
        ({"substring_of": {"text": 1}}, "/x-turnstile/substring_of/text"),
        ({"substring_of": {"text": "a", "whole_words": 1}}, "/x-turnstile/substring_of/whole_words"),
        ({"substring_of": {"text": "a", "words": True}}, "/x-turnstile/substring_of/words"),
        ({"substring_of": "a\ud800"}, "/x-turnstile/substring_of"),
        ({"substring_of": "a", "substring": "b"}, "/x-turnstile/substring"),
    ],
)
def test_a_malformed_extension_is_rejected_at_its_place(extension: Any, pointer: str) -> None:
    schema = {"type": "object", "properties": {"quote": {"type": "string", "x-turnstile": extension}}}
    with pytest.raises(InvalidSpecificationError) as error:
        compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    assert error.value.pointer == "/properties/quote" + pointer


def test_a_surrogate_is_no_text() -> None:
    with pytest.raises(GrammarError, match="surrogate") as error:
        compile_grammar(substring("a\ud800"), bytes_vocabulary())
    assert error.value.pointer == "/text"

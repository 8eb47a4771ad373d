"""all_of: the texts that every specification allows, no more and no fewer, and no dead ends on the way."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import GrammarError, GrammarOptions, Limits, Vocabulary, compile_grammar
from grammar_workers.errors import LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    characters_vocabulary,
    random_walk,
    text_of,
    visited_states,
)


def all_of(*specifications: dict[str, Any]) -> dict[str, Any]:
    return {"type": "all_of", "specifications": list(specifications)}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": value}


def regex(pattern: str) -> dict[str, Any]:
    return {"type": "regex", "pattern": pattern}


SCHEMAS: list[Any] = [
    {"type": "integer"},
    {"type": "number", "minimum": -5, "maximum": 30},
    {"type": "string", "maxLength": 4},
    {"type": "string", "minLength": 3, "pattern": "^[ab]"},
    {"enum": ["a", "ab", 1, 12, None, [1, 2], {"a": 1}]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"type": "boolean"}},
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"type": "boolean"}}, "additionalProperties": False},
    {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "null"}}]},
]
PATTERNS = [
    r"[^1]*",
    r".{0,12}",
    r".{3}|.{7}|.{9,11}",
    r"[^,]*(,[^,]*){1,2}",
    r'[^"]*("[^"]*"[^"]*){2}',
    r"\[[^\n\r]*\]|\{[^\n\r]*\}",
    r".*[ab2].*",
    r"(..)*",
    r"[^e]*",
    r"[\[\]{}0-9,]*",
]
VOCABULARIES: list[Callable[[], Vocabulary]] = [bytes_vocabulary, characters_vocabulary]


@settings(PROPERTY, max_examples=20)
@given(
    st.sampled_from(SCHEMAS),
    st.sampled_from(PATTERNS),
    st.sampled_from(VOCABULARIES),
    st.sampled_from([GrammarOptions(), GrammarOptions(whitespace="flexible", whitespace_limit=2)]),
    st.integers(0, 1 << 30).map(random.Random),
)
def test_json_and_regex(
    value: Any, pattern: str, make: Callable[[], Vocabulary], options: GrammarOptions, rng: random.Random
) -> None:
    vocabulary = make()
    free = compile_grammar(schema(value), vocabulary, options=options)
    sample = [text_of(vocabulary, random_walk(free, rng, longest=8)).decode() for _ in range(6)]
    # A dot matches a carriage return in Python only, so it is not generated.
    matches = {text: re.fullmatch(pattern.replace(".", r"[^\n\r\u2028\u2029]"), text) is not None for text in sample}
    try:
        both = compile_grammar(all_of(schema(value), regex(pattern)), vocabulary, options=options)
    except UnsatisfiableError:
        assert not any(matches.values())
        return
    for text, matched in matches.items():
        if vocabulary.encode(text.encode()) is not None:
            assert accepts(both, text) == matched, text
    for state in visited_states(both, rng, walks=1, limit=8):
        allowed = both.allowed_tokens(state)
        assert allowed == {token for token in range(vocabulary.size) if both.next_state(state, token) >= 0}
        assert allowed
    for _ in range(5):
        text = text_of(vocabulary, random_walk(both, rng, longest=8)).decode()
        assert re.fullmatch(pattern, text), text
        assert accepts(free, text), text
        jsonschema.validate(json.loads(text), value)


@settings(PROPERTY, max_examples=15)
@given(
    st.lists(st.sampled_from(SCHEMAS), min_size=2, max_size=3, unique_by=json.dumps),
    st.integers(0, 1 << 30).map(random.Random),
)
def test_json_and_json(values: list[Any], rng: random.Random) -> None:
    vocabulary = bytes_vocabulary()
    validators = [jsonschema.Draft202012Validator(value) for value in values]
    try:
        both = compile_grammar(all_of(*map(schema, values)), vocabulary)
    except UnsatisfiableError:
        return
    for _ in range(8):
        text = text_of(vocabulary, random_walk(both, rng, longest=10)).decode()
        assert all(validator.is_valid(json.loads(text)) for validator in validators), text
    # Each document keeps its own definitions: both use `#`.
    for value in values:
        alone = compile_grammar(schema(value), vocabulary)
        text = text_of(vocabulary, random_walk(alone, rng, longest=10)).decode()
        assert accepts(both, text) <= all(validator.is_valid(json.loads(text)) for validator in validators)


def test_regular_kinds_together() -> None:
    """A choice is filtered, whatever its size; everything else is a product."""
    choices = {"type": "choice", "choices": [f"item {number}" for number in range(10_000)]}
    fsm = compile_grammar(
        all_of(choices, all_of(regex(".*7.*"), {"type": "banned_words", "words": ["3"]})), bytes_vocabulary()
    )
    assert accepts(fsm, "item 170")
    assert not accepts(fsm, "item 173")
    assert not accepts(fsm, "item 170000")
    rng = random.Random(1)
    both = compile_grammar(all_of(regex("(ab|c)*"), regex(".{4}"), regex(".*cc.*")), bytes_vocabulary())
    found = {text_of(both.vocabulary, random_walk(both, rng)).decode() for _ in range(60)}
    assert found == {"abcc", "ccab", "cccc"}


def test_a_recursive_grammar_and_a_regular_one() -> None:
    grammar = {"type": "grammar", "syntax": "gbnf", "text": 'root ::= "(" root ")" | [a-c]+'}
    fsm = compile_grammar(
        all_of(grammar, regex(r".{3,5}"), {"type": "banned_words", "words": ["B"]}), bytes_vocabulary()
    )
    assert accepts(fsm, "(a)") and accepts(fsm, "((c))") and accepts(fsm, "(ac)")
    assert not any(accepts(fsm, text) for text in ["(b)", "a", "(((a)))", "(a"])


def test_a_grammar_without_recursion_is_regular() -> None:
    grammar = {"type": "grammar", "syntax": "gbnf", "text": 'root ::= "[" [0-9]+ ("," [0-9]+)? "]"'}
    fsm = compile_grammar(all_of(schema({"type": "array", "items": {"type": "integer"}}), grammar), bytes_vocabulary())
    assert accepts(fsm, "[12]")
    assert not accepts(fsm, "[1, 2]")  # The compact spelling has a space after the comma, and the grammar has none.
    assert not accepts(fsm, "[01]")


@pytest.mark.parametrize(
    ("specification", "error", "pointer"),
    [
        (all_of(schema(True), all_of(regex("a"), regex("("))), GrammarError, "/specifications/1/specifications/1"),
        (all_of(schema({"type": "x"}), regex("a")), GrammarError, "/specifications/0/schema/type"),
        (
            all_of(regex("a"), schema({"items": {"minimum": "x"}})),
            GrammarError,
            "/specifications/1/schema/items/minimum",
        ),
        (all_of(regex("a"), {"type": "banned_words", "words": ["b", ""]}), GrammarError, "/specifications/1/words/1"),
        (
            all_of({"type": "grammar", "syntax": "gbnf", "text": 'root ::= "(" root ")" | "a"'}, schema(True)),
            UnsupportedFeatureError,
            "/specifications/1",
        ),
    ],
)
def test_errors_name_the_specification(specification: dict[str, Any], error: type[GrammarError], pointer: str) -> None:
    with pytest.raises(error) as refused:
        compile_grammar(specification, bytes_vocabulary())
    assert refused.value.pointer == pointer


def test_what_nothing_matches_is_an_error() -> None:
    for impossible in (all_of(regex("a+"), regex("b+")), all_of(schema({"type": "integer"}), regex("[a-c]*"))):
        with pytest.raises(UnsatisfiableError):
            compile_grammar(impossible, bytes_vocabulary())


def test_a_product_that_would_be_too_large_names_its_limit() -> None:
    counted = schema({"type": "array", "items": {"type": "string"}, "maxItems": 100_000})
    with pytest.raises(LimitExceededError, match="max_steps"):
        compile_grammar(all_of(counted, regex(".*(a.{9})+.*")), bytes_vocabulary(), limits=Limits(max_steps=200_000))

"""Examples are complete members of the language, the shortest comes first, and equal seeds give equal ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from grammar_workers import Vocabulary, compile_grammar
from grammar_workers.matching.examples import draw_examples
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.specifications import SPECIFICATIONS, compile_or_assume
from tests.grammar_workers.vocabularies import SMALL, accepts, bytes_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "when": {"type": "string", "format": "date"},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return bytes_vocabulary()


@settings(PROPERTY, max_examples=30)
@given(specification=SPECIFICATIONS, make=st.sampled_from(SMALL), seed=st.integers(0, 99))
def test_examples_are_members(specification: dict[str, Any], make: Any, seed: int) -> None:
    fsm = compile_or_assume(specification, make())
    examples = list(draw_examples(fsm, 3, seed=seed, max_tokens=12))
    assert 1 <= len(examples) <= 3
    assert len(set(examples)) == len(examples)
    assert all(accepts(fsm, example) for example in examples)
    assert len(examples[0]) == min(map(len, examples))
    assert list(draw_examples(fsm, 3, seed=seed, max_tokens=12)) == examples


def test_examples_of_a_schema_are_valid_and_differ(vocabulary: Vocabulary) -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": SCHEMA}, vocabulary)
    examples = list(draw_examples(fsm, 20))
    assert len(examples) == 20
    for example in examples:
        Draft202012Validator(SCHEMA).validate(json.loads(example))
    named = [name for example in examples for name in json.loads(example)]
    assert set(named) == {"name", "tags", "when"}


def test_a_small_language_has_fewer_examples(vocabulary: Vocabulary) -> None:
    fsm = compile_grammar({"type": "choice", "choices": ["yes", "no"]}, vocabulary)
    assert list(draw_examples(fsm, 5)) == [b"no", b"yes"]


def test_long_languages_are_closed_in_time(vocabulary: Vocabulary) -> None:
    fsm = compile_grammar({"type": "grammar", "syntax": "gbnf", "text": 'root ::= "(" root root ")" | "x"'}, vocabulary)
    assert all(accepts(fsm, example) for example in draw_examples(fsm, 5, max_tokens=200))

"""`uniqueItems` over listed values: any number where it stands alone, few where alternatives depend on it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from grammar_workers import GrammarOptions, Limits, TokenFSM, compile_grammar
from grammar_workers.errors import UnsupportedFeatureError
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, text_of

FEW_STEPS = 200_000
"""Of the budget of 4,000,000 steps. The sets of ten values take more than all of it."""


def compiled(schema: Any, steps: int = Limits().max_steps) -> TokenFSM:
    specification = {"type": "json_schema", "schema": schema}
    return compile_grammar(specification, bytes_vocabulary(), limits=Limits(max_steps=steps))


def unique(count: int, **keywords: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"enum": list(range(count))}, "uniqueItems": True, **keywords}


@pytest.mark.parametrize("count", [1, 5, 6, 10, 16, 64])
def test_any_number_of_listed_values_takes_few_steps_where_it_stands_alone(count: int) -> None:
    every = list(range(count))
    for least in (0, min(count, 16)):
        schema = unique(count, minItems=least)
        fsm, judge = compiled(schema, FEW_STEPS), jsonschema.Draft202012Validator(schema)
        for value in ([], [0], every[::-1], [*every, 0], every[: least - 1], [0, 0], [count]):
            assert accepts(fsm, json.dumps(value)) == judge.is_valid(value), (least, value)


@pytest.mark.parametrize(
    "around",
    [
        lambda one: {"not": one, "type": "array", "maxItems": 4},
        lambda one: {"anyOf": [one, {"type": "array", "items": {"type": "integer"}, "maxItems": 1}]},
        lambda one: {"oneOf": [one, {"type": "array", "items": {"const": 1}}]},
        lambda one: {**one, "contains": {"const": 1}},
        lambda one: {**one, "contains": {"const": 1}, "minItems": 2},
    ],
)
@pytest.mark.parametrize(("count", "most"), [(3, None), (9, None), (16, 2)])
def test_few_sets_of_listed_values_decide_alternatives(around: Any, count: int, most: int | None) -> None:
    schema = around(unique(count) if most is None else unique(count, maxItems=most))
    fsm, judge = compiled(schema), jsonschema.Draft202012Validator(schema)
    for length in (0, 2, 3):
        for value in itertools.product(range(3), repeat=length):
            assert accepts(fsm, json.dumps(value)) == judge.is_valid(list(value)), value


def test_items_of_a_prefix_that_are_used_up_by_others_are_found() -> None:
    schema = {"type": "array", "prefixItems": [{"enum": [1, 2]}, {"const": 1}], "items": False, "minItems": 2}
    fsm = compiled({**schema, "uniqueItems": True})
    assert accepts(fsm, "[2, 1]")
    assert not accepts(fsm, "[1, 1]")


@pytest.mark.parametrize("items", [{"type": "integer", "minimum": 0, "maximum": 63}, {"enum": list(range(64))}])
def test_an_array_of_all_numbers_never_ends_a_generation(items: dict[str, Any]) -> None:
    """The last numbers that are left have many beginnings in common with those that have been used up."""
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": 64}
    fsm, judge = compiled(schema), jsonschema.Draft202012Validator(schema)
    state = fsm.initial_state
    text = json.dumps(list(range(63, -1, -1))).encode()
    for place, byte in enumerate(text):
        if place in (1, 120, 218):
            rest = text_of(fsm.vocabulary, fsm.shortest_completion(state))
            assert judge.is_valid(json.loads(text[:place] + rest))
        assert byte in fsm.allowed_tokens(state)
        state = fsm.next_state(state, byte)
    assert tuple(fsm.allowed_tokens(state)) == fsm.vocabulary.eos_token_ids


NAMES = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


def test_an_array_that_decides_between_alternatives_is_named() -> None:
    """Of an object that declares nothing, the array may be any; whether it is unique decides about `oneOf`."""
    schema = {
        "oneOf": [
            {"type": "object", "properties": {"names": NAMES}, "required": ["names"]},
            {"type": "object", "properties": {"other": {"type": "integer"}}, "required": ["other"]},
        ]
    }
    with pytest.raises(UnsupportedFeatureError, match="decides between alternatives") as caught:
        compiled(schema)
    assert caught.value.pointer == "/oneOf/0/properties/names/uniqueItems"


@pytest.mark.parametrize(
    "beside",
    [
        {"not": {"contains": {"const": 0}}},
        {"not": {"minItems": 2}},
        {"not": {"const": []}},
        {"anyOf": [{"minItems": 1}, {"contains": {"const": 0}}]},
        {"oneOf": [{"minItems": 2}, {"maxItems": 1}]},
        {"if": {"minItems": 2}, "then": {"contains": {"const": 0}}},
    ],
)
def test_listed_values_beside_what_no_shape_says(beside: Any) -> None:
    schema = unique(3, **beside)
    fsm, judge = compiled(schema), jsonschema.Draft202012Validator(schema)
    for length in range(4):
        for value in itertools.product(range(3), repeat=length):
            assert accepts(fsm, json.dumps(value)) == judge.is_valid(list(value)), value


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        ({"properties": {"a": NAMES, "b": {"not": NAMES}}}, "/properties/b/not/uniqueItems", "decides between"),
        ({"properties": {"a": NAMES, "b": {"anyOf": [NAMES, {"minItems": 2}]}}}, "/properties/b/anyOf/0", "decides"),
        ({"items": {"enum": [1, 2]}, "not": {"uniqueItems": True}}, "/not/uniqueItems", "in the same subschema"),
        ({"prefixItems": [{"const": 1}, {"const": 1}], **NAMES, "minItems": 3}, "/uniqueItems", "another item is left"),
    ],
)
def test_the_array_and_the_reason_are_named(schema: Any, pointer: str, reason: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=reason) as caught:
        compiled(schema)
    assert caught.value.pointer is not None and caught.value.pointer.startswith(pointer)


def test_beside_a_restriction_of_the_whole_text_that_is_the_reason() -> None:
    parts = [{"type": "json_schema", "schema": NAMES}, {"type": "regex", "pattern": "[^z]*"}]
    with pytest.raises(UnsupportedFeatureError, match="beside a specification that restricts the whole text") as caught:
        compile_grammar({"type": "all_of", "specifications": parts}, bytes_vocabulary(), options=GrammarOptions())
    assert caught.value.pointer == "/specifications/0/schema/uniqueItems"

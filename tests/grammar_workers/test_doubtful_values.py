"""Values of which one text does not tell what they are: numbers spelled unusually, and objects that repeat a name.

The law: a text is accepted only if `jsonschema` accepts the value that Python's parser makes of it.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar_workers import GrammarError, GrammarOptions, TokenFSM, compile_grammar
from grammar_workers.errors import UnsupportedFeatureError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

SPELLINGS = (
    "0",
    "-0",
    "0.0",
    "-0.00",
    "1",
    "1.0",
    "1.00",
    "-1",
    "-1.0",
    "0.5",
    "0.50",
    "0.05",
    "10",
    "10.0",
    "100",
    "1e1",
)
_numbers = st.sampled_from([0, 1, 0.5, 1.0, 10, -1, 100.0])
_about_numbers = st.one_of(
    _numbers.map(lambda value: {"const": value}),
    st.lists(_numbers, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.just({"type": "integer"}),
    _numbers.map(lambda value: {"minimum": value}),
    st.just({"multipleOf": 5}),
)
_names = st.sampled_from(["x", "y", "declared"])
_about_objects = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "properties": st.just({"declared": True}),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
            "additionalProperties": st.sampled_from([{"const": 0}, {"const": 1}, False]),
            "patternProperties": st.sampled_from([{"^x": {"const": 0}}, {"x|y": {"const": 1}, "^x": {"enum": [0, 1]}}]),
        },
    ),
)


def _combined(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        parts.map(lambda part: {"not": part}),
        st.lists(parts, min_size=2, max_size=3).map(lambda options: {"oneOf": options}),
        st.lists(parts, min_size=2, max_size=3).map(lambda options: {"anyOf": options}),
        st.tuples(parts, parts, parts).map(lambda three: {"if": three[0], "then": three[1], "else": three[2]}),
    )


def nested(part: Any) -> dict[str, Any]:
    """Where the value's schema is only asked about, below a property."""
    return {"properties": {"a": True}, "not": {"properties": {"a": part}}, "required": ["a"]}


def compiled(schema: Any, options: GrammarOptions = GrammarOptions()) -> TokenFSM | None:  # noqa: B008 - immutable
    try:
        return compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary(), options=options)
    except GrammarError:
        return None


@PROPERTY
@given(_combined(_about_numbers | _combined(_about_numbers)), st.sampled_from(["plain", "any"]), st.booleans())
def test_a_number_is_its_value_however_it_is_spelled(schema: Any, spelling: Any, is_nested: bool) -> None:
    schema = nested(schema) if is_nested else schema
    fsm = compiled(schema, GrammarOptions(number_spelling=spelling))
    validator = jsonschema.Draft202012Validator(schema)
    for number in SPELLINGS if fsm is not None else ():
        text = f'{{"a": {number}}}' if is_nested else number
        assert not accepts(fsm, text) or validator.is_valid(json.loads(text)), (schema, text)


@PROPERTY
@given(_combined(_about_objects | _combined(_about_objects)), st.sampled_from(["declared", "any"]), st.randoms())
def test_names_that_are_not_declared_may_repeat(part: Any, order: Any, rng: random.Random) -> None:
    schema = nested(part)
    fsm = compiled(schema, GrammarOptions(property_order=order))
    validator = jsonschema.Draft202012Validator(schema)
    for _ in range(40 if fsm is not None else 0):
        names = ["declared"] * rng.randrange(2) + rng.choices(["x", "y", "z", "xy"], k=rng.randrange(4))
        text = '{"a": {' + ", ".join(f'"{name}": {rng.randrange(2)}' for name in names) + "}}"
        assert not accepts(fsm, text) or validator.is_valid(json.loads(text)), (schema, text)


def test_what_is_certain_is_still_accepted() -> None:
    fsm = compiled(nested({"additionalProperties": {"const": 0}}))
    assert fsm is not None
    assert accepts(fsm, '{"a": {"x": 1}}')
    assert accepts(fsm, '{"a": {"x": 0, "y": 1, "z": 1}}')
    assert not accepts(fsm, '{"a": {"x": 1, "x": 0}}')
    assert not accepts(fsm, '{"a": {"x": 0}}')


def test_where_names_are_counted_none_repeats() -> None:
    fsm = compiled({"properties": {"a": True}, "not": {"properties": {"a": {"maxProperties": 1}}}})
    assert fsm is not None
    assert accepts(fsm, '{"a": {"x": 0, "y": 0}}')
    assert not accepts(fsm, '{"a": {"x": 0, "x": 0}}')


@pytest.mark.parametrize(
    "schema",
    [
        {"required": ["é"], "patternProperties": {r"^\W$": {"type": "number"}}},
        {"properties": {"é": True, "a": True}, "patternProperties": {r"^\W$": False}},
        {"properties": {"é": True}, "not": {"patternProperties": {r"^\W$": {"type": "number"}}}},
        {"not": {"propertyNames": {"pattern": r"^\W$"}}, "minProperties": 1},
        {"properties": {"é": True}, "propertyNames": {"not": {"pattern": r"^\w$"}}},
    ],
)
def test_a_name_on_which_the_dialects_disagree_is_not_generated(schema: Any) -> None:
    """`é` is a letter in Python and none in ECMA-262 (with the flag u)."""
    try:
        fsm = compile_grammar({"type": "json_schema", "schema": {"type": "object", **schema}}, bytes_vocabulary())
    except UnsupportedFeatureError as error:
        assert "disagree" in error.message
        return
    for value in ("0", "false", '"x"'):
        assert not accepts(fsm, f'{{"é": {value}}}')


def test_a_declared_name_that_is_left_out_is_noted() -> None:
    schema = {"type": "object", "properties": {"é": True}, "patternProperties": {r"^\W$": {"type": "number"}}}
    (note,) = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary()).notes
    assert "xe9" in note and "disagree" in note


@pytest.mark.parametrize(
    ("schema", "certain", "doubtful"),
    [
        ({"oneOf": [{}, {"additionalProperties": {"type": "integer"}}]}, '{"0": ""}', '{"0": "", "1": 0}'),
        ({"not": {"patternProperties": {"^b": {"type": "integer"}}}}, '{"a": 0, "b": ""}', '{"b": "", "bb": 0}'),
    ],
)
@pytest.mark.parametrize("order", ["declared", "any"])
def test_objects_that_are_left_out_are_noted(schema: Any, certain: str, doubtful: str, order: Any) -> None:
    fsm = compiled(schema, GrammarOptions(property_order=order))
    assert fsm is not None and accepts(fsm, certain) and not accepts(fsm, doubtful)
    assert any("may repeat a name" in note for note in fsm.notes)


def test_a_combination_that_leaves_only_doubtful_objects_is_not_called_unsatisfiable() -> None:
    schema = {"type": "object", "properties": {"": True}, "minProperties": 2}
    banned = {"type": "banned_words", "words": ['"'], "whole_words": True}
    specification = {"type": "all_of", "specifications": [banned, {"type": "json_schema", "schema": schema}]}
    with pytest.raises(UnsupportedFeatureError, match="may repeat a name"):
        compile_grammar(specification, bytes_vocabulary())

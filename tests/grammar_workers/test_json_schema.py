"""JSON Schema against `jsonschema`: what is generated is valid, and what is valid is not forbidden."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.vocabularies import sentencepiece_vocabulary, tekken_vocabulary
from grammar_workers import GrammarOptions, TokenFSM, compile_grammar
from grammar_workers.errors import LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.schemas import Schema, is_valid, orders, schemas, values_near, write
from tests.grammar_workers.vocabularies import (
    SMALL,
    accepts,
    bytes_vocabulary,
    random_walk,
    text_of,
)

FLEXIBLE = GrammarOptions(whitespace="flexible")
ANY_ORDER = GrammarOptions(property_order="any")
OPTIONS = [
    GrammarOptions(whitespace=whitespace, property_order=property_order)
    for whitespace in ("compact", "flexible")
    for property_order in ("declared", "any")
]


def compiled(schema: Schema, options: GrammarOptions = GrammarOptions()) -> TokenFSM:  # noqa: B008 - immutable
    return compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary(), options=options)


@settings(PROPERTY, max_examples=100)
@given(
    schema=schemas(),
    make=st.sampled_from([*SMALL, tekken_vocabulary, sentencepiece_vocabulary]),
    options=st.sampled_from(OPTIONS),
    rng=st.integers(0, 1 << 30).map(random.Random),
)
def test_whatever_is_generated_is_valid(schema: Schema, make: Any, options: GrammarOptions, rng: random.Random) -> None:
    try:
        fsm = compile_grammar({"type": "json_schema", "schema": schema}, make(), options=options)
    except UnsatisfiableError:
        assume(False)
    for _ in range(6):
        tokens = random_walk(fsm, rng, longest=rng.randrange(25))
        text = text_of(fsm.vocabulary, tokens).decode()
        assert is_valid(schema, text), text


@st.composite
def schemas_and_values(draw: st.DrawFn, *, wild: bool = False) -> tuple[Schema, list[Any]]:
    schema = draw(schemas(wild=wild))
    return schema, draw(st.lists(values_near(schema, schema), min_size=4, max_size=4))


@settings(PROPERTY, max_examples=200)
@given(schemas_and_values())
def test_a_value_is_accepted_exactly_when_it_is_valid(case: tuple[Schema, list[Any]]) -> None:
    """In some order of its properties: that order is a policy, validity is not."""
    schema, values = case
    try:
        fsm = compiled(schema)
    except UnsatisfiableError:
        assert not any(is_valid(schema, write(value)) for value in values)
        return
    for value in values:
        accepted = any(accepts(fsm, write(ordered)) for ordered in orders(value))
        assert accepted == is_valid(schema, write(value)), write(value)


@settings(PROPERTY, max_examples=100)
@given(schemas_and_values(wild=True), st.integers(0, 1 << 30).map(random.Random))
def test_any_keywords_together_are_honoured_exactly_or_refused(
    case: tuple[Schema, list[Any]], rng: random.Random
) -> None:
    """Keywords that interact, in any combination: both laws at once, for all that is not refused."""
    schema, values = case
    try:
        fsm = compiled(schema)
    except (UnsupportedFeatureError, LimitExceededError):
        return
    except UnsatisfiableError:
        assert not any(is_valid(schema, write(value)) for value in values)
        return
    for _ in range(4):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng, longest=rng.randrange(25))).decode()
        assert is_valid(schema, text), text
    for value in values:
        accepted = any(accepts(fsm, write(ordered)) for ordered in orders(value))
        assert accepted == is_valid(schema, write(value)), write(value)


@settings(PROPERTY, max_examples=100)
@given(schemas_and_values(wild=True), st.integers(0, 1 << 30).map(random.Random))
def test_properties_come_in_any_order(case: tuple[Schema, list[Any]], rng: random.Random) -> None:
    """Both laws at once, for every order of the properties."""
    schema, values = case
    try:
        fsm = compiled(schema, ANY_ORDER)
    except (UnsupportedFeatureError, LimitExceededError):
        return
    except UnsatisfiableError:
        assert not any(is_valid(schema, write(value)) for value in values)
        return
    for _ in range(4):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng, longest=rng.randrange(25))).decode()
        assert is_valid(schema, text), text
    assume(not any("declared order" in note for note in fsm.notes))
    for value in values:
        expected = is_valid(schema, write(value))
        for ordered in orders(value):
            assert accepts(fsm, write(ordered)) == expected, write(ordered)


@settings(PROPERTY, max_examples=40)
@given(schemas_and_values(), st.randoms(use_true_random=False))
def test_white_space_changes_nothing_but_white_space(case: tuple[Schema, list[Any]], rng: random.Random) -> None:
    schema, values = case
    try:
        compact, flexible = compiled(schema), compiled(schema, FLEXIBLE)
    except UnsatisfiableError:
        assume(False)
    for value in values:
        text = write(value)
        assert accepts(flexible, text) == accepts(compact, text), text
        assert accepts(flexible, _spaced(value, rng)) == accepts(compact, text), text


def _spaced(value: Any, rng: random.Random) -> str:
    """JSON with random white space, at most eight characters in a gap, none around the whole."""

    def gap() -> str:
        return "".join(rng.choices(" \t\r\n", k=rng.choice([0, 0, 1, 2, 8])))

    if isinstance(value, dict):
        parts = [f"{gap()}{write(name)}{gap()}:{gap()}{_spaced(part, rng)}{gap()}" for name, part in value.items()]
        return "{" + (",".join(parts) or gap()) + "}"
    if isinstance(value, list):
        return "[" + (",".join(f"{gap()}{_spaced(part, rng)}{gap()}" for part in value) or gap()) + "]"
    return write(value)


# -- options and depth ------------------------------------------------------------------------------------------


def test_ignored_keywords_are_noted() -> None:
    fsm = compiled({"type": "object", "x-order": 3, "properties": {"a": {"widget": "text", "title": "A"}}})
    notes = "\n".join(fsm.notes)
    assert "x-order" in notes
    assert "widget" in notes
    assert "/properties/a" in notes
    assert "title" not in notes
    assert compiled({"type": "object", "properties": {}}).notes == []


def test_objects_close_by_option() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": True}}}}
    closed = compiled(schema, GrammarOptions(additional_properties=False))
    assert accepts(closed, '{"a": {"b": 1}}')
    assert not accepts(closed, '{"z": 1}')
    assert not accepts(closed, '{"a": {"z": 1}}')
    assert accepts(compiled(schema), '{"z": 1}')
    explicit = compiled({**schema, "additionalProperties": True}, GrammarOptions(additional_properties=False))
    assert accepts(explicit, '{"z": 1}')
    assert not accepts(explicit, '{"a": {"z": 1}}')


@pytest.mark.parametrize("opening", ["[", '{"a": '])
def test_free_values_nest_to_64(opening: str) -> None:
    closing = {"[": "]", '{"a": ': "}"}[opening]
    fsm = compiled(True)
    assert accepts(fsm, opening * 63 + "1" + closing * 63)
    assert accepts(fsm, opening * 63 + {"[": "[]", '{"a": ': "{}"}[opening] + closing * 63)
    assert not accepts(fsm, opening * 65 + "1" + closing * 65)


def test_described_values_nest_as_deep_as_they_like() -> None:
    fsm = compiled({"type": "array", "items": {"$ref": "#"}})
    assert accepts(fsm, "[" * 500 + "]" * 500)


@pytest.mark.parametrize("limit", [1, 3, 64])
def test_white_space_is_bounded(limit: int) -> None:
    options = GrammarOptions(whitespace="flexible", whitespace_limit=limit)
    fsm = compiled({"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}, options)
    for filled in (
        '{%s"a": []}', '{"a"%s: []}', '{"a":%s[]}', '{"a": [%s]}', '{"a": [1%s]}', '{"a": [1,%s1]}', '{"a": []%s}',
        '{"a": []%s,"b": 1}', '{"a": [],%s"b": 1}', '{"a": [{%s}]}', '{"a": ["x"%s]}', '{"a": [null%s,2]}',
    ):  # fmt: skip
        for space in (" ", "\n", "\t", "\r"):
            assert accepts(fsm, filled % (space * limit)), filled
            assert not accepts(fsm, filled % (space * (limit + 1))), filled
        assert not accepts(fsm, filled % "\v")
    assert not accepts(fsm, ' {"a": []}')
    assert not accepts(fsm, '{"a": []} ')
    assert accepts(fsm, '{"a":[]}')


def test_any_object() -> None:
    fsm = compile_grammar({"type": "json_object"}, bytes_vocabulary())
    assert accepts(fsm, '{"a": [1, {"b": null}], "c": "d"}')
    for text in ("[]", "1", '"a"', "null"):
        assert not accepts(fsm, text)

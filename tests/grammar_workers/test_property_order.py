"""`property_order: any`: every order, no name twice, and no dead end whatever has been seen."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from grammar_workers import GrammarOptions, Limits, TokenFSM, compile_grammar
from tests.grammar_workers.schemas import is_valid, write
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, random_walk, text_of

ANY_ORDER = GrammarOptions(property_order="any")
KEPT = "declared order"
"""What notes say of an object whose properties keep their order."""


def compiled(schema: Any, options: GrammarOptions = ANY_ORDER, limits: Limits = Limits()) -> TokenFSM:  # noqa: B008
    specification = {"type": "json_schema", "schema": schema}
    return compile_grammar(specification, bytes_vocabulary(), options=options, limits=limits)


def tagged(tag: str, **properties: Any) -> dict[str, Any]:
    """An alternative of a tagged union; all of its properties are required."""
    return {"type": "object", "properties": {"tag": {"const": tag}, **properties}, "required": ["tag", *properties]}


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "optional": {"type": "object", "properties": {"a": INTEGER, "b": STRING}, "additionalProperties": False},
    "required": {"type": "object", "properties": {"a": INTEGER, "b": STRING}, "required": ["b"]},
    "undeclared": {"type": "object", "additionalProperties": INTEGER, "required": ["b", "c"]},
    "patterns": {
        "type": "object", "properties": {"a": INTEGER}, "patternProperties": {"^b": STRING}, "required": ["a"],
        "additionalProperties": False,
    },
    "names": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1, "properties": {"b": STRING}},
    "tagged union": {"oneOf": [tagged("x", a=INTEGER), tagged("y", a=STRING, b=STRING)]},
    "untagged union": {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
    "alternatives": {"type": "object", "anyOf": [{"properties": {"a": INTEGER}}, {"required": ["b", "c"]}]},
    "not": {"type": "object", "properties": {"a": True, "b": INTEGER}, "not": {"required": ["a", "b"]}},
    "dependentRequired": {
        "type": "object", "properties": {"c": INTEGER}, "dependentRequired": {"a": ["b"], "b": ["c"]},
    },
    "if": {
        "type": "object", "properties": {"a": STRING, "b": True, "c": True},
        "if": {"properties": {"a": {"const": "v"}}}, "then": {"required": ["b"]}, "else": {"required": ["c"]},
    },
    "counts": {"type": "object", "properties": {"a": INTEGER, "b": STRING, "c": True}, "minProperties": 2},
    "few": {"type": "object", "properties": {"a": INTEGER, "b": STRING, "c": True}, "maxProperties": 1},
    "recursive": {"type": "object", "properties": {"a": {"$ref": "#"}, "b": INTEGER}, "required": ["b"]},
    "both sides": {"allOf": [tagged("x", a={"minimum": 3}), {"properties": {"a": INTEGER, "b": False}}]},
}  # fmt: skip
VALUES = [1, "v", "x", "y", {}]


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_order_of_a_valid_object_is_accepted_and_nothing_else(name: str) -> None:
    schema = SCHEMAS[name]
    fsm = compiled(schema)
    assert not any(KEPT in note for note in fsm.notes)
    for names in itertools.chain.from_iterable(itertools.permutations(["tag", "a", "b", "c"], n) for n in range(4)):
        for values in itertools.product(VALUES, repeat=len(names)):
            text = write(dict(zip(names, values, strict=True)))
            assert accepts(fsm, text) == is_valid(schema, text), text


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_what_is_generated_in_any_order_is_valid(name: str, whitespace: str) -> None:
    schema = SCHEMAS[name]
    fsm = compiled(schema, GrammarOptions.model_validate({"property_order": "any", "whitespace": whitespace}))
    rng = random.Random(name)
    for _ in range(20):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng, longest=rng.randrange(40))).decode()
        assert is_valid(schema, text), text


def test_a_declared_name_comes_once() -> None:
    fsm = compiled({"properties": {"a": True, "ab": True}})
    assert accepts(fsm, '{"ab": 1, "a": 1, "c": 1}')
    for text in ('{"a": 1, "a": 1}', '{"a": 1, "ab": 1, "a": 1}', '{"ab": 1, "c": 1, "ab": 1}'):
        assert not accepts(fsm, text)
    state = fsm.initial_state
    for token in fsm.vocabulary.encode(b'{"a": 1, ') or []:
        state = fsm.next_state(state, token)
    (name,) = [token for token, data in enumerate(map(fsm.vocabulary.token_bytes, range(300))) if data == b'"a']
    assert name in fsm.allowed_tokens(state)
    assert b'"' not in map(fsm.vocabulary.token_bytes, fsm.allowed_tokens(fsm.next_state(state, name)))


@pytest.mark.parametrize("closed", [True, False])
def test_many_properties(closed: bool) -> None:
    names = [f"property {number}" for number in range(62)]
    schema = {"type": "object", "properties": dict.fromkeys(names, INTEGER), "additionalProperties": not closed}
    fsm = compiled({**schema, "required": names[::2]})
    rng = random.Random(7)
    for _ in range(3):
        rng.shuffle(names)
        assert accepts(fsm, write(dict.fromkeys(names, 1)))
        assert not accepts(fsm, write(dict.fromkeys(names[:30], 1)))
    # The way to the end reads what is missing, and does not try all orders of it.
    text = text_of(fsm.vocabulary, fsm.shortest_completion(fsm.initial_state)).decode()
    assert text.count(":") == 31
    assert is_valid({**schema, "required": names}, write(dict.fromkeys(names, 1)))


def test_what_cannot_come_in_any_order_says_so() -> None:
    many = {"type": "object", "properties": {f"p{number}": INTEGER for number in range(63)}}
    fsm = compiled(many)
    assert any("more than 62" in note and KEPT in note for note in fsm.notes)
    assert accepts(fsm, '{"p0": 1, "p1": 1}')
    assert not accepts(fsm, '{"p1": 1, "p0": 1}')
    names = [f"p{number}" for number in range(9)]
    undecided = {"type": "object", "properties": dict.fromkeys(names, True), "not": {"required": names}}
    fsm = compiled(undecided)
    assert any("more than 8" in note and KEPT in note for note in fsm.notes)
    assert not accepts(fsm, write(dict.fromkeys(names)))
    assert accepts(fsm, write(dict.fromkeys(names[:8])))


def test_alternatives_that_a_tag_tells_apart_may_have_many_properties() -> None:
    properties = {f"p{number}": INTEGER for number in range(20)}
    fsm = compiled({"oneOf": [tagged(tag, **properties) for tag in ("x", "y", "z")]})
    assert not any(KEPT in note for note in fsm.notes)
    value = {**dict.fromkeys(reversed(properties), 1), "tag": "y"}
    assert accepts(fsm, write(value))
    assert not accepts(fsm, write({**value, "tag": "w"}))


def test_alternatives_that_take_too_many_steps_keep_the_declared_order() -> None:
    """Rather than being refused: the object compiles with its properties in declared order."""
    value = {"x": INTEGER, "y": INTEGER, "z": INTEGER}
    options = [tagged(tag, value={"properties": {f"{tag}{name}": INTEGER for name in value}}) for tag in "abcdef"]
    schema = {"type": "object", "properties": {"tag": True}, "anyOf": options}
    fsm = compiled(schema, limits=Limits(max_steps=30_000))
    assert accepts(fsm, '{"tag": "a", "value": {"ax": 1}}')
    assert not accepts(fsm, '{"tag": "a", "value": {"ax": "x"}}')
    assert any(KEPT in note for note in fsm.notes)
    rng = random.Random(3)
    for _ in range(5):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng)).decode()
        assert is_valid(schema, text), text


def test_what_exceeds_a_limit_in_any_order_keeps_the_declared_one_with_a_note() -> None:
    """Nodes know which of seven names have been seen: 128 in any order, eight in the declared one."""
    names = [f"p{number}" for number in range(20)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "not": {"required": names[:7]},
        "additionalProperties": False,
    }
    specification = {"type": "json_schema", "schema": schema}
    limits = Limits(max_states=400)
    options = GrammarOptions(property_order="any")
    fsm = compile_grammar(specification, bytes_vocabulary(), options=options, limits=limits)
    assert fsm.notes == [
        "objects keep the declared order: the automaton has more than 400 states (fixed limit max_states)",
    ]
    assert accepts(fsm, '{"p0": 1, "p1": 2}')
    assert not accepts(fsm, '{"p1": 1, "p0": 2}')
    assert accepts(compile_grammar(specification, bytes_vocabulary(), options=options), '{"p1": 1, "p0": 2}')

"""Objects with alternatives in declared order: which names may still come, and how large the automaton is."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grammar_workers import Limits, TokenFSM, compile_grammar
from grammar_workers.artifacts import artifact
from grammar_workers.errors import UnsatisfiableError, UnsupportedFeatureError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.schemas import write
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

NAMES = ("a", "b", "ab", "c", "d")
_names = st.sampled_from(NAMES)
_values = st.sampled_from([{"const": 0}, {"const": 1}, True, {"type": "integer"}])
_shapes = st.fixed_dictionaries(
    {},
    optional={
        "required": st.lists(_names, max_size=2, unique=True),
        "properties": st.dictionaries(_names, _values, max_size=2),
        "minProperties": st.integers(0, 2),
        "maxProperties": st.integers(1, 4),
        "additionalProperties": st.booleans(),
    },
)
_conditions = st.one_of(
    st.lists(_shapes, min_size=2, max_size=3).map(lambda parts: {"anyOf": parts}),
    st.lists(_shapes, min_size=2, max_size=3).map(lambda parts: {"oneOf": parts}),
    _shapes.map(lambda part: {"not": part}),
    st.tuples(_shapes, _shapes, _shapes).map(lambda p: {"if": p[0], "then": p[1], "else": p[2]}),
    st.dictionaries(_names, st.lists(_names, max_size=2, unique=True), max_size=2).map(
        lambda needed: {"dependentRequired": needed}
    ),
)


def compiled(schema: Any, limits: Limits = Limits()) -> TokenFSM:  # noqa: B008 - immutable
    return compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary(), limits=limits)


@PROPERTY
@given(st.lists(_conditions, min_size=1, max_size=2), st.lists(_names, max_size=2, unique=True), st.randoms())
def test_every_choice_of_properties_is_accepted_exactly_when_it_is_valid(
    conditions: list[dict[str, Any]], required: list[str], rng: Any
) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"enum": [0, 1]} for name in NAMES},
        "required": required,
        "additionalProperties": False,
        "allOf": conditions,
    }
    validator = jsonschema.Draft202012Validator(schema)
    try:
        fsm = compiled(schema)
    except UnsupportedFeatureError:
        # A count that undeclared names would have to make up.
        assume(False)
    except UnsatisfiableError:
        fsm = None
    for _ in range(40):
        chosen = [rng.choice([None, 0, 1]) for _ in NAMES]
        value = {name: number for name, number in zip(NAMES, chosen, strict=True) if number is not None}
        assert (fsm is not None and accepts(fsm, write(value))) == validator.is_valid(value), (schema, value)


def states(fsm: TokenFSM) -> int:
    many: int = artifact.verify(fsm.to_bytes(), key=fsm.key).details()["automaton_states"]
    return many


WIDE: dict[str, Any] = {
    "anyOf": {"anyOf": [{"required": ["p0"]}, {"required": ["p3"]}]},
    "oneOf": {"oneOf": [{"required": ["p0"]}, {"required": ["p1", "p4"]}]},
    "if": {"if": {"properties": {"p2": {"const": 1}}, "required": ["p2"]}, "then": {"required": ["p3"]}},
    "not": {"not": {"required": ["p1", "p2"]}},
    "count": {"minProperties": 2},
}


@pytest.mark.parametrize("name", WIDE)
def test_alternatives_cost_as_much_as_there_are_properties(name: str) -> None:
    """Not the square of it: ten times as many properties, about ten times the states and the steps."""

    def wide(many: int, limits: Limits) -> TokenFSM:
        properties = {f"p{index}": {"type": "integer"} for index in range(many)}
        return compiled({"type": "object", "properties": properties, **WIDE[name]}, limits)

    small, large = states(wide(40, Limits())), states(wide(400, Limits(max_steps=400_000)))
    assert large < 15 * small


DEEP = {"properties": {f"deep property {index}": {"minimum": index} for index in range(20)}}
OTHER_DEEP = {"properties": {f"other property {index}": {"minimum": index} for index in range(20)}}
CLOSED = {"properties": {"q": True}, "additionalProperties": False}
ONCE: dict[str, tuple[Any, Any]] = {
    "a closed alternative excludes it": ({"anyOf": [{"properties": {"p": DEEP}}, CLOSED]}, DEEP),
    "a reference means it": ({"$ref": "#/$defs/deep"}, DEEP),
    "a chain of references means it": ({"$ref": "#/$defs/chain"}, {"allOf": [{"$ref": "#/$defs/deep"}, True]}),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_means_the_same_is_laid_out_once(name: str) -> None:
    part, beside = ONCE[name]

    def size(one: Any) -> int:
        definitions = {"deep": DEEP, "chain": {"$ref": "#/$defs/deep"}}
        return states(compiled({"$defs": definitions, "properties": {"x": part, "y": one}}))

    names = sum(map(len, OTHER_DEEP["properties"])) // 3  # a state for each character that only one of them has
    assert size(beside) < size(OTHER_DEEP) - names

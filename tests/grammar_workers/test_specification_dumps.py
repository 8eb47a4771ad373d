"""A specification survives its own dump, by which it crosses processes: every type, notation and option."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from pydantic import BaseModel, ValidationError

from grammar_workers import grammar_key, tag_formats
from grammar_workers import specification as specifications
from grammar_workers.keys import canonical_bytes, normalized
from grammar_workers.options import Limits
from grammar_workers.specification import SPECIFICATION, Automaton, StructuralTagSpecification, Tag, Transition
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.specifications import CORNER_CASES, SPECIFICATIONS, TOOL_CALL

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "title": "T"}
_ANY = {"type": "any_text"}
_TAG = {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": _SCHEMA}, "end": ["</a>", ""]}
_TOKEN_TAG = {**_TAG, "begin": {"type": "token", "token": 3}, "end": {"type": "token", "token": "</s>"}}

FORMATS: list[dict[str, Any]] = [
    {"type": "const_string", "value": "é"},
    {
        "type": "json_schema",
        "json_schema": True,
        "style": "qwen_xml",
        "any_order": True,
        "max_whitespace_cnt": 0,
        "excludes": ["x"],
    },
    {"type": "qwen_xml_parameter", "json_schema": _SCHEMA},
    {"type": "regex", "pattern": "a+"},
    {"type": "grammar", "grammar": 'root ::= "a"', "syntax": "ebnf"},
    {"type": "any_text", "excludes": ["a"], "max_tokens": 0, "max_chars": 3},
    {"type": "token", "token": 7},
    {"type": "exclude_token", "exclude_tokens": [1, "a"]},
    {"type": "any_tokens", "exclude_tokens": ["a"], "max_tokens": 2},
    {"type": "specification", "specification": CORNER_CASES["automaton"]},
    {
        "type": "parameters",
        "json_schema": _SCHEMA,
        "element": '$key="$value"',
        "separator": ",",
        "notation": "bare",
        "quote": "'",
    },
    {"type": "sequence", "elements": [_ANY, _TAG]},
    {"type": "or", "elements": [_ANY, _TOKEN_TAG]},
    {"type": "optional", "content": _ANY},
    {"type": "plus", "content": _ANY},
    {"type": "star", "content": _TAG},
    {"type": "repeat", "min": 0, "max": -1, "content": _ANY},
    _TAG,
    {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [_TAG],
        "at_least_one": True,
        "required": True,
        "stop_after_first": True,
        "excludes": ["b"],
    },
    {
        "type": "token_triggered_tags",
        "trigger_tokens": [3, "<a>"],
        "tags": [_TOKEN_TAG],
        "exclude_tokens": [4],
        "at_least_one": True,
        "stop_after_first": True,
    },
    {
        "type": "tags_with_separator",
        "tags": [_TAG],
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": True,
    },
    {"type": "dispatch", "rules": [["a", _ANY], ["b", _TAG]], "loop": False, "excludes": ["c"]},
    {"type": "token_dispatch", "rules": [[3, _ANY], ["<a>", _TAG]], "loop": False, "exclude_tokens": [5]},
]
"""Every format, each with all of its options."""

_OPTIONS: list[dict[str, Any]] = [
    {**TOOL_CALL, "at_least_one": True, "stop_after_first": True},
    {"type": "banned_words", "words": ["a"], "case_sensitive": True, "whole_words": True},
    {"type": "pattern", "elements": [["UPPER", "+"], [":", "1"]]},
    {"type": "positions", "allowed": [["a", "b"], [1, 2]]},
    {
        "type": "automaton",
        "initial": "a",
        "accepting": ["a", 1],
        "transitions": [{"from": "a", "to": 1, "tokens": [3, 4]}],
    },
    {"type": "json_schema", "schema": False, "strict": True},
]
CASES: list[dict[str, Any]] = [
    *CORNER_CASES.values(),
    TOOL_CALL,
    *_OPTIONS,
    *({"type": "structural_tag", "format": one} for one in FORMATS),
    {"type": "all_of", "specifications": [{"type": "structural_tag", "format": FORMATS[0]}, _OPTIONS[1]]},
]


def assert_survives(plain: dict[str, Any]) -> None:
    """Through every kind of dump, and again through a dump of what came out."""
    first = SPECIFICATION.validate_python(plain)
    expected = canonical_bytes(first, Limits().max_specification_bytes)
    for by_alias, unset, mode in itertools.product((True, False), (True, False), ("python", "json")):
        again = first
        for _ in range(2):
            dumped = again.model_dump(by_alias=by_alias, exclude_unset=unset, mode=mode)
            again = SPECIFICATION.validate_python(json.loads(json.dumps(dumped)) if mode == "json" else dumped)
            assert again == first
            assert canonical_bytes(again, Limits().max_specification_bytes) == expected
            assert grammar_key(dumped, "0" * 64) == grammar_key(plain, "0" * 64)
    assert canonical_bytes(normalized(expected), Limits().max_specification_bytes) == expected


@pytest.mark.parametrize("plain", CASES, ids=lambda plain: str(plain.get("format", plain)["type"]))
def test_every_type_with_every_option(plain: dict[str, Any]) -> None:
    assert_survives(plain)


@PROPERTY
@given(SPECIFICATIONS)
def test_any_specification(plain: dict[str, Any]) -> None:
    assert_survives(plain)


def _parts(value: Any) -> list[BaseModel]:
    """All models in a model."""
    if isinstance(value, list | tuple):
        return [part for one in value for part in _parts(one)]
    if not isinstance(value, BaseModel):
        return []
    return [value, *(part for _, inner in value for part in _parts(inner))]


def test_the_cases_set_every_field_of_every_type() -> None:
    changed: dict[type[BaseModel], set[str]] = {}
    for part in (part for plain in CASES for part in _parts(SPECIFICATION.validate_python(plain))):
        names = {name for name, field in type(part).model_fields.items() if getattr(part, name) != field.default}
        changed.setdefault(type(part), set()).update(names)
    types = {*specifications._Specification.__subclasses__(), *tag_formats._Format.__subclasses__(), Automaton, Tag}
    types = {*types, Transition, specifications.AutomatonSpecification} - {Automaton, specifications.Substring}
    for one in types:
        assert changed.get(one, set()) >= one.model_fields.keys() - {"type"}, one


@pytest.mark.parametrize(
    "beside",
    [
        {"tags": TOOL_CALL["tags"]},
        {"triggers": ["<tool>"]},
        {"at_least_one": True},
        {"stop_after_first": True},
    ],
)
def test_nothing_else_goes_with_a_format(beside: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="nothing else goes with `format`"):
        SPECIFICATION.validate_python({"type": "structural_tag", "format": _ANY, **beside})
    assert StructuralTagSpecification.model_validate({"format": _ANY, "tags": [], "at_least_one": False})

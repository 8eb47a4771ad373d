"""Arguments as elements within elements: what is written of values that `jsonschema` accepts, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from grammar_workers import compile_grammar
from grammar_workers.errors import UnsupportedFeatureError
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

_M3 = "]<]minimax[>["
_KINDS = {str: "raw", dict: "dict", list: "list"}
_SCALARS = [1, 2.5, True, None, -7]
_TEXTS = ["a", "b c", "<i>", "&amp;", "1x"]


def _cohere(value: Any) -> str:
    """The inside of an element as Cohere's models write it."""
    if isinstance(value, dict | list):
        named = value.items() if isinstance(value, dict) else [(None, inner) for inner in value]
        return "".join(
            f'<cofl:value{_named(name)} type="{_KINDS.get(type(inner), "json")}">{_cohere(inner)}</cofl:value>'
            for name, inner in named
        )
    return value if isinstance(value, str) else json.dumps(value)


def _named(name: str | None) -> str:
    if name is None:
        return ""
    for character, entity in {"&": "amp", "<": "lt", ">": "gt", '"': "quot"}.items():
        name = name.replace(character, f"&{entity};")
    return f' name="{name}"'


def _minimax_m3(value: Any) -> str:
    """The same for MiniMax M3."""
    if isinstance(value, dict | list):
        named = value.items() if isinstance(value, dict) else [("item", inner) for inner in value]
        return "".join(f"{_M3}<{name}>{_minimax_m3(inner)}{_M3}</{name}>" for name, inner in named)
    return value if isinstance(value, str) else json.dumps(value)


def _cohere_readings(leaf: Any) -> list[Any]:
    return [leaf]


def _minimax_m3_readings(leaf: Any) -> list[Any]:
    """All values that are written like this one."""
    text = _minimax_m3(leaf)
    return [leaf, text, [], {}] if not text else [leaf, {"item": "a"}] if leaf == ["a"] else [leaf, text, _read(text)]


def _read(text: str) -> Any:
    """The JSON value that is written so, or the text."""
    return next((value for value in _SCALARS if json.dumps(value) == text), text)


class _Draw:
    """Schemas all of whose values both styles can write, and values."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inner = self.object(1, refers=False)
        self.schema = {**self.object(3), "$defs": {"inner": self.inner}}

    def object(self, depth: int, *, refers: bool = True) -> dict[str, Any]:
        names = self.rng.sample(["a", "b c", "item", "é", "x-1", "a&b", 'q"', "<"], self.rng.randint(0, 4))
        return {
            "type": "object",
            "properties": {name: self._any(depth, refers=refers) for name in names},
            "required": [name for name in names if self.rng.random() < 0.5],
            "additionalProperties": False,
        }

    def _any(self, depth: int, *, refers: bool) -> dict[str, Any]:
        simple = ["string", "integer", "boolean", "null", "scalars", "texts"]
        match self.rng.choice(simple + (["object", "array", *(["ref"] if refers else [])] * 2 if depth else [])):
            case "scalars":
                return {"enum": self.rng.sample(_SCALARS, self.rng.randint(1, 3))}
            case "texts":
                return {"enum": self.rng.sample(_TEXTS, 2)}
            case "ref":
                return {"$ref": "#/$defs/inner"}
            case "object":
                return self.object(depth - 1, refers=refers)
            case "array":
                low = self.rng.randint(0, 2)
                limits = {"minItems": low, "maxItems": low + self.rng.randint(0, 2)}
                items = self._any(depth - 1, refers=refers)
                return {"type": "array", "items": items, **(limits if self.rng.random() < 0.7 else {})}
            case kind:
                return {"type": kind}

    def value(self, schema: dict[str, Any]) -> Any:
        """One that is valid."""
        schema = self.inner if "$ref" in schema else schema
        if "enum" in schema:
            return self.rng.choice(schema["enum"])
        match schema["type"]:
            case "object":
                return {
                    name: self.value(inner)
                    for name, inner in schema["properties"].items()
                    if name in schema["required"] or self.rng.random() < 0.6
                }
            case "array":
                low = schema.get("minItems", 0)
                return [self.value(schema["items"]) for _ in range(self.rng.randint(low, schema.get("maxItems", 3)))]
            case kind:
                leaves = {"string": ["", "\n x ", *_TEXTS], "integer": [0, -12], "boolean": [True], "null": [None]}
                return self.rng.choice(leaves[kind])


def _replaced(rng: random.Random, value: Any, leaf: Any) -> Any:
    """A value with `leaf` in place of a part, or with an element dropped or repeated."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        if rng.random() < 0.3:
            return {key: inner for key, inner in value.items() if key != name}
        return {key: _replaced(rng, inner, leaf) if key == name else inner for key, inner in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], _replaced(rng, value[place], leaf), *value[place + rng.randint(0, 1) :]]
    return leaf


@pytest.mark.parametrize(
    ("style", "write", "readings"),
    [("cohere_xml", _cohere, _cohere_readings), ("minimax_m3_xml", _minimax_m3, _minimax_m3_readings)],
)
def test_nested_markup_has_what_jsonschema_accepts(
    style: str, write: Callable[[Any], str], readings: Callable[[Any], list[Any]]
) -> None:
    vocabulary = bytes_vocabulary()
    judged = [0, 0]
    refused = 0
    for seed in range(60):
        draw = _Draw(seed)
        format_ = {"type": "json_schema", "json_schema": draw.schema, "style": style}
        try:
            grammar = compile_grammar({"type": "structural_tag", "format": format_}, vocabulary)
        except UnsupportedFeatureError:
            refused += 1
            continue
        validator = Draft202012Validator(draw.schema)
        for _ in range(20):
            valid = draw.value(draw.schema)
            assert validator.is_valid(valid)
            seed, leaf = draw.rng.random(), draw.rng.choice([*_SCALARS, *_TEXTS, "", " 1 ", "null", [], ["a"]])
            for value in (valid, _replaced(random.Random(seed), valid, leaf)):
                if not isinstance(value, dict):
                    continue
                same = [valid] if value is valid else [_replaced(random.Random(seed), valid, r) for r in readings(leaf)]
                told = any(map(validator.is_valid, same))
                judged[told] += 1
                assert accepts(grammar, write(value)) == told, (draw.schema, value)
    assert min(judged) > 150
    assert refused < 10


@pytest.mark.parametrize(
    ("style", "property_", "pointer"),
    [
        ("minimax_m3_xml", {"type": ["object", "array"]}, "/properties/a"),
        ("minimax_m3_xml", {"type": ["string", "array"]}, "/properties/a"),
        ("minimax_m3_xml", {"type": "array", "uniqueItems": True}, "/properties/a/uniqueItems"),
        ("cohere_xml", {"const": {}}, "/properties/a"),
        ("cohere_xml", {"$ref": "#"}, "/properties/a"),
        ("cohere_xml", {"type": "object", "required": ["b"]}, "/properties/a"),
    ],
)
def test_what_markup_cannot_say_is_refused_where_it_stands(style: str, property_: Any, pointer: str) -> None:
    schema = {"type": "object", "properties": {"a": property_}}
    vocabulary = bytes_vocabulary()
    with pytest.raises(UnsupportedFeatureError) as refused:
        compile_grammar(
            {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema, "style": style}},
            vocabulary,
        )
    assert refused.value.pointer is not None
    assert refused.value.pointer.startswith(f"/format/json_schema{pointer}")

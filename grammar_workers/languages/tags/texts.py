"""Leaves of formats in which strings are written as they are, and scalars beside them."""

from __future__ import annotations

import dataclasses
from typing import Any

from grammar_workers import tag_formats as formats

JSON_TEXTS = (
    r"""[ \t\n\r]*([\[{"][\s\S]*|(true|false|null|NaN|-?Infinity|-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?)[ \t\n\r]*)"""
)
"""Texts that are JSON, or might be: what a reader of JSON takes for more than a string."""


@dataclasses.dataclass(frozen=True)
class StringTexts:
    """A leaf: the strings that `json_schema` allows, written as they are, without `excludes`.

    `but_json`: without those that are JSON values of other types.
    """

    json_schema: Any
    excludes: tuple[str, ...]
    but_json: bool


@dataclasses.dataclass(frozen=True)
class Constant:
    """A leaf: the JSON text of one value, where `json_schema` allows it."""

    json_schema: Any
    text: str


def untold_scalars(schema: Any, types: frozenset[str], excludes: tuple[str, ...]) -> list[Any]:
    """The strings and other scalars of these types, as alternatives, where nothing tells which it is.

    Beside strings that are not JSON there are no numbers: a number may go on as a string.
    """
    if "string" not in types:
        scalars = types - {"object", "array"}
        typed = {**schema, "allOf": [*schema.get("allOf", []), {"type": sorted(scalars)}]}
        return [formats.JsonSchemaFormat(json_schema=typed)] if scalars else []
    if types == {"string"}:
        return [StringTexts(schema, excludes, but_json=False)]
    constants = {"null": ["null"], "boolean": ["true", "false"]}
    texts = [Constant(schema, text) for one in sorted(types) for text in constants.get(one, [])]
    return [StringTexts(schema, excludes, but_json=True), *texts]

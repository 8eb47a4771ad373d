"""Formats (nodes of structural tags) for scalars in notations without quotes and escapes."""

from __future__ import annotations

import dataclasses
from typing import Any

from grammar_workers import tag_formats as formats

# A pattern of the texts that a JSON parser may accept as a value other than a string.
JSON_TEXTS = (
    r"""[ \t\n\r]*([\[{"][\s\S]*|(true|false|null|NaN|-?Infinity|-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?)[ \t\n\r]*)"""
)


@dataclasses.dataclass(frozen=True)
class StringTexts:
    """Format (node of a structural tag) for the strings that a schema allows, without quotes and escapes.

    Attributes:
        json_schema: JSON Schema of the strings.
        excludes: Texts that a string must not contain. Empty texts are ignored.
        but_json: True to exclude texts that look like JSON, because a reader may parse them as other values.
    """

    json_schema: Any
    excludes: tuple[str, ...]
    but_json: bool


@dataclasses.dataclass(frozen=True)
class Constant:
    """Format (node of a structural tag) for one JSON text. It matches nothing if the schema does not allow the value.

    Attributes:
        json_schema: JSON Schema of the value.
        text: JSON text of the value, such as `true`.
    """

    json_schema: Any
    text: str


def untold_scalars(schema: Any, types: frozenset[str], excludes: tuple[str, ...]) -> list[Any]:
    """Return formats for the scalars of a schema, in a notation that does not show the type of a value.

    A format is a node of a structural tag. With strings among the types, numbers get no format of their own, because
    a string may begin with a number. The format for strings does not match texts that are JSON if other types are
    possible as well. For example, the formats for `["string", "integer", "boolean"]` match `five`, `true` and `false`,
    but not `5`.

    Args:
        schema: The JSON Schema of the value, with the definitions to which its references lead.
        types: The JSON types that the schema allows; objects and arrays are ignored.
        excludes: Texts that strings must not contain.

    Returns:
        Alternative formats: a value matches at least one of them. [] if the schema allows no scalar.
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

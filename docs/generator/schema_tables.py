"""Conversion of JSON Schemas by pydantic to Markdown: a section with a table of fields for each object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
    "pattern": "matches `{}`",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def name_of(schema: Schema) -> str:
    """Return the name of the schema that a `$ref` refers to."""
    return str(schema["$ref"]).rpartition("/")[2]


def title(name: str) -> str:
    """Return the heading of a schema. Names that two modules use have the module in parentheses."""
    module, _, last = name.rpartition("__")
    return f"{last} ({module.rpartition('__')[2]})" if module else last


def link(name: str) -> str:
    """Return a link to the heading of a schema, with GitHub's form of anchors."""
    anchor = title(name).lower().replace(" ", "-").replace("(", "").replace(")", "")
    return f"[{title(name)}](#{anchor})"


def kind(schema: Schema) -> str:
    """Return the type of a value in words."""
    for combination in ("anyOf", "oneOf"):
        if combination in schema:
            return " or ".join(dict.fromkeys(kind(one) for one in schema[combination] if one.get("type") != "null"))
    if "$ref" in schema:
        return link(name_of(schema))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"({', '.join(map(kind, schema['prefixItems']))})"
        return f"list of {kind(schema.get('items', {}))}"
    if schema.get("type") == "object":
        named = next(iter(schema.get("patternProperties", {}).values()), None)
        if isinstance(values := named or schema.get("additionalProperties"), Mapping):
            return f"object of {kind(values)}"
    name = schema.get("type", "anything")
    bounds = [text.format(_number(schema[key])) for key, text in _BOUNDS.items() if key in schema]
    return f"{name} ({', '.join(bounds)})" if bounds else str(name)


def fields(schema: Schema) -> str:
    """Return the table of an object's fields, or the type of a value without fields."""
    if "properties" not in schema:
        return f"{kind(schema)}."
    required = schema.get("required", [])
    rows = []
    for name, field in schema["properties"].items():
        default = field.get("default")
        shown = "required" if name in required else "" if default is None else f"`{json.dumps(default)}`"
        sizes = [text.format(field[key]) for key, text in _BOUNDS.items() if "Items" in key and key in field]
        # Elsewhere null is only another way to leave a field out.
        nullable = name in required and any(one.get("type") == "null" for one in field.get("anyOf", ()))
        what = ", ".join([kind(field) + " or null" * nullable, *sizes])
        rows.append((f"`{name}`", what, shown, _text(field.get("description", ""))))
    return table(["field", "type", "default", "meaning"], rows)


def references(schema: Any) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to, in order."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield name_of(schema)
        for key, value in schema.items():
            if key != "discriminator":
                yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def sections(begin: list[str], schemas: Mapping[str, Schema], *, level: int) -> Iterator[str]:
    """Yield a section for each schema that is reachable from those named in `begin`, breadth first."""
    order = list(dict.fromkeys(begin))
    for name in order:  # grows meanwhile
        order += dict.fromkeys(found for found in references(schemas[name]) if found not in order)
        schema = schemas[name]
        parts = [f"{'#' * level} {title(name)}", _text(schema.get("description", "")), fields(schema)]
        yield "\n\n".join(part for part in parts if part)


def _text(description: str) -> str:
    """Return a docstring with one line per paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in description.split("\n\n"))


def _number(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return f"{value:,.0f}" if whole else f"{value:g}" if isinstance(value, float) else str(value)

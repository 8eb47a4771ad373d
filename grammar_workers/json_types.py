"""Computation of the JSON types (string, number, ...) that a JSON Schema allows for an argument of a function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
# Maximum depth of the search. Deeper schemas count as schemas that restrict nothing.
_DEEPEST = 32


@dataclasses.dataclass
class _Document:
    """A document that `$ref` refers to, and the types that were found for each reference (and property name)."""

    root: Any
    known: dict[tuple[str, str | None], frozenset[str]] = dataclasses.field(default_factory=dict)


def types_of(schema: Any, key: str) -> frozenset[str]:
    """Return the JSON types that a schema allows for one property of an object.

    Args:
        schema: Schema of the object. Each `$ref` in it is resolved within it.
        key: Name of the property.

    Returns:
        Names of JSON types, such as `string`. All seven names if the schema does not restrict the property. Empty if
        keywords of the schema exclude each other.
    """
    return _of_member(schema, key, _Document(schema), 0)


def types_of_value(schema: Any, root: Any) -> frozenset[str]:
    """Return the JSON types that a schema allows for a value.

    Args:
        schema: Schema of the value.
        root: Document that `$ref` in the schema refers to.

    Returns:
        Names of JSON types, such as `string`. All seven names if the schema does not restrict the value. Empty if
        keywords of the schema exclude each other.
    """
    return _of_value(schema, _Document(root), 0)


def _of_member(schema: Any, key: str, document: _Document, depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return _TYPES
    properties = schema.get("properties", {})
    found = _of_value(properties[key] if key in properties else schema.get("additionalProperties"), document, depth)
    return _narrowed(found, schema, document, lambda part: _of_member(part, key, document, depth + 1), key)


def _of_value(schema: Any, document: _Document, depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return _TYPES
    found = _TYPES
    if "type" in schema:
        named = schema["type"]
        found = frozenset([named] if isinstance(named, str) else named)
    for word in ("enum", "const"):
        if word in schema:
            values = schema[word] if word == "enum" else [schema[word]]
            found &= frozenset().union(*(_of_constant(value) for value in values))
    return _narrowed(found, schema, document, lambda part: _of_value(part, document, depth + 1))


def _narrowed(
    found: frozenset[str],
    schema: dict[str, Any],
    document: _Document,
    types: Callable[[Any], frozenset[str]],
    key: str | None = None,
) -> frozenset[str]:
    """Return the types in `found` that the schemas inside `schema` allow. `types` returns the types of one schema."""
    found = found.intersection(*map(types, schema.get("allOf", ())))
    for word in ("anyOf", "oneOf"):
        if parts := schema.get(word):
            found &= frozenset().union(*map(types, parts))
    if "$ref" not in schema:
        return found
    place = schema["$ref"], key
    if place not in document.known:
        document.known[place] = _TYPES  # a reference to itself restricts nothing
        document.known[place] = types(target_of(schema["$ref"], document.root))
    return found & document.known[place]


def _of_constant(value: Any) -> frozenset[str]:
    if value is None or isinstance(value, bool):
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, (int, float)):
        return frozenset({"number", "integer"})
    return frozenset({"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"})


def target_of(reference: str, root: Any, *, otherwise: Any = True) -> Any:
    """Return the value that a reference points to within a document.

    Args:
        reference: Value of `$ref`: a JSON Pointer, with or without the prefix `#`.
        root: The document.
        otherwise: Value to return if there is no such value. The default, True, is the schema of any value.

    Returns:
        The value in the document. `otherwise` if the reference leads to another document or the document has no such
        value.
    """
    if not reference.startswith(("#", "/")):
        return otherwise
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, ValueError, IndexError, TypeError):
            return otherwise
    return found

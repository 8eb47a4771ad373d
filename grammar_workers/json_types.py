"""Which JSON types a function's schema allows for one of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_DEEPEST = 32
"""Schemas that refer to themselves end here."""


def types_of(schema: Any, key: str) -> frozenset[str]:
    """The types of values that `key` may have in an object; all of them where the schema does not tell."""
    return _of_member(schema, key, schema, 0)


def types_of_value(schema: Any, root: Any) -> frozenset[str]:
    """The same for a value of this schema within the document `root`."""
    return _of_value(schema, root, 0)


def _of_member(schema: Any, key: str, root: Any, depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return _TYPES
    properties = schema.get("properties", {})
    found = _of_value(properties[key] if key in properties else schema.get("additionalProperties"), root, depth)
    return _narrowed(found, schema, root, lambda part: _of_member(part, key, root, depth + 1))


def _of_value(schema: Any, root: Any, depth: int) -> frozenset[str]:
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
    return _narrowed(found, schema, root, lambda part: _of_value(part, root, depth + 1))


def _narrowed(
    found: frozenset[str], schema: dict[str, Any], root: Any, types: Callable[[Any], frozenset[str]]
) -> frozenset[str]:
    """Those of `found` that the schemas within `schema`, each of which allows some `types`, leave."""
    found = found.intersection(*map(types, schema.get("allOf", ())))
    for word in ("anyOf", "oneOf"):
        if parts := schema.get(word):
            found &= frozenset().union(*map(types, parts))
    return found if "$ref" not in schema else found & types(target_of(schema["$ref"], root))


def _of_constant(value: Any) -> frozenset[str]:
    if value is None or isinstance(value, bool):
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, (int, float)):
        return frozenset({"number", "integer"})
    return frozenset({"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"})


def target_of(reference: str, root: Any) -> Any:
    """What a reference inside of the schema leads to; True where it leads elsewhere."""
    if not reference.startswith(("#", "/")):
        return True
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, ValueError, IndexError, TypeError):
            return True
    return found

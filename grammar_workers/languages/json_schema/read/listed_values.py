"""Detection of arrays whose schema lists all values of the items, so that `uniqueItems` can be enforced by counting."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from grammar_workers.languages.json_schema.read.references import References, Scope

_BY_TYPE: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
# Largest number of listed values, with repetitions; more values count as not listed.
_MAX_LISTED = 1000
# Identity of a schema -> its listed values.
#
# A schema whose values are being collected counts as not listed, which ends cycles.
_Known: TypeAlias = "dict[int, list[Any] | None]"


def listed_items(schema: Mapping[str, Any], scope: Scope, references: References) -> list[Any] | None:
    """Return all values that items of an array may have, if the schema of the array lists them.

    Values are listed by `enum`, `const` and the types `boolean` and `null`. GrammarError is raised if a `$ref` cannot
    be resolved.

    Args:
        schema: Schema of the array.
        scope: Dialect, base URI and JSON Pointer of the schema.
        references: Looks up the schemas that `$ref` names.

    Returns:
        The values. The list may have duplicates, and values that other keywords exclude. None if the schema does not
        list the values, or lists more than 1000.
    """
    by_position = isinstance(schema.get("items"), list)
    prefix = schema["items"] if by_position else schema.get("prefixItems", [])
    rest = schema.get("additionalItems" if by_position else "items", True)
    most = schema.get("maxItems")
    schemas = list(prefix) if isinstance(prefix, list) else []
    if not (isinstance(most, int) and most <= len(schemas)):
        schemas.append(rest)
    return _union(schemas, scope, references, {})


def _union(schemas: list[Any], scope: Scope, references: References, known: _Known) -> list[Any] | None:
    found: list[Any] = []
    for schema in schemas:
        values = _listed(schema, scope, references, known)
        if values is None or len(found) + len(values) > _MAX_LISTED:
            return None
        found += values
    return found


def _listed(schema: Any, scope: Scope, references: References, known: _Known) -> list[Any] | None:
    if schema is False:
        return []
    if not isinstance(schema, dict):
        return None
    if id(schema) not in known:
        known[id(schema)] = None
        known[id(schema)] = _values(schema, references.entered(scope, schema), references, known)
    return known[id(schema)]


def _values(schema: Mapping[str, Any], scope: Scope, references: References, known: _Known) -> list[Any] | None:
    if "$ref" in schema:
        target, within = references.resolve(schema["$ref"], "$ref", scope)
        values = _listed(target, within, references, known)
        if values is not None or scope.draft <= 7:
            return values
    if "const" in schema and "const" in scope.dialect.keywords:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            values = _union(schema[keyword], scope, references, known)
            if values is not None:
                return values
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(kinds, list) and kinds and all(isinstance(kind, str) and kind in _BY_TYPE for kind in kinds):
        return [value for kind in kinds for value in _BY_TYPE[kind]]
    return None


def identity(value: Any) -> Hashable:
    """Return a hashable key of a JSON value. Equal values in the sense of JSON Schema have equal keys, others do not.

    For example, 1 and 1.0 are equal, but 1 and true are not. The order of properties does not matter.

    Args:
        value: JSON value as a Python object.
    """
    if isinstance(value, bool) or value is None:
        return value, "constant"
    if isinstance(value, int | float | Decimal):
        return Decimal(str(value)), "number"
    if isinstance(value, dict):
        return frozenset((name, identity(part)) for name, part in value.items())
    if isinstance(value, list):
        return tuple(map(identity, value))
    return str(value)

"""`unevaluatedProperties` and `unevaluatedItems`, where what has been evaluated does not depend on the instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.json_schema.references import References, Scope, subschemas

_CONDITIONAL = ("anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies")
_PROPERTY_KEYWORDS = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
_ITEM_KEYWORDS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The property names and patterns that are evaluated in every case."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]


def evaluated_properties(schema: Mapping[str, Any], scope: Scope, references: References) -> Evaluated | None:
    """What `unevaluatedProperties` beside these keywords does not concern; None when everything is evaluated.

    Raises UnsupportedFeatureError when it depends on which alternative an instance takes.
    """
    names: dict[str, None] = {}
    patterns: dict[str, None] = {}
    for part in _adjacent(schema, scope, references, "unevaluatedProperties", _PROPERTY_KEYWORDS):
        if "additionalProperties" in part or (part is not schema and "unevaluatedProperties" in part):
            return None
        names.update(dict.fromkeys(part.get("properties", {})))
        patterns.update(dict.fromkeys(part.get("patternProperties", {})))
    return Evaluated(tuple(names), tuple(patterns))


def evaluated_items(schema: Mapping[str, Any], scope: Scope, references: References) -> int | None:
    """How many first items are evaluated in every case; None when all are. Raises as `evaluated_properties`."""
    many = 0
    for part in _adjacent(schema, scope, references, "unevaluatedItems", _ITEM_KEYWORDS):
        if "contains" in part and scope.draft >= 2020:
            raise _depends("unevaluatedItems", scope)
        if isinstance(part.get("items"), list):
            if "additionalItems" in part:
                return None
            many = max(many, len(part["items"]))
        elif "items" in part or (part is not schema and "unevaluatedItems" in part):
            return None
        if isinstance(part.get("prefixItems"), list):
            many = max(many, len(part["prefixItems"]))
    return many


def _adjacent(
    schema: Mapping[str, Any], scope: Scope, references: References, keyword: str, relevant: tuple[str, ...]
) -> Iterator[Mapping[str, Any]]:
    """`schema` and every schema that applies to the same instance in every case."""
    pending = [(schema, scope)]
    seen: set[int] = set()
    while pending:
        part, place = pending.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for name in _CONDITIONAL:
            if name in part and _evaluates(part[name], relevant):
                raise _depends(keyword, scope)
        place = place.entered(part)
        pending.extend((option, place) for option in part.get("allOf", []))
        for reference in ("$ref", "$dynamicRef", "$recursiveRef"):
            if reference in part:
                pending.append(references.resolve(part[reference], reference, place))


def _evaluates(value: Any, relevant: tuple[str, ...]) -> bool:
    """Whether any schema in an alternative evaluates something, or refers to one that might."""
    options = value if isinstance(value, list) else [value]
    if isinstance(value, Mapping) and not any(isinstance(part, str | bool) for part in value.values()):
        options = [value, *value.values()]
    return any(
        any(keyword in part for keyword in (*relevant, "$ref", "$dynamicRef", "$recursiveRef"))
        for option in options
        for part in subschemas(option)
    )


def _depends(keyword: str, scope: Scope) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{keyword} beside alternatives that evaluate different parts", pointer=scope.below(keyword).pointer
    )

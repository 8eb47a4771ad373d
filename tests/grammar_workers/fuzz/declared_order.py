"""The declared order of properties, where a schema says it without any doubt: documented, judged independently."""

from __future__ import annotations

import enum
from typing import Any

from tests.grammar_workers.fuzz.readings import PythonPatterns, UnreadableError
from tests.grammar_workers.fuzz.spelling import Members

_UNCLEAR = frozenset(
    ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired"]
    + ["dependencies", "unevaluatedProperties", "unevaluatedItems", "contains", "enum", "const", "uniqueItems"]
)


class Order(enum.Enum):
    """`OPEN` where more than one schema speaks about an object."""

    KEPT = "kept"
    BROKEN = "broken"
    OPEN = "open"


def order_of(schema: Any, value: Any, draft: int) -> Order:
    """Whether the members of all objects in `value` stand as `schema` declares them, each declared one once."""
    if not isinstance(value, list) or not value:
        return Order.KEPT
    if isinstance(schema, bool):
        schema = {}
    if not _UNCLEAR.isdisjoint(schema):
        return Order.KEPT if not _may_be_out_of_order(value) else Order.OPEN
    if isinstance(value, Members):
        found = [_of_members(schema, value)]
        found += [order_of(_of_property(schema, name), part, draft) for name, part in value]
    else:
        found = [order_of(_of_item(schema, place), part, draft) for place, part in enumerate(value)]
    return Order.BROKEN if Order.BROKEN in found else Order.OPEN if Order.OPEN in found else Order.KEPT


def _may_be_out_of_order(value: Any) -> bool:
    if isinstance(value, Members):
        return len(value) > 1 or any(_may_be_out_of_order(part) for _, part in value)
    return isinstance(value, list) and any(map(_may_be_out_of_order, value))


def _of_members(schema: dict[str, Any], members: Members) -> Order:
    if "patternProperties" in schema and not {"minProperties", "maxProperties"}.isdisjoint(schema) and len(members) > 1:
        return Order.OPEN  # a pattern that few names match declares them
    declared = list(dict.fromkeys([*schema.get("properties", {}), *schema.get("required", [])]))
    ranks = [declared.index(name) if name in declared else len(declared) for name, _ in members]
    ordered = sorted(ranks) == ranks and all(ranks.count(rank) == 1 for rank in ranks if rank < len(declared))
    return Order.KEPT if ordered else Order.BROKEN


def _of_property(schema: dict[str, Any], name: str) -> Any:
    """The only schema that speaks about a property; one that leaves the order open where there are several."""
    found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
    try:
        found += [part for source, part in schema.get("patternProperties", {}).items() if _matches(source, name)]
    except UnreadableError:
        return {"$ref": ""}
    found = found or [schema.get("additionalProperties", True)]
    return found[0] if len(found) == 1 else {"allOf": found}


def _matches(source: str, name: str) -> bool:
    return PythonPatterns.search(source, name)


def _of_item(schema: dict[str, Any], place: int) -> Any:
    items = schema.get("items", True)
    prefix = items if isinstance(items, list) else schema.get("prefixItems", [])
    if place < len(prefix):
        return prefix[place]
    return schema.get("additionalItems", True) if isinstance(items, list) else items

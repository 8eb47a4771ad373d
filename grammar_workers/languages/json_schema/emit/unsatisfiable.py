"""The schema inside of an unsatisfiable one that contradicts itself, and what in it does, for the message."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from grammar_workers.errors import shortened
from grammar_workers.languages.json_schema.assertions import FormulaId, JsonType
from grammar_workers.languages.json_schema.logic import FALSE
from grammar_workers.languages.json_schema.read.listed_values import identity
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.solver import Solver

_MAX_NAME = 64
_BOUNDS = (
    ({"string"}, "minLength", "maxLength"),
    ({"integer", "number"}, "minimum", "maximum"),
    ({"array"}, "minItems", "maxItems"),
    ({"object"}, "minProperties", "maxProperties"),
)
"""Keywords that exclude each other where the first is larger, and the types of which they decide."""


def contradiction_in(solver: Solver, demand: Demand) -> tuple[str, str | None]:
    """The JSON Pointer of the innermost schema that has no value although every value of the root needs one of it.

    And which keywords of it exclude each other, the pointer being that of one of them; None where that is not certain.
    Follows required properties and items of plain objects and arrays; `demands` has been solved for `demand`.
    """
    pool = solver.pool
    formula = demand.formula
    pointer = pool.pointer(formula) or ""
    passed = {demand}
    alone = True
    while True:
        needed = [(child, asked) for child, asked in _needed(solver, demand) if not solver.satisfiable(child)]
        # The schema `false` stands in many places.
        if not needed or needed[0][1] == FALSE:
            break
        if needed[0][0] in passed:
            return pool.pointer(needed[0][1]) or pointer, "it requires a value of itself, and so on without end"
        # Objects alone, or arrays alone, are allowed: else something excludes the others, too.
        alone = alone and sum(pool.resolve(demand.formula, type_) != FALSE for type_ in JsonType) == 1
        demand, formula = needed[0]
        passed.add(demand)
        pointer = pool.pointer(formula) or pointer
    schema = pool.schema(formula)
    found = _contradiction(schema.keywords) if schema is not None and alone else None
    if schema is None or found is None:
        return pointer, None
    keyword, reason = found
    return f"{schema.pointer}/{keyword}", reason


def _needed(solver: Solver, demand: Demand) -> list[tuple[Demand, FormulaId]]:
    """The demands of the parts that every object (or else every array) of `demand` has, and their formulas."""
    objects = solver.objects(demand)
    if objects is not None and objects.is_plain:
        properties = objects.plain.properties
        return [(properties[index][1], objects.formula_of(index)) for index in objects.plain.required]
    arrays = solver.arrays(demand)
    if arrays is not None and arrays.is_plain:
        items = arrays.plain
        parts = [*items.prefix, items.items][: items.minimum]
        return [(part, arrays.formula_of(position)) for position, part in enumerate(parts)]
    return []


# -- one schema --------------------------------------------------------------------------------------------------------


def _contradiction(keywords: Mapping[str, Any]) -> tuple[str, str] | None:
    """A keyword of a schema, and why nothing satisfies it beside the others; None where that is not seen at once."""
    names = keywords.get("type", [])
    types = {names} if isinstance(names, str) else set(names)
    return (
        _of_listed(keywords, types)
        or _of_bounds(keywords, types)
        or _of_strings(keywords, types)
        or _of_required(keywords, types)
    )


def _of_listed(keywords: Mapping[str, Any], types: set[str]) -> tuple[str, str] | None:
    listed = [keyword for keyword in ("const", "enum") if keyword in keywords]
    for keyword in listed:
        values = keywords["enum"] if keyword == "enum" else [keywords["const"]]
        if not values:
            return keyword, "`enum` lists nothing"
        if types and not any(_is_of(value, types) for value in values):
            said = "no value of `enum` is" if keyword == "enum" else "`const` is not"
            return keyword, f"{said} of the `type`"
    if len(listed) == 2 and identity(keywords["const"]) not in map(identity, keywords["enum"]):
        return "const", "`const` is not among the values of `enum`"
    return None


def _of_bounds(keywords: Mapping[str, Any], types: set[str]) -> tuple[str, str] | None:
    for decided, low, high in _BOUNDS:
        decides = bool(types) and types <= decided and low in keywords and high in keywords
        if decides and Decimal(str(keywords[low])) > Decimal(str(keywords[high])):
            return low, f"`{low}` is above `{high}`"
    return None


def _of_strings(keywords: Mapping[str, Any], types: set[str]) -> tuple[str, str] | None:
    """The last resort: nothing else is asked of the strings, so what is must be why there are none."""
    asked = [keyword for keyword in ("pattern", "format", "minLength", "maxLength") if keyword in keywords]
    if types != {"string"} or not asked or not {*keywords} <= {"type", *asked}:
        return None
    return asked[0], "no string satisfies " + " and ".join(f"`{keyword}`" for keyword in asked)


def _of_required(keywords: Mapping[str, Any], types: set[str]) -> tuple[str, str] | None:
    if types != {"object"}:
        return None
    declared = keywords.get("properties", {})
    closed = keywords.get("additionalProperties") is False and "patternProperties" not in keywords
    for name in keywords.get("required", ()):
        shown = f"`required` has {shortened(name, _MAX_NAME)!r}"
        if name not in declared and closed:
            return "required", f"{shown}, which `properties` does not declare and `additionalProperties` forbids"
        if declared.get(name) is False:
            return "required", f"{shown}, for which `properties` has false"
    return None


def _is_of(value: Any, types: set[str]) -> bool:
    """Whether a value may be of one of the types."""
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case str():
            return "string" in types
        case list():
            return "array" in types
        case dict():
            return "object" in types
    return not types.isdisjoint({"integer", "number"})

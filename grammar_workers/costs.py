"""The places of a specification where compiling takes longest, and what to change there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from grammar_workers.errors import LimitExceededError
from grammar_workers.json_types import target_of

_CHANGES = (
    ("uniqueItems", "drop `uniqueItems`, or list the values of the items as `enum`"),
    ("patternProperties", "name the properties in `properties`, or use smaller counts in the patterns of names"),
    ("pattern", "use a simpler `pattern` with smaller counts; `minLength` and `maxLength` cost less than they do"),
    ("oneOf", "use `anyOf` where alternatives exclude each other, and a `const` first in each"),
    ("anyOf", "declare a property with a `const` first in each alternative, or have fewer of them"),
    ("allOf", "have fewer schemas in `allOf`, above all fewer with `if`"),
    ("format", "use a shorter `pattern` in place of `format`"),
    ("open", "set `additionalProperties: false`"),
    ("properties", "have fewer properties, here and in what is referred to"),
    ("type", "use smaller bounds and fewer values"),
    ("", "name a `type`: any value is allowed here"),
)
"""Keyword -> the advice for a place that has it, the most expensive keyword first; "open": other properties may come
between a few that are declared.
"""
_FEW = 32
"""Properties: where there are more, they cost more than others between them."""


class Cost(TypedDict):
    """A place of a specification: JSON Pointer, or line and column; CPU seconds there; what to change."""

    place: str
    seconds: float
    change: str


LEAST_S = 0.005
"""CPU seconds below which a place is not listed: it needs no change."""


def most_expensive(seconds: Mapping[str, float], specification: Mapping[str, Any], most: int = 3) -> list[Cost]:
    """Return the places where compiling took longest, at least `LEAST_S`.

    Args:
        seconds: `TokenFSM.costs`.
        specification: What was compiled, as plain data; pointers of a JSON Schema lead into its `schema`.
        most: Number of places.
    """
    first = sorted((place for place in seconds if seconds[place] >= LEAST_S), key=lambda place: -seconds[place])[:most]
    return [
        {"place": place or "#", "seconds": round(seconds[place], 6), "change": _change(place, specification)}
        for place in first
    ]


def with_change(error: LimitExceededError, specification: Mapping[str, Any]) -> LimitExceededError:
    """Return the error with what to change at its place in a JSON Schema, unless its message says so already."""
    if error.pointer is None or ";" in error.message or "schema" not in specification:
        return error
    message = f"{error.message}; {_change(error.pointer, specification)}"
    return LimitExceededError(message, pointer=error.pointer, position=error.position)


def _change(place: str, specification: Mapping[str, Any]) -> str:
    found = target_of(f"#{place}", specification.get("schema"))
    if not isinstance(found, dict):
        return "use smaller counts and fewer alternatives"
    required, declared = found.get("required"), found.get("properties", {})
    undeclared = isinstance(required, list) and {*required} - declared.keys()
    is_settled = undeclared or found.get("additionalProperties") is False or not 0 < len(declared) < _FEW
    asked = {*found, ""} | (set() if is_settled else {"open"})
    alternatives = found.get("anyOf", found.get("oneOf"))
    if isinstance(alternatives, list) and not any(
        "object" in str(one) or "properties" in str(one) for one in alternatives
    ):
        return "have fewer alternatives"
    return next(change for keyword, change in _CHANGES if keyword in asked)

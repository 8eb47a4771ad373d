"""Parts of a specification that take longest to compile, with advice on how to change each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from grammar_workers.errors import LimitExceededError
from grammar_workers.json_types import target_of

# Keyword -> advice for a schema with this keyword, the most expensive keyword first.
#
# "open" stands for a schema with a few declared properties, between which other properties may come.
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
# Number of declared properties from which they cost more than undeclared properties between them.
_FEW = 32


class Cost(TypedDict):
    """CPU time of one part of a specification.

    Attributes:
        place: JSON Pointer of the part, or line and column in a grammar text. `#` is the whole specification.
        seconds: CPU seconds.
        change: Advice on how to change the part.
    """

    place: str
    seconds: float
    change: str


# Least CPU seconds of a part that is listed. Other parts need no change.
LEAST_S = 0.005


def most_expensive(seconds: Mapping[str, float], specification: Mapping[str, Any], most: int = 3) -> list[Cost]:
    """Return the parts of a specification that took longest to compile, slowest first.

    Args:
        seconds: CPU seconds by part, from `TokenFSM.costs`. The key is a JSON Pointer, or line and column as text.
        specification: Specification as plain data. If it is a JSON Schema, the pointers are relative to its `schema`.
        most: Maximum number of parts.

    Returns:
        Parts that took at least `LEAST_S` (0.005) CPU seconds each. Empty if there are none.
    """
    first = sorted((place for place in seconds if seconds[place] >= LEAST_S), key=lambda place: -seconds[place])[:most]
    return [
        {"place": place or "#", "seconds": round(seconds[place], 6), "change": _change(place, specification)}
        for place in first
    ]


def with_change(error: LimitExceededError, specification: Mapping[str, Any]) -> LimitExceededError:
    """Return `error` with advice on how to change the part of the JSON Schema that exceeds the limit.

    Args:
        error: The error. It is not changed.
        specification: Specification as plain data.

    Returns:
        A new error with the advice at the end of its message. `error` itself if it has no pointer, if its message
        already contains advice, or if the specification is not a JSON Schema.
    """
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

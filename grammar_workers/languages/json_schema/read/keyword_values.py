"""The values of keywords, checked: names, numbers, counts and patterns, or an error that points to the keyword."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.json_schema.read.references import Scope
from grammar_workers.options import Limits

_MAX_MAGNITUDE = 400
"""Powers of ten that a numeric keyword may have: more than a double has."""
_MAX_COUNT = 1_000_000_000
"""The largest count that counters hold."""


def property_names(value: Any, scope: Scope) -> tuple[str, ...]:
    """The distinct property names of an array of them, which stands at `scope`."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidSpecificationError("must be an array of property names", pointer=scope.pointer)
    return tuple(dict.fromkeys(value))


def decimal(schema: Mapping[str, Any], keyword: str, scope: Scope) -> Decimal:
    """The number that a keyword of `schema` (at `scope`) holds; raises LimitExceededError for one beyond a double."""
    value = schema[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise InvalidSpecificationError(f"{keyword} must be a number", pointer=scope.below(keyword).pointer)
    number = Decimal(str(value))
    if not number.is_finite() or abs(number.adjusted()) > _MAX_MAGNITUDE:
        raise LimitExceededError(
            f"{keyword} is beyond the range of numbers (1e{_MAX_MAGNITUDE})", pointer=scope.below(keyword).pointer
        )
    return number


def count(schema: Mapping[str, Any], keyword: str, scope: Scope) -> int | None:
    """The count that a keyword of `schema` (at `scope`) holds, None where it is absent."""
    if keyword not in schema:
        return None
    value = decimal(schema, keyword, scope)
    if value != value.to_integral_value() or value < 0:
        raise InvalidSpecificationError(
            f"{keyword} must be a non-negative integer", pointer=scope.below(keyword).pointer
        )
    if value > _MAX_COUNT and keyword.startswith("min"):
        raise LimitExceededError(f"{keyword} above {_MAX_COUNT}", pointer=scope.below(keyword).pointer)
    # No larger maximum makes a difference to anything that fits into memory.
    return min(int(value), _MAX_COUNT)


def checked_pattern(pattern: Any, scope: Scope, compiled: Callable[[str, Limits], object], limits: Limits) -> str:
    """A regular expression that is known to compile; what is wrong with it is raised with the pointer of `scope`.

    It is compiled only to see whether that raises, by the function that the solver will call: `compiled` remembers its
    results (`budget.remembered`), so no pattern is compiled twice.
    """
    if not isinstance(pattern, str):
        raise InvalidSpecificationError("a pattern must be a string", pointer=scope.pointer)
    try:
        compiled(pattern, limits)
    except GrammarError as error:
        error.pointer = scope.pointer
        raise
    return pattern

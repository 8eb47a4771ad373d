"""The keywords of one schema, checked where they are asked for: numbers, counts, names, patterns, schemas.

Errors point to the keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.logic import TRUE
from grammar_workers.languages.json_schema.read.references import Scope
from grammar_workers.options import Limits

_MAX_MAGNITUDE = 400
"""Powers of ten that a numeric keyword may have: more than a double has."""
_MAX_COUNT = 1_000_000_000
"""The largest count that counters hold."""


class SchemaKeywords(dict[str, Any]):
    """The keywords that mean anything in `schema`, which stands at `scope`; `read` reads one at its scope and depth."""

    def __init__(
        self, schema: Mapping[str, Any], scope: Scope, depth: int, read: Callable[[Any, Scope, int], FormulaId]
    ) -> None:
        super().__init__()
        self.schema = schema
        self.scope = scope
        self._inside = depth + 1
        self._read = read

    # -- values ----------------------------------------------------------------------------------------------------

    def decimal(self, keyword: str) -> Decimal:
        """The number that a keyword holds; raises LimitExceededError for one beyond a double."""
        value = self[keyword]
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise self.scope.wrong(keyword, "a number")
        number = Decimal(str(value))
        if not number.is_finite() or abs(number.adjusted()) > _MAX_MAGNITUDE:
            raise LimitExceededError(
                f"{keyword} is beyond the range of numbers (1e{_MAX_MAGNITUDE})",
                pointer=self.scope.below(keyword).pointer,
            )
        return number

    def count(self, keyword: str) -> int | None:
        """The count that a keyword holds, None where it is absent."""
        if keyword not in self:
            return None
        value = self.decimal(keyword)
        if value != value.to_integral_value() or value < 0:
            raise self.scope.wrong(keyword, "a non-negative integer")
        if value > _MAX_COUNT and keyword.startswith("min"):
            raise LimitExceededError(f"{keyword} above {_MAX_COUNT}", pointer=self.scope.below(keyword).pointer)
        # No larger maximum makes a difference to anything that fits into memory.
        return min(int(value), _MAX_COUNT)

    # -- schemas ---------------------------------------------------------------------------------------------------

    def at(self, scope: Scope, contents: Any) -> FormulaId:
        """The schema `contents`, which stands at `scope`."""
        return self._read(contents, scope, self._inside)

    def one(self, keyword: str) -> FormulaId:
        """The schema that a keyword holds; TRUE where it is absent."""
        return self.at(self.scope.below(keyword), self[keyword]) if keyword in self else TRUE

    def listed(self, keyword: str) -> list[FormulaId]:
        """The schemas of an array that a keyword holds, at least one; none where it is absent."""
        schemas = self.get(keyword, [])
        if not isinstance(schemas, list) or (keyword in self and not schemas):
            raise self.scope.wrong(keyword, "a non-empty array of schemas")
        return [self.at(self.scope.below(keyword, i), part) for i, part in enumerate(schemas)]

    def named(self, keyword: str) -> list[tuple[str, FormulaId]]:
        """The schemas of an object that a keyword holds, with their names; none where it is absent."""
        schemas = self.get(keyword, {})
        if not isinstance(schemas, dict):
            raise self.scope.wrong(keyword, "an object")
        return [(name, self.at(self.scope.below(keyword, name), part)) for name, part in schemas.items()]


def property_names(value: Any, scope: Scope) -> tuple[str, ...]:
    """The distinct property names of an array of them, which stands at `scope`."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidSpecificationError("must be an array of property names", pointer=scope.pointer)
    return tuple(dict.fromkeys(value))


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

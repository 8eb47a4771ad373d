"""The keywords of one schema, with checked access: numbers, counts, names, patterns and schemas.

A value is checked when it is read. Errors have the JSON Pointer of the keyword.
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

# Largest absolute power of ten of a numeric keyword: more than that of a double.
_MAX_MAGNITUDE = 400
# Largest count that the counters of an automaton hold.
_MAX_COUNT = 1_000_000_000


class SchemaKeywords(dict[str, Any]):
    """Dict of the keywords of one schema that its dialect defines, with methods that check their values.

    The dict is empty at first. The reader adds the keywords.

    Args:
        schema: The whole schema.
        scope: Dialect, base URI and JSON Pointer of the schema.
        depth: Number of schemas around the schema.
        read: Function that returns the formula of a schema. Its arguments are the contents, the scope and the depth.
    """

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
        """Return the value of `keyword`, which must be present, as a number.

        InvalidSpecificationError is raised if the value is not a number.

        Raises:
            LimitExceededError: The number is infinite, or its magnitude is above 1e400 or below 1e-400.
        """
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
        """Return the value of `keyword` as a non-negative integer. None if the keyword is absent.

        A maximum above 1e9 is returned as 1e9, because no value in memory reaches it. InvalidSpecificationError is
        raised if the value is not a non-negative integer.

        Raises:
            LimitExceededError: A minimum is above 1e9, or the number is infinite or above 1e400.
        """
        if keyword not in self:
            return None
        value = self.decimal(keyword)
        if value != value.to_integral_value() or value < 0:
            raise self.scope.wrong(keyword, "a non-negative integer")
        if value > _MAX_COUNT and keyword.startswith("min"):
            raise LimitExceededError(f"{keyword} above {_MAX_COUNT}", pointer=self.scope.below(keyword).pointer)
        # A larger maximum makes no difference: no value in memory reaches it.
        return min(int(value), _MAX_COUNT)

    # -- schemas ---------------------------------------------------------------------------------------------------

    def at(self, scope: Scope, contents: Any) -> FormulaId:
        """Return the number of the formula of a schema inside this schema.

        GrammarError is raised if the inner schema is malformed, unsupported or nested too deeply.

        Args:
            scope: Scope (dialect, base URI and JSON Pointer) of the inner schema.
            contents: The inner schema, which need not be valid.
        """
        return self._read(contents, scope, self._inside)

    def one(self, keyword: str) -> FormulaId:
        """Return the formula of the value of `keyword`, which is a schema. TRUE if the keyword is absent.

        GrammarError is raised if the schema is malformed, unsupported or nested too deeply.
        """
        return self.at(self.scope.below(keyword), self[keyword]) if keyword in self else TRUE

    def listed(self, keyword: str) -> list[FormulaId]:
        """Return the formulas of the value of `keyword`, which is an array of schemas. [] if the keyword is absent.

        InvalidSpecificationError is raised if the value is not an array or is empty. GrammarError is raised if one of
        the schemas is rejected.
        """
        schemas = self.get(keyword, [])
        if not isinstance(schemas, list) or (keyword in self and not schemas):
            raise self.scope.wrong(keyword, "a non-empty array of schemas")
        return [self.at(self.scope.below(keyword, i), part) for i, part in enumerate(schemas)]

    def named(self, keyword: str) -> list[tuple[str, FormulaId]]:
        """Return pairs (name, formula) for the value of `keyword`, which is an object with schemas as values.

        The list is empty if the keyword is absent. InvalidSpecificationError is raised if the value is not an object.
        GrammarError is raised if one of the schemas is rejected.
        """
        schemas = self.get(keyword, {})
        if not isinstance(schemas, dict):
            raise self.scope.wrong(keyword, "an object")
        return [(name, self.at(self.scope.below(keyword, name), part)) for name, part in schemas.items()]


def property_names(value: Any, scope: Scope) -> tuple[str, ...]:
    """Return the property names in the value of a keyword such as `required`, in order, each once.

    Args:
        value: The value, which need not be valid.
        scope: Scope of the value, for the JSON Pointer of the error.

    Raises:
        InvalidSpecificationError: The value is not an array of strings.
    """
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidSpecificationError("must be an array of property names", pointer=scope.pointer)
    return tuple(dict.fromkeys(value))


def checked_pattern(pattern: Any, scope: Scope, compiled: Callable[[str, Limits], object], limits: Limits) -> str:
    """Check that a regular expression compiles, and return it unchanged.

    Errors have the JSON Pointer of `scope`.

    Args:
        pattern: The value of the keyword, which need not be a string.
        scope: Scope of the pattern.
        compiled: Function that compiles the pattern. Pass the function that the solver calls later: it caches its
            results, so no pattern is compiled twice.
        limits: Limits of the compilation.

    Returns:
        The pattern.

    Raises:
        InvalidSpecificationError: The pattern is not a string.
        GrammarError: The pattern does not compile.
    """
    if not isinstance(pattern, str):
        raise InvalidSpecificationError("a pattern must be a string", pointer=scope.pointer)
    try:
        compiled(pattern, limits)
    except GrammarError as error:
        error.pointer = scope.pointer
        raise
    return pattern

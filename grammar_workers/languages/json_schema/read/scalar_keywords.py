"""Formulas of keywords whose values contain no schemas: keywords about types, listed values, strings and numbers."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from grammar_workers.errors import InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.json_schema.assertions import (
    BOOLEAN,
    ArrayShape,
    Assertion,
    FiniteTexts,
    FormulaId,
    IsInteger,
    JsonType,
    MultipleOf,
    NumberBound,
    ObjectShape,
    StringLengths,
    StringPattern,
)
from grammar_workers.languages.json_schema.logic import FALSE, TRUE
from grammar_workers.languages.json_schema.read import formats
from grammar_workers.languages.json_schema.read.definitions import Reading
from grammar_workers.languages.json_schema.read.keywords import PLAIN_NUMBERS
from grammar_workers.languages.json_schema.read.references import Scope
from grammar_workers.languages.json_schema.read.schema_keywords import SchemaKeywords, checked_pattern
from grammar_workers.languages.regex.leading_conditions import apart
from grammar_workers.languages.regex.lengths import pattern_and_lengths
from grammar_workers.memo import memoized
from grammar_workers.specification import Substring
from grammar_workers.validation import pointer, unknown_field

_TYPES = {
    "null": JsonType.NULL,
    "boolean": BOOLEAN,
    "integer": JsonType.NUMBER,
    "number": JsonType.NUMBER,
    "string": JsonType.STRING,
    "array": JsonType.ARRAY,
    "object": JsonType.OBJECT,
}
_PLAIN_NUMBERS = f"bounds and multiples: {PLAIN_NUMBERS}"


class ScalarKeywords:
    """Converter of keywords to formulas, for types, listed values, strings and numbers.

    There is one method for each group of keywords.

    Args:
        reading: Creates the formulas, and receives warnings and the keywords that are not enforced.
    """

    def __init__(self, reading: Reading) -> None:
        self._pool = reading.pool
        self._options = reading.options
        self._limits = reading.limits
        self._left_out = reading.left_out
        self._notes = reading.notes

    # -- any type --------------------------------------------------------------------------------------------------

    def types(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of the keyword `type`, which must be present in the schema.

        InvalidSpecificationError is raised if the value is neither a type name nor an array of type names.

        Args:
            schema: The keywords of the schema.
        """
        names = schema["type"]
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not names or not all(isinstance(n, str) and n in _TYPES for n in names):
            raise schema.scope.wrong("type", f"one of {', '.join(_TYPES)}, or an array of them")
        return self._one_of_types(schema.scope.draft, *names)

    @memoized
    def _one_of_types(self, draft: int, *names: str) -> FormulaId:
        test = self._pool.types(functools.reduce(operator.or_, [_TYPES[name] for name in names]))
        if "integer" in names and "number" not in names:
            with_fraction = self._options.number_spelling == "any" and draft > 4
            integer = MultipleOf("1") if with_fraction else IsInteger(by_spelling=draft == 4)
            return self._pool.all_of([test, self._pool.atom(JsonType.NUMBER, integer)])
        return test

    def listed_values(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of `const` and `enum` in a schema. TRUE without these keywords.

        InvalidSpecificationError is raised if `enum` is not an array.

        Args:
            schema: The keywords of the schema.
        """
        parts = []
        if "const" in schema:
            parts.append(self.one_of([schema["const"]]))
        if "enum" in schema:
            if not isinstance(schema["enum"], list):
                raise schema.scope.wrong("enum", "an array")
            parts.append(self.one_of(schema["enum"]))
        return self._pool.all_of(parts)

    def one_of(self, values: list[Any]) -> FormulaId:
        """Return the number of the formula "a value equals one of `values`". FALSE if the list is empty.

        All strings share one assertion, and all numbers share one. Each array or object has its own assertion.

        Args:
            values: JSON values as Python objects; numbers may be `Decimal`.
        """
        strings: list[str] = []
        numbers: list[str] = []
        constants = JsonType(0)
        parts: list[FormulaId] = []
        for value in values:
            if value is None:
                constants |= JsonType.NULL
            elif isinstance(value, bool):
                constants |= JsonType.TRUE if value else JsonType.FALSE
            elif isinstance(value, str):
                strings.append(value)
            elif isinstance(value, int | float | Decimal):
                numbers.extend(_spellings(value, with_fraction=self._options.number_spelling == "any"))
            elif isinstance(value, list):
                shape = ArrayShape(tuple(self.one_of([item]) for item in value), FALSE, len(value), len(value))
                parts.append(self._typed(JsonType.ARRAY, shape))
            else:
                properties = tuple((name, self.one_of([item])) for name, item in value.items())
                parts.append(self._typed(JsonType.OBJECT, ObjectShape(properties, (), FALSE, tuple(value))))
        if strings:
            parts.append(self._typed(JsonType.STRING, FiniteTexts(tuple(dict.fromkeys(strings)))))
        if numbers:
            parts.append(self._typed(JsonType.NUMBER, FiniteTexts(tuple(dict.fromkeys(numbers)))))
        return self._pool.any_of([self._pool.types(constants), *parts])

    def _typed(self, type_: JsonType, assertion: Assertion) -> FormulaId:
        return self._pool.all_of([self._pool.types(type_), self._pool.atom(type_, assertion)])

    # -- strings and numbers ---------------------------------------------------------------------------------------

    def strings(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of a schema's keywords about strings. TRUE if it has none.

        The keywords are `minLength`, `maxLength`, `pattern`, `format` and `x-turnstile`. An unknown format adds a
        warning. GrammarError is raised if a value is malformed, or if an unsupported keyword must be enforced
        (`on_unsupported: reject`).

        Args:
            schema: The keywords of the schema.
        """
        parts = []
        minimum = schema.count("minLength") or 0
        maximum = schema.count("maxLength")
        if minimum or maximum is not None:
            parts.append(self._pool.atom(JsonType.STRING, StringLengths(minimum, maximum)))
        if "pattern" in schema:
            with self._left_out.unless_unsupported(schema, "pattern"):
                patterns = self._patterns(schema["pattern"], schema.scope.below("pattern"))
                parts += [self._pool.atom(JsonType.STRING, StringPattern(pattern)) for pattern in patterns]
        if "format" in schema:
            parts.append(self._format(schema["format"], schema.scope))
        if "x-turnstile" in schema:
            parts.append(self._spans(schema["x-turnstile"], schema.scope))
        return self._pool.all_of(parts)

    def _patterns(self, pattern: Any, where: Scope) -> list[str]:
        """Return patterns all of which a string must match to match `pattern`.

        This is `pattern` itself, unless it is too large and can be split.

        Raises:
            LimitExceededError: The pattern is too large, and cannot be split into smaller ones.
        """
        try:
            return [checked_pattern(pattern, where, pattern_and_lengths, self._limits)]
        except LimitExceededError:
            with contextlib.suppress(LimitExceededError):
                if parts := apart(pattern):
                    return [checked_pattern(part, where, pattern_and_lengths, self._limits) for part in parts]
            raise

    def _spans(self, extension: Any, scope: Scope) -> FormulaId:
        if not isinstance(extension, dict) or "substring_of" not in extension:
            raise scope.wrong("x-turnstile", "an object with `substring_of`")
        asked = extension["substring_of"]
        asked = {"text": asked} if isinstance(asked, str) else asked
        for name in extension.keys() - {"substring_of"}:
            raise InvalidSpecificationError(
                "nothing else goes with `substring_of`", pointer=scope.below("x-turnstile", name).pointer
            )
        try:
            return self._pool.atom(JsonType.STRING, Substring.model_validate(asked))
        except ValidationError as error:
            where, first = scope.below("x-turnstile", "substring_of").pointer, error.errors()[0]
            unknown = unknown_field(first)
            inside = first["loc"] if unknown is None else (*unknown[0], unknown[1])
            message = first["msg"] if unknown is None else "unknown field"
            where += "" if isinstance(extension["substring_of"], str) else pointer(inside)
            raise InvalidSpecificationError(message, pointer=where) from None

    def _format(self, name: Any, scope: Scope) -> FormulaId:
        if not isinstance(name, str):
            raise scope.wrong("format", "a string")
        if self._options.format == "annotate" and not scope.dialect.asserts_format:
            return TRUE
        if name not in formats.STRING_FORMATS:
            self._notes.append(f"{scope.pointer or '#'}: unknown format {name!r} is not enforced")
            return TRUE
        parts = [self._pool.atom(JsonType.STRING, StringPattern(formats.source_of(name, scope.draft)))]
        if (longest := formats.STRING_FORMATS[name].longest) is not None:
            parts.append(self._pool.atom(JsonType.STRING, StringLengths(0, longest)))
        return self._pool.all_of(parts)

    def numbers(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of a schema's keywords about numbers. TRUE if it has none.

        The keywords are `minimum`, `maximum`, the two exclusive bounds, and `multipleOf`. If one is present, numbers
        are written without exponent, and a warning says so. GrammarError is raised if a value is malformed or out of
        range.

        Args:
            schema: The keywords of the schema.
        """
        parts = []
        for side, upper in (("Minimum", False), ("Maximum", True)):
            keyword, exclusive = side.lower(), f"exclusive{side}"
            strict = schema.scope.draft == 4 and schema.get(exclusive) is True
            if keyword in schema:
                parts.append(self._bound(schema.decimal(keyword), upper, strict))
            if exclusive in schema and schema.scope.draft > 4:
                parts.append(self._bound(schema.decimal(exclusive), upper, True))
        if "multipleOf" in schema:
            divisor = schema.decimal("multipleOf")
            if divisor <= 0:
                raise schema.scope.wrong("multipleOf", "positive")
            parts.append(self._pool.atom(JsonType.NUMBER, MultipleOf(format(divisor, "f"))))
        # No integer has an exponent anyway.
        if parts and schema.get("type") != "integer" and _PLAIN_NUMBERS not in self._notes:
            self._notes.append(_PLAIN_NUMBERS)
        return self._pool.all_of(parts)

    def _bound(self, bound: Decimal, upper: bool, exclusive: bool) -> FormulaId:
        return self._pool.atom(JsonType.NUMBER, NumberBound(format(bound, "f"), upper, exclusive))


def _spellings(value: int | float | Decimal, *, with_fraction: bool) -> Iterator[str]:
    """Yield the texts of a number: that of `json.dumps`, and that of the integer that it equals (2.0: 2.0 and 2).

    With `with_fraction`, an integer n is also written n.0, and zero also with a minus sign.
    """
    yield json.dumps(value) if isinstance(value, int | float) else str(value)
    # The decimal text of a large double such as 1e23 may differ from its exact value: then only this text is used.
    if int(value) == value == Decimal(str(value)):
        yield str(int(value))
        if with_fraction:
            yield f"{int(value)}.0"
            if not value:
                yield from ("-0", "-0.0")

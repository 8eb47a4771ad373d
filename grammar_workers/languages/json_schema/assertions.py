"""Assertions that keywords make about values of one JSON type. Module `logic` builds formulas from them.

An assertion is true of every value of another type. For example, `minLength` accepts every number. Assertions with
equal contents are equal, so equal keywords become equal formulas. An assertion refers to formulas about items and
property values by their numbers in one `FormulaPool` (table of formulas).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias

from grammar_workers.specification import Substring

# Number of a formula in the `FormulaPool` that created it.
FormulaId: TypeAlias = int


class JsonType(enum.IntFlag):
    """Set of types of JSON values, as bit flags. `true` and `false` are two separate types."""

    NULL = 1
    TRUE = 2
    FALSE = 4
    NUMBER = 8
    STRING = 16
    ARRAY = 32
    OBJECT = 64


ALL_TYPES = JsonType(127)
BOOLEAN = JsonType.TRUE | JsonType.FALSE


@dataclasses.dataclass(frozen=True, slots=True)
class StringLengths:
    """Assertion that a string has `minimum` to `maximum` characters, both inclusive. `maximum` None: no limit."""

    minimum: int
    maximum: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class StringPattern:
    """Assertion that a regular expression matches somewhere in a string. The expression must be valid."""

    pattern: str


@dataclasses.dataclass(frozen=True, slots=True)
class FiniteTexts:
    """Assertion that a string is one of `texts`. For a number, its decimal notation must be one of them."""

    texts: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class IsInteger:
    """Assertion that a number is an integer. Generated integers have neither a fraction nor an exponent.

    Attributes:
        by_spelling: True for draft 4: 1.0 is not an integer, because it has a fraction. False for later drafts: 1.0
            satisfies the assertion, but only 1 is generated for it.
    """

    by_spelling: bool


@dataclasses.dataclass(frozen=True, slots=True)
class NumberBound:
    """Assertion that a number is not below a minimum, or not above a maximum.

    Attributes:
        bound: A decimal numeral without exponent.
        upper: True for a maximum, False for a minimum.
        exclusive: True if the bound itself is excluded.
    """

    bound: str
    upper: bool
    exclusive: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectShape:
    """Assertion of `properties`, `patternProperties`, `additionalProperties` and `required` about an object.

    A formula is given by its number in the `FormulaPool` (table of formulas).

    Attributes:
        properties: Pairs (declared name, formula of its value), in declared order.
        patterns: Pairs (regular expression, formula). The formula is about the values of all properties whose names
            the expression matches.
        additional: Formula about the values of all properties that are not declared and that no pattern matches.
        required: Names that must be present.
    """

    properties: tuple[tuple[str, FormulaId], ...]
    patterns: tuple[tuple[str, FormulaId], ...]
    additional: FormulaId
    required: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PropertyNames:
    """Assertion that every property name of an object satisfies a formula.

    Attributes:
        names: Number of the formula in the `FormulaPool` (table of formulas).
    """

    names: FormulaId


@dataclasses.dataclass(frozen=True, slots=True)
class PropertyCount:
    """Assertion that an object has `minimum` to `maximum` properties, both inclusive. `maximum` None: no limit."""

    minimum: int
    maximum: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """Assertion that an undeclared property of an object violates the shape, and that no later property repairs this.

    The shape is the assertion of `properties`, `patternProperties`, `additionalProperties` and `required`. Undeclared
    names may repeat, and then the last value counts. For example, with `additionalProperties: {"type": "integer"}`, the
    property `"x": "a"` violates the shape, but a later `"x": 1` replaces it. So the assertion holds only if an
    undeclared property violates the shape and no later undeclared property may replace it by a valid one.

    Attributes:
        atom: Number of the formula that states the shape (`ObjectShape`).
    """

    atom: FormulaId


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayShape:
    """Assertion about the items and the length of an array.

    A formula is given by its number in the `FormulaPool` (table of formulas).

    Attributes:
        prefix: Formulas of the first items, one per position.
        items: Formula of every item after the prefix.
        minimum: Smallest number of items.
        maximum: Largest number of items, inclusive; None for no limit.
    """

    prefix: tuple[FormulaId, ...]
    items: FormulaId
    minimum: int
    maximum: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class ItemCount:
    """Assertion that `minimum` to `maximum` items of an array satisfy a formula, as `contains` requires.

    Attributes:
        items: Number of the formula in the `FormulaPool` (table of formulas).
        minimum: Smallest number of satisfying items.
        maximum: Largest number of satisfying items, inclusive; None for no limit.
    """

    items: FormulaId
    minimum: int
    maximum: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class UniqueItems:
    """Assertion that no two items of an array are equal.

    Attributes:
        once: Number of an equivalent formula, which says of each possible item value that it occurs at most once. None
            if the schema does not list the values of items, or lists too many.
    """

    once: FormulaId | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MultipleOf:
    """Assertion that a number is an integer multiple of `divisor`, a positive decimal numeral without exponent."""

    divisor: str


StringAssertion: TypeAlias = StringLengths | StringPattern | FiniteTexts | Substring
NumberAssertion: TypeAlias = IsInteger | NumberBound | MultipleOf | FiniteTexts
ObjectAssertion: TypeAlias = ObjectShape | PropertyNames | PropertyCount | Broken
ArrayAssertion: TypeAlias = ArrayShape | ItemCount | UniqueItems
Assertion: TypeAlias = StringAssertion | NumberAssertion | ObjectAssertion | ArrayAssertion

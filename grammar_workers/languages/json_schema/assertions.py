"""Assertions about values of one JSON type, as keywords make them: the atoms of the formulas in `logic`.

An assertion holds of every value of another type, as keywords do: `minLength` says nothing about numbers. Assertions
are values that compare and hash by their contents, so that equal keywords become equal formulas. Parts of arrays and
objects are described by formulas in turn, for which the numbers of one pool stand.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias

from grammar_workers.specification import Substring

FormulaId: TypeAlias = int
"""A formula, as the `FormulaPool` that made it numbers it."""


class JsonType(enum.IntFlag):
    """The types of JSON values, `true` and `false` apart, so that each of the two needs no further assertion."""

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
    """Between `minimum` and `maximum` characters (None: no maximum)."""

    minimum: int
    maximum: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class StringPattern:
    """`pattern` (a valid one) matches somewhere inside."""

    pattern: str


@dataclasses.dataclass(frozen=True, slots=True)
class FiniteTexts:
    """One of these strings, or of these spellings of numbers."""

    texts: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class IsInteger:
    """A number spelled without fraction and exponent. Unless the spelling decides (draft 4), 1.0 is an integer, too,
    which is not written.
    """

    by_spelling: bool


@dataclasses.dataclass(frozen=True, slots=True)
class NumberBound:
    """A number at least (`upper` false) or at most (`upper` true) `bound`, a decimal numeral."""

    bound: str
    upper: bool
    exclusive: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectShape:
    """Named properties in declared order, those whose names match a pattern, all others, and which must be present."""

    properties: tuple[tuple[str, FormulaId], ...]
    patterns: tuple[tuple[str, FormulaId], ...]
    additional: FormulaId
    required: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PropertyNames:
    """Every property name satisfies `names`."""

    names: FormulaId


@dataclasses.dataclass(frozen=True, slots=True)
class PropertyCount:
    """Between `minimum` and `maximum` properties (None: no maximum)."""

    minimum: int
    maximum: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """An undeclared property has broken the shape `atom`, and no later undeclared one keeps to it.

    Undeclared names may repeat, and the last value counts; so a violation that a formula hinges on is not repaired.
    """

    atom: FormulaId


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayShape:
    """The items at the first positions, every later one, and how many there may be (None: no maximum)."""

    prefix: tuple[FormulaId, ...]
    items: FormulaId
    minimum: int
    maximum: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class ItemCount:
    """Between `minimum` and `maximum` items (None: no maximum) satisfy `items`."""

    items: FormulaId
    minimum: int
    maximum: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class UniqueItems:
    """No two items are equal. `once` says the same where the values of items are listed; None where it cannot."""

    once: FormulaId | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MultipleOf:
    """A number that is a multiple of `divisor`, a positive decimal numeral."""

    divisor: str


StringAssertion: TypeAlias = StringLengths | StringPattern | FiniteTexts | Substring
NumberAssertion: TypeAlias = IsInteger | NumberBound | MultipleOf | FiniteTexts
ObjectAssertion: TypeAlias = ObjectShape | PropertyNames | PropertyCount | Broken
ArrayAssertion: TypeAlias = ArrayShape | ItemCount | UniqueItems
Assertion: TypeAlias = StringAssertion | NumberAssertion | ObjectAssertion | ArrayAssertion

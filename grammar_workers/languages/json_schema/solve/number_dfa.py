"""Automata over the decimal spelling of JSON numbers: the grammars of numbers, and comparisons with a bound.

All are automata over whole number texts; comparisons read plain decimals (no exponent) and are mathematically exact.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import budget_of, remembered
from grammar_workers.dfa.dfa import Dfa, explore, literal_set, minimize
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.options import Limits

MAX_DIGITS = 308
"""The most digits before the point; after it there is no limit. A number without exponent is so a finite double."""
PLACES_OF_EXPONENT = 99
"""As many digits fewer may stand before the point where an exponent follows, which adds so many places at most."""
WHOLE, FRACTION, EXPONENT = range(3)
"""The parts of a number, by what has been read: no point and no exponent mark, a point, an exponent mark."""
_PART_AFTER = {".": FRACTION, "e": EXPONENT, "E": EXPONENT}

_STARTS = (0, *map(ord, "-./0123456789:"))
_LETTER_AT = (-1, 0, 1, -1, *range(2, 12), -1)
"""The letters of comparisons: a minus sign, a point and each digit."""
_PLAIN = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
# Up to 209 digits before e+99, a single one before e+307, and 1.7976931348623157e+308 are finite doubles.
_LARGEST = r"1(\.([0-6][0-9]*|7|7[0-8][0-9]*|79([0-6][0-9]*)?|7976931348623157))?[eE]\+?308"
_ANY = (
    rf"{_PLAIN}([eE][+-]?[0-9]{{1,2}})?"
    rf"|-?([0-9](\.[0-9]+)?[eE]([+-]?([12][0-9][0-9]|30[0-7])|-(30[89]|31[0-9]|32[0-4]))|{_LARGEST})"
)


@functools.cache
def any_number() -> Dfa:
    """Every JSON number that is a finite double, with or without an exponent."""
    return compile_regex(_ANY, search=False, limits=Limits())


@functools.cache
def plain_number() -> Dfa:
    """Numbers without an exponent."""
    return compile_regex(_PLAIN, search=False, limits=Limits())


@functools.cache
def integer() -> Dfa:
    """Integers without fraction or exponent."""
    return compile_regex(r"-?(0|[1-9][0-9]*)", search=False, limits=Limits())


def spellings(labels: Mapping[Decimal, int]) -> Dfa:
    """Every spelling of these values without an exponent, each with its label: zeros may follow a fraction."""
    plain = {value: format(value, "f") for value in labels}
    decimals = max((len(text.partition(".")[2]) for text in plain.values()), default=0) + 1
    # Each value is written with each number of digits.
    budget_of(Limits()).spend(decimals * sum(len(text) + decimals for text in plain.values()) >> 3)
    texts: dict[str, int] = {}
    longest: dict[str, str] = {}
    for value, text in plain.items():
        whole, _, fraction = text.removeprefix("-").partition(".")
        for sign in ("", "-") if not value else ("-",) if value < 0 else ("",):
            kept = fraction.rstrip("0")
            if not kept:
                texts[f"{sign}{whole}"] = labels[value]
            for many in range(max(1, len(kept)), decimals + 1):
                texts[f"{sign}{whole}.{kept:0<{many}}"] = labels[value]
            longest[f"{sign}{whole}.{kept:0<{decimals}}"] = "0"
    return literal_set(texts, longest)


def parts_and_costs(automaton: Dfa) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64 [parts, classes] each: the part of a number after a character of each class that is read in each part, and
    how many of the MAX_DIGITS that costs: digits before the point one, an exponent mark PLACES_OF_EXPONENT.
    """
    characters = [chr(start) for start in automaton.starts]
    parts = np.array([[max(part, _PART_AFTER.get(c, part)) for c in characters] for part in range(3)])
    costs = np.zeros_like(parts)
    costs[WHOLE] = [c.isdecimal() for c in characters]
    costs[:EXPONENT] += PLACES_OF_EXPONENT * (parts[:EXPONENT] == EXPONENT)
    return parts, costs


@functools.lru_cache(maxsize=256)
def digits_needed(automaton: Dfa, label: int | None = None) -> NDArray[np.int64]:
    """Of the MAX_DIGITS, what the way to acceptance (with `label`) costs at least from each state in each part of a
    number, int64 [parts, states]; above MAX_DIGITS when there is none.
    """
    parts, costs = parts_and_costs(automaton)
    # The last entry stands for the dead state, which index -1 finds.
    needed = np.full((3, automaton.many_states + 1), 10 * MAX_DIGITS)
    needed[:, [end for end in automaton.ends if label in (None, automaton.accepting[end])]] = 0
    while True:
        behind = needed[parts[:, None, :], automaton.table] + costs[:, None, :]
        fewer = np.minimum(needed[:, :-1], behind.min(axis=2))
        if np.array_equal(fewer, needed[:, :-1]):
            return fewer
        needed[:, :-1] = fewer


def has_few_digits(text: str) -> bool:
    """Whether a spelling of a number has at most MAX_DIGITS digits before the point."""
    return len(re.split("[.eE]", text.removeprefix("-"))[0]) <= MAX_DIGITS


@remembered(maxsize=4096)
def compared(bound: Decimal, *, less: bool, equal: bool, greater: bool) -> Dfa:
    """The plain decimals x with x < bound, x = bound or x > bound, whichever are wanted. -0 equals 0."""
    comparison = _Comparison(bound)

    def accepts(state: _Reading) -> int:
        order = comparison.verdict(state)
        return int(order is not None and (less, equal, greater)[order + 1])

    return minimize(explore(_Reading(), comparison.following, accepts, _STARTS, _LETTER_AT))


_Remainder: TypeAlias = tuple[int, int, bool, bool]
"""Places of the fraction read (-1 before the point), remainder, whether a digit may follow, and has in this part."""


@remembered(maxsize=1024)
def multiple_of(divisor: Decimal, limits: Limits) -> Dfa:
    """The plain decimals that are a multiple of `divisor` (positive), by remainders, digit for digit.

    Raises LimitExceededError when the divisor has too many remainders.
    """
    whole, _, fraction = format(divisor, "f").partition(".")
    places = len(fraction.rstrip("0"))
    modulus = int(whole + fraction[:places])
    if modulus * (places + 3) > limits.max_regex_states:
        raise LimitExceededError(f"multipleOf {divisor} needs more than {limits.max_regex_states} states")

    def following(state: _Remainder) -> list[_Remainder | None]:
        fraction, remainder, open_, begun = state
        minus = (-1, 0, True, False) if state == start else None
        point = (0, remainder, True, False) if fraction < 0 and begun else None
        digits: list[_Remainder | None] = [None] * 10
        if open_ and fraction < 0:
            digits = [(-1, (remainder * 10 + digit) % modulus, begun or digit != 0, True) for digit in range(10)]
        elif open_ and fraction < places:
            digits = [(fraction + 1, (remainder * 10 + digit) % modulus, True, True) for digit in range(10)]
        elif open_:
            digits[0] = (fraction, remainder, True, True)
        return [minus, point, *digits]

    def accepts(state: _Remainder) -> int:
        fraction, remainder, _, begun = state
        return int(begun and remainder * 10 ** (places - max(fraction, 0)) % modulus == 0)

    start = (-2, 0, True, False)
    return minimize(explore(start, following, accepts, _STARTS, _LETTER_AT))


class _Reading(NamedTuple):
    """A state of the comparison: how much of a number has been read, and how it compares so far with the bound.

    `digits` counts the digits of the current part, up to where counting stops mattering; `zero` tells that the integer
    part is a single 0, so that no digit may follow; `order` is -1, 0 or 1 for the digits read so far.
    """

    negative: bool = False
    fraction: bool = False
    digits: int = 0
    zero: bool = False
    order: int = 0


class _Comparison:
    """Digit by digit comparison with |bound|: by length, then lexicographically, then the fraction."""

    def __init__(self, bound: Decimal) -> None:
        self._negative = bound < 0
        self._is_zero = bound == 0
        # Not by `abs`, which rounds to the digits of a context.
        whole, _, fraction = format(bound.copy_abs(), "f").partition(".")
        self._whole = list(map(int, whole.lstrip("0") or "0"))
        self._fraction = list(map(int, fraction.rstrip("0")))

    def following(self, state: _Reading) -> list[_Reading | None]:
        """The states after a minus sign, a point and each digit."""
        if state.fraction:
            return [None, None, *self._in_fraction(state)]
        minus = _Reading(negative=True) if state == _Reading() else None
        if state.digits == 0:
            return [minus, None, *self._in_whole(state)]
        point = _Reading(negative=state.negative, fraction=True, order=self._after_whole(state))
        return [minus, point, *([None] * 10 if state.zero else self._in_whole(state))]

    def _sign_decides(self, state: _Reading) -> bool:
        return not self._is_zero and state.negative != self._negative

    def _in_whole(self, state: _Reading) -> list[_Reading]:
        index = state.digits
        if self._sign_decides(state):
            after = _Reading(state.negative, False, 1, False, 1)
        else:
            after = _Reading(state.negative, False, min(index + 1, len(self._whole) + 1), False, state.order)
        digits = [after] * 10
        if after.order == 0 and index < len(self._whole):
            digits = _by_order(self._whole[index], after._replace(order=-1), after, after._replace(order=1))
        if index == 0:
            digits[0] = digits[0]._replace(zero=True)
        return digits

    def _after_whole(self, state: _Reading) -> int:
        """How the whole parts compare once all digits are read: the longer one is larger."""
        if self._sign_decides(state):
            return 1
        by_length = (state.digits > len(self._whole)) - (state.digits < len(self._whole))
        return by_length or state.order

    def _in_fraction(self, state: _Reading) -> list[_Reading]:
        index = state.digits
        # Once decided, only whether there is a digit at all still matters.
        below, above = [_Reading(state.negative, True, 1, False, order) for order in (-1, 1)]
        if state.order:
            return [below if state.order < 0 else above] * 10
        equal = _Reading(state.negative, True, min(index + 1, len(self._fraction) + 1), False, 0)
        return _by_order(self._fraction[index] if index < len(self._fraction) else 0, below, equal, above)

    def verdict(self, state: _Reading) -> int | None:
        """-1, 0 or 1 as the number read compares with the bound; None where a number may not end."""
        if state.digits == 0:
            return None
        if not state.fraction:
            order = self._after_whole(state)
            if order == 0 and self._fraction:
                order = -1
        else:
            order = -1 if state.order == 0 and state.digits < len(self._fraction) else state.order
        if state.negative:
            # -m against the bound b: above every negative bound's mirror image, below every positive bound.
            return -order if self._negative or self._is_zero else -1
        return 1 if self._negative else order


def _by_order(expected: int, below: _Reading, equal: _Reading, above: _Reading) -> list[_Reading]:
    """The states after each digit, as it compares with the expected one."""
    return [below] * expected + [equal] + [above] * (9 - expected)

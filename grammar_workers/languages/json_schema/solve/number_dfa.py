"""Automata over the decimal text of JSON numbers: the syntax of numbers, and comparisons with a bound.

All automata read the whole text of a number. Comparisons read numbers without exponent, and are mathematically exact.
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

# Largest number of digits before the point; there is no limit after it.
#
# A number without exponent is then a finite double.
MAX_DIGITS = 308
# Number of digits before the point by which MAX_DIGITS is reduced if an exponent follows.
#
# An exponent shifts the point by at most as many places.
PLACES_OF_EXPONENT = 99
# The parts of a number, by what has been read: no point and no exponent mark, a point, an exponent mark.
WHOLE, FRACTION, EXPONENT = range(3)
_PART_AFTER = {".": FRACTION, "e": EXPONENT, "E": EXPONENT}

_STARTS = (0, *map(ord, "-./0123456789:"))
# The letters of comparisons: a minus sign, a point and each digit.
_LETTER_AT = (-1, 0, 1, -1, *range(2, 12), -1)
_PLAIN = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
# Up to 209 digits before e+99, a single one before e+307, and 1.7976931348623157e+308 are finite doubles.
_LARGEST = r"1(\.([0-6][0-9]*|7|7[0-8][0-9]*|79([0-6][0-9]*)?|7976931348623157))?[eE]\+?308"
_ANY = (
    rf"{_PLAIN}([eE][+-]?[0-9]{{1,2}})?"
    rf"|-?([0-9](\.[0-9]+)?[eE]([+-]?([12][0-9][0-9]|30[0-7])|-(30[89]|31[0-9]|32[0-4]))|{_LARGEST})"
)


@functools.cache
def any_number() -> Dfa:
    """Return the DFA of all JSON numbers that are finite doubles, with or without exponent."""
    return compile_regex(_ANY, search=False, limits=Limits())


@functools.cache
def plain_number() -> Dfa:
    """Return the DFA of the JSON numbers that are written without exponent, of any length."""
    return compile_regex(_PLAIN, search=False, limits=Limits())


@functools.cache
def integer() -> Dfa:
    """Return the DFA of the integers that are written without fraction and exponent, -0 included."""
    return compile_regex(r"-?(0|[1-9][0-9]*)", search=False, limits=Limits())


def spellings(labels: Mapping[Decimal, int]) -> Dfa:
    """Return the DFA of all decimal texts of some numbers, without exponent. The texts of 1 are 1, 1.0, 1.00 and so on.

    Args:
        labels: Number -> positive label with which the DFA accepts all texts of the number.
    """
    plain = {value: format(value, "f") for value in labels}
    decimals = max((len(text.partition(".")[2]) for text in plain.values()), default=0) + 1
    # Each value is written with each possible number of digits after the point.
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
    """Return the part of a number after each character, and the cost of the character.

    The parts are WHOLE (0, before the point), FRACTION (1) and EXPONENT (2). Costs count against MAX_DIGITS: a digit
    before the point costs 1, an exponent mark PLACES_OF_EXPONENT, and any other character 0.

    Args:
        automaton: An automaton over the characters of numbers.

    Returns:
        Next parts and costs, int64 [parts, classes] each. The first index is the part in which the character is read.
        The second is the class of the character (column of `automaton.table`).
    """
    characters = [chr(start) for start in automaton.starts]
    parts = np.array([[max(part, _PART_AFTER.get(c, part)) for c in characters] for part in range(3)])
    costs = np.zeros_like(parts)
    costs[WHOLE] = [c.isdecimal() for c in characters]
    costs[:EXPONENT] += PLACES_OF_EXPONENT * (parts[:EXPONENT] == EXPONENT)
    return parts, costs


@functools.lru_cache(maxsize=256)
def digits_needed(automaton: Dfa, label: int | None = None) -> NDArray[np.int64]:
    """Return the lowest cost of a path from each state to an accepting state, in digits before the point.

    `parts_and_costs` defines the costs: a digit before the point costs 1, an exponent mark PLACES_OF_EXPONENT.

    Args:
        automaton: An automaton over the characters of numbers.
        label: Only accepting states with this label count; None for any label.

    Returns:
        Costs, int64 [parts, states]. The first index is the part of the number at the state: WHOLE (0, before the
        point), FRACTION (1) or EXPONENT (2). A cost is above MAX_DIGITS if there is no path.
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
    """Return whether the text of a JSON number has at most MAX_DIGITS digits before the point."""
    return len(re.split("[.eE]", text.removeprefix("-"))[0]) <= MAX_DIGITS


class _Reading(NamedTuple):
    """State of a comparison: how much of a number has been read, and how it compares with the bound so far.

    Attributes:
        negative: True after a minus sign.
        fraction: True after the point.
        digits: Number of digits in the current part, counted as far as it matters.
        order: -1, 0 or 1 for the digits read so far: below, equal to or above those of |bound|.
        zero: True if the integer part is a single 0, so that no digit may follow.
    """

    negative: bool = False
    fraction: bool = False
    digits: int = 0
    order: int = 0
    zero: bool = False


@remembered(maxsize=4096)
def compared(bound: Decimal, *, less: bool, equal: bool, greater: bool) -> Dfa:
    """Return the automaton of the numbers without exponent that are below, equal to or above a bound, as selected.

    For example, `less` and `equal` together select the numbers up to the bound. -0 equals 0.

    Args:
        bound: The bound, of any size and precision.
        less: True if numbers below the bound are accepted.
        equal: True if numbers equal to the bound are accepted.
        greater: True if numbers above the bound are accepted.
    """
    # Not by `abs`, which rounds to the digits of a context.
    whole, _, fraction = format(bound.copy_abs(), "f").partition(".")
    parts = [list(map(int, whole.lstrip("0") or "0")), list(map(int, fraction.rstrip("0")))]

    def expected_of(state: _Reading) -> list[int]:
        """Return the digits of |bound| in the current part; none if the sign decides."""
        return parts[state.fraction] if not bound or state.negative == (bound < 0) else []

    def order_of(state: _Reading) -> int:
        """Compare what has been read with |bound| up to the same part. Of two integer parts, the longer is larger."""
        missing = len(expected_of(state)) - state.digits
        if state.fraction:
            return state.order or -(missing > 0)
        return (missing < 0) - (missing > 0) or state.order

    def following(state: _Reading) -> list[_Reading | None]:
        minus = _Reading(negative=True) if state == _Reading() else None
        point = None
        if state.digits and not state.fraction:
            point = _Reading(state.negative, True, order=order_of(state))
        if state.zero:
            return [minus, point, *[None] * 10]
        expected = expected_of(state)
        # Once the order is decided in the fraction, it only matters whether there is a digit at all.
        seen = 0 if state.fraction and state.order else min(state.digits, len(expected))
        equal = state._replace(digits=seen + 1)
        digits = [equal] * 10
        if not state.order and (state.fraction or seen < len(expected)):
            digit = expected[seen] if seen < len(expected) else 0
            digits = [equal._replace(order=-1)] * digit + [equal] + [equal._replace(order=1)] * (9 - digit)
        if not state.digits and not state.fraction:
            digits[0] = digits[0]._replace(zero=True)
        return [minus, point, *digits]

    def accepts(state: _Reading) -> int:
        order = order_of(state) or -(not state.fraction and bool(parts[1]))
        return int(state.digits > 0 and (less, equal, greater)[1 - order if state.negative else 1 + order])

    return minimize(explore(_Reading(), following, accepts, _STARTS, _LETTER_AT))


# State of a division: fraction digits read, remainder, may a digit follow, is there a digit in this part.
#
# Before the point, the number of fraction digits is -1; at the start of the number it is -2.
_Remainder: TypeAlias = tuple[int, int, bool, bool]


@remembered(maxsize=1024)
def multiple_of(divisor: Decimal, limits: Limits) -> Dfa:
    """Return the automaton of the numbers without exponent that are integer multiples of `divisor`.

    Its states are the remainders of a division by the divisor.

    Args:
        divisor: A positive number.
        limits: `max_regex_states` limits the number of states.

    Raises:
        LimitExceededError: The automaton would need too many states.
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

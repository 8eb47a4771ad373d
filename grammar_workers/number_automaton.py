"""Automata over the decimal spelling of JSON numbers: the grammars of numbers, and comparisons with a bound.

All are automata over whole number texts; comparisons read plain decimals (no exponent) and are mathematically exact.
"""

from __future__ import annotations

import functools
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from grammar_workers import character_automaton
from grammar_workers.character_automaton import CharacterAutomaton
from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits
from grammar_workers.regex import compile_regex

MAX_DIGITS = 64
"""The most digits in one number. With the exponents below, every number is a finite double."""

_DIGITS = "0123456789"
_PLAIN = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
# Up to 64 digits before e+99, or a single one before e+307, stay below the largest double.
_ANY = rf"{_PLAIN}([eE][+-]?[0-9]{{1,2}})?|-?[0-9](\.[0-9]+)?[eE][+-]?([12][0-9][0-9]|30[0-7])"


@functools.cache
def any_number() -> CharacterAutomaton:
    """Every JSON number that is a finite double, with or without an exponent."""
    return compile_regex(_ANY, search=False, limits=Limits())


@functools.cache
def plain_number() -> CharacterAutomaton:
    """Numbers without an exponent."""
    return compile_regex(_PLAIN, search=False, limits=Limits())


@functools.cache
def integer() -> CharacterAutomaton:
    """Integers without fraction or exponent."""
    return compile_regex(r"-?(0|[1-9][0-9]*)", search=False, limits=Limits())


@functools.lru_cache(maxsize=256)
def digits_needed(automaton: CharacterAutomaton, label: int | None = None) -> tuple[int, ...]:
    """Per state: the fewest digits on a way to acceptance (with `label`); above MAX_DIGITS when there is none."""
    by_digit = np.array([chr(start).isdecimal() for start in automaton.starts])
    # The last entry stands for the dead state, which index -1 finds.
    needed = np.full(len(automaton.moves) + 1, 10 * MAX_DIGITS)
    for state, accepted in enumerate(automaton.accepting):
        if accepted and label in (None, accepted):
            needed[state] = 0
    while True:
        fewer = np.minimum(needed[:-1], (needed[automaton.table] + by_digit).min(axis=1))
        if np.array_equal(fewer, needed[:-1]):
            return tuple(fewer.tolist())
        needed[:-1] = fewer


@functools.lru_cache(maxsize=4096)
def compared(bound: Decimal, *, less: bool, equal: bool, greater: bool) -> CharacterAutomaton:
    """The plain decimals x with x < bound, x = bound or x > bound, whichever are wanted. -0 equals 0."""
    comparison = _Comparison(bound)

    def accepts(state: _Reading) -> int:
        order = comparison.verdict(state)
        return int(order is not None and (less, equal, greater)[order + 1])

    return character_automaton.explore(_Reading(), comparison.step, accepts, "-." + _DIGITS)


@functools.lru_cache(maxsize=1024)
def multiple_of(divisor: Decimal, limits: Limits) -> CharacterAutomaton:
    """The plain decimals that are a multiple of `divisor` (positive), by remainders, digit for digit.

    Raises LimitExceededError when the divisor has too many remainders.
    """
    _, _, exponent = divisor.normalize().as_tuple()
    places = max(-int(exponent), 0)
    modulus = int(divisor.scaleb(places))
    if modulus * (places + 3) > limits.max_regex_states:
        raise LimitExceededError(f"multipleOf {divisor} needs more than {limits.max_regex_states} states")

    # (places of the fraction read or -1 before the point, remainder, a digit may follow, digits read in this part)
    def step(state: tuple[int, int, bool, bool], character: str) -> tuple[int, int, bool, bool] | None:
        fraction, remainder, open_, begun = state
        if character == "-":
            return (-1, 0, True, False) if state == start else None
        if character == ".":
            return (0, remainder, True, False) if fraction < 0 and begun else None
        if not open_:
            return None
        if fraction < 0:
            return -1, (remainder * 10 + int(character)) % modulus, begun or character != "0", True
        if fraction < places:
            return fraction + 1, (remainder * 10 + int(character)) % modulus, True, True
        return (fraction, remainder, True, True) if character == "0" else None

    def accepts(state: tuple[int, int, bool, bool]) -> int:
        fraction, remainder, _, begun = state
        return int(begun and remainder * 10 ** (places - max(fraction, 0)) % modulus == 0)

    start = (-2, 0, True, False)
    return character_automaton.explore(start, step, accepts, "-." + _DIGITS)


class _Reading(NamedTuple):
    """How much of a number has been read, and how its magnitude compares so far with that of the bound.

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
        whole, _, fraction = format(abs(bound), "f").partition(".")
        self._whole = whole.lstrip("0") or "0"
        self._fraction = fraction.rstrip("0")

    def step(self, state: _Reading, character: str) -> _Reading | None:
        if character == "-":
            return _Reading(negative=True) if state == _Reading() else None
        if character == ".":
            if state.fraction or state.digits == 0:
                return None
            return _Reading(negative=state.negative, fraction=True, order=self._after_whole(state))
        return self._in_fraction(state, character) if state.fraction else self._in_whole(state, character)

    def _in_whole(self, state: _Reading, digit: str) -> _Reading | None:
        if state.zero:
            return None
        place = state.digits
        order = state.order
        if order == 0 and place < len(self._whole):
            order = (digit > self._whole[place]) - (digit < self._whole[place])
        zero = place == 0 and digit == "0"
        return _Reading(state.negative, False, min(place + 1, len(self._whole) + 1), zero, order)

    def _after_whole(self, state: _Reading) -> int:
        """How the whole parts compare once all digits are read: the longer one is larger."""
        by_length = (state.digits > len(self._whole)) - (state.digits < len(self._whole))
        return by_length or state.order

    def _in_fraction(self, state: _Reading, digit: str) -> _Reading:
        place = state.digits
        order = state.order
        if order == 0:
            expected = self._fraction[place] if place < len(self._fraction) else "0"
            order = (digit > expected) - (digit < expected)
        # Once decided, only whether there is a digit at all still matters.
        digits = min(place + 1, len(self._fraction) + 1) if order == 0 else 1
        return _Reading(state.negative, True, digits, False, order)

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

"""Sets of characters (`Charset`) as sorted, disjoint, non-adjacent intervals (first, last), both inclusive.

Characters are Unicode scalar values: all code points except surrogates.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

import regex

# Inclusive intervals (first, last) of code points.
Charset = tuple[tuple[int, int], ...]

EMPTY: Charset = ()
# Every scalar value. Surrogates are not characters and cannot be encoded in UTF-8.
ALL: Charset = ((0, 0xD7FF), (0xE000, 0x10FFFF))


def merged(intervals: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the union of intervals of integers as sorted, disjoint, non-adjacent intervals.

    Args:
        intervals: Pairs (first, last), both inclusive; they may overlap and have any order.
    """
    union: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if union and low <= union[-1][1] + 1:
            union[-1] = (union[-1][0], max(union[-1][1], high))
        else:
            union.append((low, high))
    return tuple(union)


def make(intervals: Iterable[tuple[int, int]]) -> Charset:
    """Return the set of all characters in `intervals`, without surrogates.

    Args:
        intervals: Pairs (first, last) of code points, both inclusive; they may overlap and have any order.
    """
    return intersect(merged(intervals), ALL)


def of(characters: Iterable[str]) -> Charset:
    """Return the set of the given characters. Surrogates are dropped.

    Args:
        characters: Strings of length 1, or one string, whose characters are the set.
    """
    return make((ord(character), ord(character)) for character in characters)


def union(*sets: Charset) -> Charset:
    """Return the set of the characters that are in at least one of `sets`. Without arguments: the empty set."""
    return make(interval for charset in sets for interval in charset)


def intersect(first: Charset, second: Charset) -> Charset:
    """Return the set of the characters that are in both sets."""
    result = []
    i = j = 0
    while i < len(first) and j < len(second):
        low = max(first[i][0], second[j][0])
        high = min(first[i][1], second[j][1])
        if low <= high:
            result.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return tuple(result)


def complement(charset: Charset) -> Charset:
    """Return the set of all characters, except surrogates, that are not in `charset`."""
    result = []
    start = 0
    for low, high in charset:
        if start < low:
            result.append((start, low - 1))
        start = high + 1
    if start <= 0x10FFFF:
        result.append((start, 0x10FFFF))
    return intersect(tuple(result), ALL)


def subtract(first: Charset, second: Charset) -> Charset:
    """Return the characters of `first` that are not in `second`."""
    return intersect(first, complement(second))


def contains(charset: Charset, code_point: int) -> bool:
    """Return whether a set of characters contains the character with a given code point."""
    return any(low <= code_point <= high for low, high in charset)


def letters_of(sets: Iterable[Charset]) -> tuple[list[int], list[int], dict[Charset, list[int]]]:
    """Split all code points into classes, called letters, and map each of `sets` to the letters that it contains.

    Args:
        sets: Sets of characters, which may overlap. Each of them is a union of letters.

    Returns:
        Tuple (starts, letters, letters by set). `starts` has the first code points of intervals, ascending. An interval
        ends before the next start, the last one at U+10FFFF. `letters[i]` is the letter (number from 0) of interval i;
        -1 for surrogates. The dict has the letters of each set, ascending; its keys are in the order of `sets`.
    """
    distinct = list(dict.fromkeys(sets))
    # Bit i stands for the set with number i.
    toggles: dict[int, int] = {0: 0, 0xD800: 0, 0xE000: 0}
    for number, each in enumerate(distinct):
        for low, high in each:
            for border in (low, high + 1):
                toggles[border] = toggles.get(border, 0) ^ 1 << number
    toggles.pop(0x110000, None)
    starts = sorted(toggles)
    members = 0
    numbers: dict[int, int] = {}
    letter_at = []
    for start in starts:
        members ^= toggles[start]
        letter_at.append(-1 if start == 0xD800 else numbers.setdefault(members, len(numbers)))
    letters: dict[Charset, list[int]] = {each: [] for each in distinct}
    for holders, letter in numbers.items():
        for number in bits_of(holders):
            letters[distinct[number]].append(letter)
    return starts, letter_at, letters


def spans_of(starts: Sequence[int], letter_at: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return the intervals of code points of each letter (class of characters).

    Args:
        starts: First code point of each interval, ascending. An interval ends before the next start, the last one at
            U+10FFFF.
        letter_at: Letter of each interval; -1 for none.

    Returns:
        For each letter its intervals (first, last), both inclusive, ascending.
    """
    spans: list[list[tuple[int, int]]] = [[] for _ in range(max(letter_at) + 1)]
    for low, end, letter in zip(starts, [*starts[1:], 0x110000], letter_at, strict=True):
        if letter >= 0:
            spans[letter].append((low, end - 1))
    return spans


def bits_of(number: int) -> list[int]:
    """Return the indices of the bits that are set in a non-negative integer, ascending."""
    found = []
    while number:
        lowest = number & -number
        found.append(lowest.bit_length() - 1)
        number ^= lowest
    return found


def singles(code_points: Iterable[int]) -> Charset:
    """Return one interval (code, code) for each code point, in the given order.

    In contrast to the function `make`, adjacent intervals are not merged, and surrogates are kept.
    """
    return tuple([(code, code) for code in code_points])


def class_starts(sets: Iterable[Charset]) -> list[int]:
    """Return the first code points of intervals of code points, so that each of `sets` consists of whole intervals.

    The list is ascending, and its first item is 0. Example: for the set of the letters a to c (97 to 99), it is
    `[0, 97, 100]`.

    Args:
        sets: Sets of characters, which may overlap.
    """
    borders = {0}
    for characters in sets:
        for low, high in characters:
            borders.update((low, high + 1))
    return sorted(border for border in borders if border <= 0x10FFFF)


@functools.cache
def _every_character() -> str:
    """Return all scalar values in order."""
    return "".join(chr(code_point) for low, high in ALL for code_point in range(low, high + 1))


@functools.cache
def matching(pattern: str, *, properties: bool = False) -> Charset:
    """Return the set of the single characters that a regular expression matches.

    Raises `re.error` (or `regex.error` with `properties`) if the pattern is not valid.

    Args:
        pattern: Pattern of one character.
        properties: True to use the package `regex`, which supports Unicode properties. False for Python's `re`.
    """
    text = _every_character()
    compiled = (regex if properties else re).compile(f"(?:{pattern})+")
    # A run may extend over the surrogates, which `text` does not contain. `make` removes them.
    return make((ord(text[run.start()]), ord(text[run.end() - 1])) for run in compiled.finditer(text))

"""Sets of Unicode scalar values as sorted, disjoint, non-adjacent inclusive intervals."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterable, Sequence

import regex

Charset = tuple[tuple[int, int], ...]

EMPTY: Charset = ()
ALL: Charset = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""Every scalar value: surrogates are no characters and cannot be written as UTF-8."""


def make(intervals: Iterable[tuple[int, int]]) -> Charset:
    """The set of all code points in `intervals`, in any order, overlapping or not; surrogates are left out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return intersect(tuple(merged), ALL)


def of(characters: Iterable[str]) -> Charset:
    return make((ord(character), ord(character)) for character in characters)


def union(*sets: Charset) -> Charset:
    return make(interval for charset in sets for interval in charset)


def intersect(first: Charset, second: Charset) -> Charset:
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
    return intersect(first, complement(second))


def contains(charset: Charset, code_point: int) -> bool:
    return any(low <= code_point <= high for low, high in charset)


def partition(sets: Sequence[Charset]) -> tuple[list[int], list[int], list[int]]:
    """Split all code points into classes that no set tells apart.

    Returns the starts of intervals, the class of each interval (-1: surrogates), and per class an integer whose bit i
    says whether `sets[i]` holds the class.
    """
    toggles: dict[int, int] = {0: 0, 0xD800: 0, 0xE000: 0}
    for number, each in enumerate(sets):
        for low, high in each:
            for border in (low, high + 1):
                toggles[border] = toggles.get(border, 0) ^ 1 << number
    toggles.pop(0x110000, None)
    starts = sorted(toggles)
    members = 0
    numbers: dict[int, int] = {}
    classes = []
    for start in starts:
        members ^= toggles[start]
        classes.append(-1 if start == 0xD800 else numbers.setdefault(members, len(numbers)))
    return starts, classes, list(numbers)


def letters_of(sets: Iterable[Charset]) -> tuple[list[int], list[int], dict[Charset, list[int]]]:
    """Return the starts of intervals and the class of each, as `partition` does, and the classes in each set."""
    distinct = list(dict.fromkeys(sets))
    starts, classes, members = partition(distinct)
    letters: dict[Charset, list[int]] = {each: [] for each in distinct}
    for letter, holders in enumerate(members):
        for number in bits_of(holders):
            letters[distinct[number]].append(letter)
    return starts, classes, letters


def spans_of(starts: Sequence[int], letter_at: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return the intervals of each letter, of which interval i, from `starts[i]` on, has `letter_at[i]` (-1: none)."""
    spans: list[list[tuple[int, int]]] = [[] for _ in range(max(letter_at) + 1)]
    for low, end, letter in zip(starts, [*starts[1:], 0x110000], letter_at, strict=True):
        if letter >= 0:
            spans[letter].append((low, end - 1))
    return spans


def bits_of(number: int) -> list[int]:
    """The bits that are set in an integer that stands for a set, such as the members of a class of `partition`."""
    found = []
    while number:
        lowest = number & -number
        found.append(lowest.bit_length() - 1)
        number ^= lowest
    return found


def singles(code_points: Iterable[int]) -> Charset:
    """An interval for each code point, in the given order."""
    return tuple([(code, code) for code in code_points])


def class_starts(sets: Iterable[Charset]) -> list[int]:
    """The starts of the intervals that the borders of `sets` cut all code points into."""
    borders = {0}
    for characters in sets:
        for low, high in characters:
            borders.update((low, high + 1))
    return sorted(border for border in borders if border <= 0x10FFFF)


def classes_of(characters: Charset, starts: list[int]) -> list[int]:
    """The numbers of the intervals from `class_starts` that lie in `characters`."""
    found: list[int] = []
    for low, high in characters:
        found.extend(range(bisect.bisect_left(starts, low), bisect.bisect_right(starts, high)))
    return found


@functools.cache
def _every_character() -> str:
    """All scalar values in order: the place of a character is its code point, less the surrogates' gap."""
    return "".join(chr(code_point) for low, high in ALL for code_point in range(low, high + 1))


@functools.cache
def matching(pattern: str, *, properties: bool = False) -> Charset:
    """The characters that a pattern of Python's `re` matches alone; with `properties`, of the package `regex`."""
    gap = 0xE000 - 0xD800
    text = _every_character()
    compiled = (regex if properties else re).compile(f"(?:{pattern})+")
    intervals = []
    for run in compiled.finditer(text):
        first, last = run.start(), run.end() - 1
        for low, high, shift in ((0, 0xD7FF, 0), (0xD800, len(text), gap)):
            if first <= high and last >= low:
                intervals.append((max(first, low) + shift, min(last, high) + shift))
    return make(intervals)

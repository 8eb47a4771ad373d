"""Sets of Unicode scalar values as sorted, disjoint, non-adjacent inclusive intervals."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

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


@functools.cache
def matching(pattern: str) -> Charset:
    """The characters that a Python pattern matches alone: how Python itself sees `\\d`, `\\w` and `\\s`."""
    # One string of every scalar value in order: the place of a run is its code points, less the surrogates' gap.
    gap = 0xE000 - 0xD800
    text = "".join(chr(code_point) for low, high in ALL for code_point in range(low, high + 1))
    intervals = []
    for run in re.finditer(f"(?:{pattern})+", text):
        first, last = run.start(), run.end() - 1
        for low, high, shift in ((0, 0xD7FF, 0), (0xD800, len(text), gap)):
            if first <= high and last >= low:
                intervals.append((max(first, low) + shift, min(last, high) + shift))
    return make(intervals)

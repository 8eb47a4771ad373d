"""How JSON strings escape what they cannot hold as it is, whatever the characters lead to (see `utf8_shapes`)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa import charset
from grammar_workers.dfa.utf8 import MoveShape, numbered
from grammar_workers.pushdown.json_text import SHORT_ESCAPES

ESCAPED = charset.union(charset.make([(0, 0x1F)]), charset.of('"\\'))
"""The characters that must be escaped."""
SHORT = {ord(character): byte for character, byte in SHORT_ESCAPES.items()}


class LastDigits(NamedTuple):
    """The last digit of escapes like `\\u001f`, whose next to last one is `high`.

    `slots` says per byte where its state stands in [-1, *targets], `numbers` are those of the targets.
    """

    high: int
    slots: NDArray[np.intp]
    numbers: list[int]


class EscapeShape(NamedTuple):
    """What may follow a backslash: `short` per byte as in `LastDigits`, and `long` after `\\u00`."""

    short: NDArray[np.intp]
    long: list[LastDigits]


@functools.lru_cache(maxsize=1024)
def escaped_characters(shape: MoveShape) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """The characters of a row, all of which must be escaped, each with a number, and which target each number means."""
    return numbered((code, number) for first, last, number in shape.ranges for code in range(first, last + 1))


@functools.lru_cache(maxsize=1024)
def escape_shape(escaped: tuple[tuple[int, int], ...]) -> EscapeShape:
    """The spelling of these characters, each with the number of its target."""
    short = np.zeros(256, np.intp)
    long: dict[int, LastDigits] = {}
    for code, number in escaped:
        if code in SHORT:
            short[SHORT[code]] = 1 + number
        else:
            high, low = f"{code:02x}".encode()
            digits = long.setdefault(high, LastDigits(high, np.zeros(256, np.intp), []))
            digits.slots[low] = 1 + number
            digits.numbers.append(number)
    return EscapeShape(short, list(long.values()))

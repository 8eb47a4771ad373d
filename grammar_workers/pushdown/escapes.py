"""Escapes in JSON strings: the characters that must be escaped, and all escapes of any character.

A Unicode escape is represented by its sequence of hexadecimal digits.
"""

from __future__ import annotations

import functools
import string
from typing import TypeAlias

from grammar_workers.dfa import charset
from grammar_workers.dfa.utf8 import Bytes, MoveShape, aligned, numbered
from grammar_workers.pushdown.json_text import ESCAPED_CHARACTERS, encode_string_body

# The characters that must be escaped.
ESCAPED = charset.of(ESCAPED_CHARACTERS)

# A set of alternatives for the next byte: a hexadecimal digit in both cases, or another character.
Element: TypeAlias = bytes

# The bytes between the two halves of a surrogate pair.
SECOND_HALF: tuple[Element, ...] = (b"\\", b"u")

# The characters that a vocabulary must have to write all escapes.
ESCAPE_CHARACTERS = frozenset('\\"/bfnrtu' + string.hexdigits)

_SURROGATES = range(0xD800, 0xE000)


@functools.lru_cache(maxsize=1024)
def escaped_characters(shape: MoveShape) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """List characters that JSON strings must escape, and renumber their targets (states that they lead to).

    New target numbers count from 0 in the order of first occurrence.

    Args:
        shape: Ranges of characters with a target number each. JSON must escape all these characters.

    Returns:
        Two values: the old target number for each new target number; and pairs (code point, new target number), one
        per character.
    """
    return numbered((code, number) for first, last, number in shape.ranges for code in range(first, last + 1))


@functools.lru_cache(maxsize=1024)
def escape_bytes(escaped: tuple[tuple[int, int], ...]) -> Bytes:
    """Return the bytes after the backslash in the canonical escapes of characters (`n`, `u001f`, ...).

    Args:
        escaped: Pairs (code point, target number) from `escaped_characters`. A target is a state.

    Returns:
        The byte sequence of each escape, with the target number of its character.
    """
    spellings = [(encode_string_body(chr(code))[1:], number) for code, number in escaped]
    return Bytes(tuple([(tuple([(byte, byte) for byte in spelling]), number) for spelling, number in spellings]))


@functools.lru_cache(maxsize=4096)
def escape_sequences(first: int, last: int) -> list[tuple[Element, ...]]:
    r"""Return patterns for the Unicode escapes (`\u00e9`) of a range of code points. A pattern begins after the `\u`.

    Args:
        first: First code point.
        last: Last code point, inclusive. Surrogates in the range are ignored.

    Returns:
        The patterns, which together match exactly these escapes. A pattern has the set of allowed bytes for each
        position. Above U+FFFF it matches a surrogate pair, including the second `\u`.
    """
    if first < 0x10000 <= last:
        return escape_sequences(first, 0xFFFF) + escape_sequences(0x10000, last)
    if first >= 0x10000:
        return _pairs(first - 0x10000, last - 0x10000)
    below = _digits(first, min(last, _SURROGATES.start - 1))
    return below + _digits(max(first, _SURROGATES.stop), last)


def _pairs(first: int, last: int) -> list[tuple[Element, ...]]:
    """Return the surrogate pairs of the offsets first..last beyond U+FFFF.

    Each half has ten bits. The range is split where it does not contain all second halves.
    """
    return [
        (*high, *SECOND_HALF, *low)
        for begin, end in aligned(first, last, (10,))
        for high in _digits(0xD800 + (begin >> 10), 0xD800 + (end >> 10))
        for low in _digits(0xDC00 + (begin & 0x3FF), 0xDC00 + (end & 0x3FF))
    ]


def _digits(first: int, last: int) -> list[tuple[Element, ...]]:
    """Return the numbers first..last as sequences of four hexadecimal digits."""
    if first > last:
        return []
    return [
        tuple(_hexadecimal(begin >> shift & 15, end >> shift & 15) for shift in (12, 8, 4, 0))
        for begin, end in aligned(first, last, (4, 8, 12))
    ]


def _hexadecimal(first: int, last: int) -> Element:
    return "".join(f"{digit:x}{digit:X}" if digit > 9 else str(digit) for digit in range(first, last + 1)).encode()

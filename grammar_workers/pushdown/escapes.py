"""How JSON strings escape characters: those that cannot stand as they are, and any character by all its escapes.

`\\u` escapes are sequences of nibbles, which is what automata over all of them are built from.
"""

from __future__ import annotations

import functools
import string
from typing import TypeAlias

from grammar_workers.dfa import charset
from grammar_workers.dfa.utf8 import Bytes, MoveShape, aligned, numbered
from grammar_workers.pushdown.json_text import SHORT_ESCAPES, encode_string_body

ESCAPED = charset.union(charset.make([(0, 0x1F)]), charset.of('"\\'))
"""The characters that must be escaped."""
SHORT = {ord(character): byte for character, byte in SHORT_ESCAPES.items()}

Element: TypeAlias = bytes
"""The bytes one of which comes next: a hexadecimal digit in both cases, or another character."""

SECOND_HALF: tuple[Element, ...] = (b"\\", b"u")
"""What stands between the two halves of a surrogate pair."""

ESCAPE_CHARACTERS = frozenset('\\"/bfnrtu' + string.hexdigits)
"""What a vocabulary must be able to spell for all escapes to be of use."""

_SURROGATES = range(0xD800, 0xE000)


@functools.lru_cache(maxsize=1024)
def escaped_characters(shape: MoveShape) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """The characters of a row, all of which must be escaped, each with a number, and which target each number means."""
    return numbered((code, number) for first, last, number in shape.ranges for code in range(first, last + 1))


@functools.lru_cache(maxsize=1024)
def escape_bytes(escaped: tuple[tuple[int, int], ...]) -> Bytes:
    """What follows the backslash of these characters, each with the number of its target."""
    spellings = [(encode_string_body(chr(code))[1:], number) for code, number in escaped]
    return Bytes(tuple([(tuple([(byte, byte) for byte in spelling]), number) for spelling, number in spellings]))


@functools.lru_cache(maxsize=4096)
def escape_sequences(first: int, last: int) -> list[tuple[Element, ...]]:
    """What follows `\\u` in the escapes of the code points first..last; surrogates among them are left out."""
    if first < 0x10000 <= last:
        return escape_sequences(first, 0xFFFF) + escape_sequences(0x10000, last)
    if first >= 0x10000:
        return _pairs(first - 0x10000, last - 0x10000)
    below = _digits(first, min(last, _SURROGATES.start - 1))
    return below + _digits(max(first, _SURROGATES.stop), last)


def _pairs(first: int, last: int) -> list[tuple[Element, ...]]:
    """The same for offsets beyond U+FFFF: ten bits in each half, split where the second half does not run through."""
    return [
        (*high, *SECOND_HALF, *low)
        for begin, end in aligned(first, last, (10,))
        for high in _digits(0xD800 + (begin >> 10), 0xD800 + (end >> 10))
        for low in _digits(0xDC00 + (begin & 0x3FF), 0xDC00 + (end & 0x3FF))
    ]


def _digits(first: int, last: int) -> list[tuple[Element, ...]]:
    """The numbers first..last in four hexadecimal digits."""
    if first > last:
        return []
    return [
        tuple(_hexadecimal(begin >> shift & 15, end >> shift & 15) for shift in (12, 8, 4, 0))
        for begin, end in aligned(first, last, (4, 8, 12))
    ]


def _hexadecimal(first: int, last: int) -> Element:
    return "".join(f"{digit:x}{digit:X}" if digit > 9 else str(digit) for digit in range(first, last + 1)).encode()

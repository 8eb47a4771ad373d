"""Tokens that hold parts of characters, in vocabularies that do not have every byte.

A byte automaton over some characters may stand inside of one of them only where every character that has begun so can
be ended by tokens; otherwise the text could get stuck there. With the tokens `é`, `è`, `C3` and `A8`, nothing ends what
`C3` begins if that is to be `é`: `C3` is not used, and `é` and `è` are spelled by their own tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def usable(token_bytes: Sequence[bytes]) -> list[bytes]:
    """The bytes of each token, b"" for those after which a character with a token of its own could not be ended."""
    characters = [data for data in set(token_bytes) if data and is_text(data) and len(data.decode()) == 1]
    parts = {data for data in token_bytes if not is_text(data)}
    while True:
        open_parts = parts - _stuck(parts, _without_end(characters, parts))
        if open_parts == parts:
            break
        # What ended a character may be among those left out.
        parts = open_parts
    return [data if is_text(data) or data in parts else b"" for data in token_bytes]


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_middle(byte: int) -> bool:
    return byte >> 6 == 0b10


def _without_end(characters: Iterable[bytes], parts: set[bytes]) -> set[bytes]:
    """The beginnings of `characters` after which some of these cannot be ended by tokens."""
    ends = {data for data in parts if all(map(_is_middle, data))}
    stuck = set()
    for data in characters:
        can_end = [False] * len(data) + [True]
        for begin in range(len(data) - 1, 0, -1):
            can_end[begin] = any(can_end[end] and data[begin:end] in ends for end in range(begin + 1, len(data) + 1))
            if not can_end[begin]:
                stuck.add(data[:begin])
    return stuck


def _stuck(parts: Iterable[bytes], beginnings: set[bytes]) -> set[bytes]:
    """Those of `parts` that may end in one of these beginnings of characters."""
    tails = {data[begin:] for data in beginnings for begin in range(1, len(data))}
    found = set()
    for data in parts:
        last = len(data) - 1
        while last >= 0 and _is_middle(data[last]):
            last -= 1
        if (data in tails) if last < 0 else (data[last:] in beginnings):
            found.add(data)
    return found

"""Selection of usable tokens in vocabularies that do not have a token for every byte.

A token may contain only a part of a UTF-8 character. After such a token, an automaton is inside a character. Then other
tokens must be able to complete each character with this beginning. Otherwise the output could reach a dead end.

Example: the tokens are `é` (C3 A9), `è` (C3 A8), `C3` and `A8`. No token completes `C3` to `é`. So `C3` is unusable,
and `é` and `è` are generated only by their own tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def usable(token_bytes: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of all tokens, with b"" for the tokens that automata must not use.

    A token is unusable if it may end inside a character that other tokens cannot complete. Only characters that have a
    token of their own are considered.

    Args:
        token_bytes: Bytes of each token, b"" for special tokens.

    Returns:
        A new list: the bytes of each usable token, and b"" for each special or unusable token.
    """
    characters = [data for data in set(token_bytes) if data and is_text(data) and len(data.decode()) == 1]
    parts = {data for data in token_bytes if not is_text(data)}
    while True:
        open_parts = parts - _stuck(parts, _without_end(characters, parts))
        if open_parts == parts:
            break
        # A part that was just removed may have been needed to complete another character.
        parts = open_parts
    return [data if is_text(data) or data in parts else b"" for data in token_bytes]


def is_text(data: bytes) -> bool:
    """Return whether the bytes are valid UTF-8. A part of a character at the beginning or end is not valid."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_middle(byte: int) -> bool:
    return byte >> 6 == 0b10


def _without_end(characters: Iterable[bytes], parts: set[bytes]) -> set[bytes]:
    """Return the proper prefixes of `characters` after which the rest of some character cannot be tokenized."""
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
    """Return the elements of `parts` that may end in one of these prefixes of characters."""
    tails = {data[begin:] for data in beginnings for begin in range(1, len(data))}
    found = set()
    for data in parts:
        last = len(data) - 1
        while last >= 0 and _is_middle(data[last]):
            last -= 1
        if (data in tails) if last < 0 else (data[last:] in beginnings):
            found.add(data)
    return found

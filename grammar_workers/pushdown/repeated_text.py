"""Compact representation of long byte strings: a part that is repeated is stored once.

The module `shortest` builds a string as a linked list (`Trail`) during its search, and returns it as a `Text`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeVar

from grammar_workers.types import TokenId

_Part = TypeVar("_Part")
# (state, counter, depth) of the search in `shortest`.
Mark = tuple[int, int, int]
# A mark that matches no state. Its counter is below all others, so `marked` stops at it.
NOWHERE: Mark = (-1, -1, -1)
_MOST_LINKS = 4096
# Parts of at most this length are copied into the text that holds them. Longer parts are shared.
_INLINED_BYTES = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A string of bytes and tokens, stored in parts.

    A part is bytes, a token without bytes (such as a special token), a repeated text or another text. Texts may share
    parts, so a small object may have an enormous `length`. Check `length` before you iterate over the text.

    Attributes:
        length: Number of bytes; a token without bytes counts as 1.
        parts: The parts in order. An integer is the ID of a token without bytes.
    """

    length: int
    parts: tuple[bytes | TokenId | Repeated | Text, ...]

    def flat(self) -> Iterator[bytes | TokenId | Repeated]:
        """Yield the parts in order. A `Text` is replaced by its parts, recursively. A `Repeated` is yielded whole."""
        pending: list[Iterator[bytes | TokenId | Repeated | Text]] = [iter(self.parts)]
        while pending:
            for part in pending[-1]:
                if isinstance(part, Text):
                    pending.append(iter(part.parts))
                    break
                yield part
            else:
                pending.pop()


@dataclasses.dataclass(frozen=True, slots=True)
class Repeated:
    """A part of a `Text`: a text that is repeated a number of times.

    Attributes:
        text: The repeated text.
        count: Number of times that the text occurs.
    """

    text: Text
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class Trail:
    """Link of a linked list that stores a text in parts. Each link refers to the link before it.

    The last link of the list represents the text. None represents the empty text.

    Attributes:
        before: The link of the previous part. None for the first part.
        part: The part of this link: bytes, the ID of a token without bytes, a repeated text or a text.
        length: Length of the text up to and including this link, in bytes. A token without bytes counts as 1.
        mark: State, counter and stack depth of the search just before this part was added. Stored only if the search
            incremented the counter there, else None.
    """

    before: Trail | None
    part: bytes | TokenId | Repeated | Text
    length: int
    mark: Mark | None = None


def length_of(trail: Trail | None) -> int:
    """Return the length of a text in bytes. A token without bytes counts as 1.

    Args:
        trail: Last link of the linked list that stores the text. None: the empty text.
    """
    return 0 if trail is None else trail.length


def marked(trail: Trail | None, least: int) -> Iterator[Trail]:
    """Yield the links of a text that have a mark (see `Trail`), last link first.

    The iteration stops at the first mark with a counter below `least`, and after 4,096 links with or without marks.

    Args:
        trail: Last link of the list. None: the empty text.
        least: Minimum counter in the marks of the yielded links.
    """
    for _ in range(_MOST_LINKS):
        if trail is None:
            return
        if trail.mark is not None:
            if trail.mark[1] < least:
                return
            yield trail
        trail = trail.before


def text_of(trail: Trail | None, begin: Trail | None = None) -> Text:
    """Return the text that a linked list stores, or only the parts after one of its links.

    Args:
        trail: Last link of the list. None: the empty text.
        begin: Link of the list after which the returned text begins. None: the whole text.
    """
    length = length_of(trail) - length_of(begin)
    parts: list[bytes | TokenId | Repeated | Text] = []
    while trail is not begin:
        assert trail is not None
        if isinstance(trail.part, Text) and trail.part.length <= _INLINED_BYTES:
            parts += reversed(trail.part.parts)
        else:
            parts.append(trail.part)
        trail = trail.before
    return Text(length, tuple(merged(reversed(parts))))


def merged(parts: Iterable[_Part]) -> Iterator[_Part | bytes]:
    """Yield the parts of a text in order. Consecutive parts that are bytes are joined into one part.

    Args:
        parts: Parts as in `Text`: bytes, IDs of tokens without bytes, repeated texts and texts.
    """
    plain = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            plain += part
            continue
        if plain:
            yield bytes(plain)
            plain.clear()
        yield part
    if plain:
        yield bytes(plain)

"""Texts too long to write out: a part that occurs more than once is stored once. And how texts are put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeVar

from grammar_workers.types import TokenId

_Part = TypeVar("_Part")
Mark = tuple[int, int, int]
"""(state, counter, depth), see `shortest`."""
NOWHERE: Mark = (-1, -1, -1)
_MOST_LINKS = 4096
_INLINED_BYTES = 1024
"""Parts of at most this length are copied into the text that holds them; longer ones are shared."""


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A text of `length` bytes in parts: bytes, tokens without bytes (their length counts as 1), repeated texts, and
    other texts, which may occur in many places. So `length` may be exponential in what the text takes: compare it with
    a limit before iterating over the text.
    """

    length: int
    parts: tuple[bytes | TokenId | Repeated | Text, ...]

    def flat(self) -> Iterator[bytes | TokenId | Repeated]:
        """Iterate over the parts, and over those of the texts among them in their place."""
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
    """`count` times the same text."""

    text: Text
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class Trail:
    """A text as a linked list, last part first; `length` is that of all of it. A counter that may be skipped ahead has
    just been counted up where there is a mark.
    """

    before: Trail | None
    part: bytes | TokenId | Repeated | Text
    length: int
    mark: Mark | None = None


def length_of(trail: Trail | None) -> int:
    return 0 if trail is None else trail.length


def counted(counter: int, link: Trail) -> int:
    """How far the counter has been counted up since a marked link."""
    assert link.mark is not None
    return counter - link.mark[1]


def marked(trail: Trail | None, least: int) -> Iterator[Trail]:
    """The links with marks, last first, as far as they hold counters from `least` on."""
    for _ in range(_MOST_LINKS):
        if trail is None:
            return
        if trail.mark is not None:
            if trail.mark[1] < least:
                return
            yield trail
        trail = trail.before


def text_of(trail: Trail | None, begin: Trail | None = None) -> Text:
    """The text of a trail, or what of it comes after the link `begin`."""
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
    """The parts of a text, bytes in a row joined."""
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

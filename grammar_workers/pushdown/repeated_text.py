"""Texts too long to write out: what is repeated is said once, with how often. And how they are put together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from grammar_workers.types import TokenId

Mark = tuple[int, int, int]
"""(state, counter, depth), see `shortest`."""
NOWHERE: Mark = (-1, -1, -1)
_MOST_LINKS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A text of `length` bytes in parts: bytes, tokens without bytes (their length counts as 1), and repeated texts."""

    length: int
    parts: tuple[bytes | TokenId | Repeated, ...]


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
    parts: list[bytes | TokenId | Repeated] = []
    while trail is not begin:
        assert trail is not None
        if isinstance(trail.part, Text):
            parts += reversed(trail.part.parts)
        else:
            parts.append(trail.part)
        trail = trail.before
    merged: list[bytes | TokenId | Repeated] = []
    for is_bytes, group in itertools.groupby(reversed(parts), lambda part: isinstance(part, bytes)):
        if is_bytes:
            merged.append(b"".join(part for part in group if isinstance(part, bytes)))
        else:
            merged += group
    return Text(length, tuple(merged))

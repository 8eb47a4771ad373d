"""Whether a text can still end where some parts must differ from earlier ones, and how.

Of the underlying automaton every text can end, and containers are compiled so that another part that must come can
always be found. So a place is alive if some way leads to where no earlier value has a say any more: where each part in
progress has become unlike all of them, or has ended. The search goes on only where it is like one of them, of which
there are finitely many beginnings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.distinct.histories import Histories, History, levels_of
from grammar_workers.matching.distinct.steps import Place, Steps
from grammar_workers.matching.distinct.values import NUMBER
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.matching.spelling import TooManyTokensError
from grammar_workers.pushdown.repeated_text import Repeated, Text, merged
from grammar_workers.types import TokenId

_MOST_KNOWN = 1 << 13
"""Places of which it is remembered whether they are alive."""
_MOST_BYTES = 1 << 18
"""Of a way to an end."""
_MOST_TRIED = 64
"""Bytes of one way that are tried before a search begins."""
_ZEROS = b"0" * 64
"""More than any number that is worth telling apart has within its fraction."""
_CLOSING = b'"}]'
_PREFERRED = b"1234567890abcdefghijklmnopqrstuvwxyz"
"""Zeros late: behind any number of them it may still mean an earlier one."""
_OTHERS = tuple(dict.fromkeys([*_PREFERRED, *range(256)]))


class _Reached(NamedTuple):
    """A place, the one before and the byte between them."""

    place: Place
    before: _Reached | None
    byte: int


class Ways:
    """Ways of one automaton over `recognizer`, whose vocabulary can spell the characters `spellable` (None: all)."""

    def __init__(
        self, steps: Steps, histories: Histories, recognizer: PushdownRecognizer, spellable: frozenset[str] | None
    ) -> None:
        self._steps = steps
        self._histories = histories
        self._recognizer = recognizer
        self._allowed = frozenset(range(256) if spellable is None else b"".join(map(str.encode, spellable)))
        self._known: dict[Place, bool] = {}

    def is_alive(self, place: Place) -> bool:
        """Whether some text leads from here to an end."""
        if self._histories.is_settled(place[3]):
            return True
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        known = self._known.get(place)
        if known is not None:
            return known
        return self._is_first_way_alive(place) or self._nearest(place, within=self._known) is not None

    def to_end(self, place: Place, limit: int) -> Text:
        """A short text to an end, the shortest one where that repeats no value; about `limit` bytes at most.

        Raises TooManyTokensError beyond the limit, LimitExceededError where it takes too long to find.
        """
        parts: list[bytes | TokenId] = []
        length = 0
        while not self._recognizer.may_end(place[:3]):
            for part in self._plan(place, limit - length):
                if isinstance(part, bytes):
                    following = self._steps.step(place, part[0])
                else:
                    named = self._recognizer.named(place[:3], part)
                    following = None if named is None else (named[0], named[1], named[2], None)
                if following is None or not self.is_alive(following):
                    detour = self._nearest(place)
                    if detour is None:
                        raise LimitExceededError("no short way to an end has been found")
                    place, way = detour
                    parts.append(way)
                    length += len(way)
                    break
                place = following
                parts.append(part)
                length += 1
            if length > limit:
                raise TooManyTokensError
        return Text(length, tuple(merged(parts)))

    def _plan(self, place: Place, limit: int) -> Iterator[bytes | TokenId]:
        """The shortest text of the underlying automaton, byte by byte."""
        text = self._recognizer.shortest_text(place[:3])
        if text.length > limit:
            raise TooManyTokensError
        if text.length > _MOST_BYTES:
            raise LimitExceededError(f"the shortest way to an end has more than {_MOST_BYTES} bytes")
        return _written(text)

    def _is_first_way_alive(self, place: Place) -> bool:
        """Whether the way of the preferred bytes leads out: mostly, and a search would look at thousands of others."""
        reached = _Reached(place, None, 0)
        for _ in range(_MOST_TRIED):
            for byte in self._bytes_at(reached.place):
                following = self._steps.step(reached.place, byte)
                if following is not None and self._known.get(following) is not False:
                    break
            else:
                return False
            if self._histories.is_settled(following[3]) or self._known.get(following):
                self._note_alive(reached)
                return True
            reached = _Reached(following, reached, byte)
        return False

    def _nearest(self, start: Place, within: Mapping[Place, bool] = MappingProxyType({})) -> tuple[Place, bytes] | None:
        """The nearest other place where no earlier value has a say, and the text that leads there; None where there is
        none. Breadth first; `within`: places of which it is known whether they are alive, which are as good as that.
        """
        pending = [_Reached(start, None, 0)]
        met = {_without_zeros(start)}
        for reached in pending:
            for byte in self._bytes_at(reached.place):
                following = self._steps.step(reached.place, byte)
                if following is None or (key := _without_zeros(following)) in met:
                    continue
                met.add(key)
                known = within.get(following)
                found = _Reached(following, reached, byte)
                if known or self._histories.is_settled(following[3]):
                    self._note_alive(reached)
                    return following, _text_to(found)
                if known is None:
                    pending.append(found)
        self._known.update((reached.place, False) for reached in pending)
        return None

    def _bytes_at(self, place: Place) -> Iterator[int]:
        """The bytes that may be read, those first that mostly lead out."""
        possible = self._steps.bytes_at(place)
        ordered = itertools.chain(_CLOSING, (self._steps.literal_at(place),), _OTHERS)
        return (byte for byte in ordered if byte in possible and byte in self._allowed)

    def _note_alive(self, reached: _Reached | None) -> None:
        while reached is not None:
            self._known[reached.place] = True
            reached = reached.before


def _without_zeros(place: Place) -> Place:
    """The same place for all numbers that differ only in how many zeros end a long fraction: they mean the same."""
    level = place[3]
    if level is None or level.position[0] != NUMBER or not level.position[1].endswith(_ZEROS):
        return place
    kept: History = None
    for one in reversed(list(levels_of(level))):
        kind, text, pending, container = one.position
        if kind == NUMBER and b"." in text and b"e" not in text.lower():
            text = text.rstrip(b"0") + _ZEROS
        kept = one._replace(outer=kept, position=(kind, text, pending, container))
    return (*place[:3], kept)


def _text_to(reached: _Reached) -> bytes:
    text = bytearray()
    here: _Reached = reached
    while here.before is not None:
        text.append(here.byte)
        here = here.before
    return bytes(reversed(text))


def _written(text: Text) -> Iterator[bytes | TokenId]:
    for part in text.flat():
        if isinstance(part, bytes):
            yield from (part[place : place + 1] for place in range(len(part)))
        elif isinstance(part, Repeated):
            for _ in range(part.count):
                yield from _written(part.text)
        else:
            yield part

"""Whether a text can still end where some parts must differ from earlier ones, and how.

Of the underlying automaton every text can end, and containers are compiled so that another part that must come can
always be found. So a place is alive if some way leads to where no earlier value has a say any more: where each part in
progress has become unlike all of them, or has ended. The search goes on only where it is like one of them, of which
there are finitely many beginnings.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
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
_MOST_TRIED = 256
"""Places that are tried in depth before a search in breadth begins."""
_STEPS_PER_WAY = 1000
"""Steps that a completion may take for each value that it finds, beyond those of each query."""
_ZEROS = b"0" * 64
"""More than any number that is worth telling apart has within its fraction."""
_CLOSING = b'"}],'
_PREFERRED = b"1234567890.abcdefghijklmnopqrstuvwxyz"
"""Zeros late, exponents later: behind any number of them it may still mean an earlier one."""
_RANKS = {byte: rank for rank, byte in enumerate(dict.fromkeys([*_CLOSING, *_PREFERRED, *range(256)]), -len(_CLOSING))}
"""Lower ranks are tried first. A byte that alone leads to the next state has rank 0, behind those that close."""


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
        self._known: dict[Hashable, bool] = {}

    def is_alive(self, place: Place) -> bool:
        """Whether some text leads from here to an end."""
        if self._histories.is_settled(place[3]):
            return True
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        known = self._known.get(self._key(place))
        return self._way_out(place, to_known=True) is not None if known is None else known

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
                    self._steps.budget.steps -= min(self._steps.budget.steps, _STEPS_PER_WAY)
                    detour = self._way_out(place)
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
        text = self._recognizer.shortest_text(place[:3], self._steps.budget)
        if text.length > limit:
            raise TooManyTokensError
        if text.length > _MOST_BYTES:
            raise LimitExceededError(f"the shortest way to an end has more than {_MOST_BYTES} bytes")
        return _written(text)

    def _way_out(self, start: Place, *, to_known: bool = False) -> tuple[Place, bytes] | None:
        """Return a place where no earlier value has a say, and the text that leads there. Return None if none exists.

        The search is in depth: the preferred bytes mostly lead out, where a search in breadth takes thousands of steps.
        Dead places are noted on the way back, so a value that has been used up is looked at once and not at each step.
        A search that takes too long goes on in breadth.

        Args:
            start: The place where the search begins.
            to_known: Return a place, too, of which it is known that it is alive.
        """
        reached = _Reached(start, None, 0)
        entered: list[tuple[_Reached, Iterator[_Reached]]] = []
        for _ in range(_MOST_TRIED):
            way, nearby = self._look_around(reached, to_known=to_known)
            if way is not None:
                return way
            entered.append((reached, (one for one in nearby if self._known.get(self._key(one.place)) is not False)))
            while (untried := next(entered[-1][1], None)) is None:
                self._known[self._key(entered.pop()[0].place)] = False
                if not entered:
                    return None
            reached = untried
        return self._nearest(start, to_known=to_known)

    def _nearest(self, start: Place, *, to_known: bool) -> tuple[Place, bytes] | None:
        """Return what `_way_out` returns, found by a search in breadth."""
        pending = [_Reached(start, None, 0)]
        met = {self._key(start)}
        for reached in pending:
            way, nearby = self._look_around(reached, to_known=to_known)
            if way is not None:
                return way
            for found in nearby:
                if (key := self._key(found.place)) not in met:
                    met.add(key)
                    pending.append(found)
        self._known.update((self._key(reached.place), False) for reached in pending)
        return None

    def _look_around(self, reached: _Reached, *, to_known: bool) -> tuple[tuple[Place, bytes] | None, list[_Reached]]:
        """Return the first way that leads out with one more byte, and the places from which others may lead out."""
        nearby = []
        here = self._key(reached.place)
        for byte in self._bytes_at(reached.place):
            following = self._steps.step(reached.place, byte)
            if following is None or (key := self._key(following)) == here:
                continue
            known, found = self._known.get(key), _Reached(following, reached, byte)
            ended = self._histories.is_ended_well(reached.place[3], following[3])
            if (known and to_known) or (ended and (to_known or self.is_alive(following))):
                return (following, self._trace(found)), []
            if known is not False:
                nearby.append(found)
        return None, nearby

    def _bytes_at(self, place: Place) -> list[int]:
        """The bytes that may be read, those first that mostly lead out."""
        literal = self._steps.literal_at(place)
        possible = self._steps.bytes_at(place) & self._allowed
        return sorted(possible, key=lambda byte: min(_RANKS[byte], 0) if byte == literal else _RANKS[byte])

    def _trace(self, reached: _Reached) -> bytes:
        """Note that all places before this one are alive, and return the text that leads here."""
        text = bytearray()
        while reached.before is not None:
            text.append(reached.byte)
            reached = reached.before
            self._known[self._key(reached.place)] = True
        return bytes(reversed(text))

    def _key(self, place: Place) -> Hashable:
        """Return what decides whether the place is alive."""
        return *place[:3], self._histories.decisive(_without_zeros(place[3]))


def _without_zeros(level: History) -> History:
    """Return one history for all numbers that differ only in how many zeros end a long fraction: they mean the same."""
    if level is None or level.position[0] != NUMBER or not level.position[1].endswith(_ZEROS):
        return level
    kept: History = None
    for one in reversed(list(levels_of(level))):
        kind, text, pending, container = one.position
        if kind == NUMBER and b"." in text and b"e" not in text.lower():
            text = text.rstrip(b"0") + _ZEROS
        kept = one._replace(outer=kept, position=(kind, text, pending, container))
    return kept


def _written(text: Text) -> Iterator[bytes | TokenId]:
    for part in text.flat():
        if isinstance(part, bytes):
            yield from (part[place : place + 1] for place in range(len(part)))
        elif isinstance(part, Repeated):
            for _ in range(part.count):
                yield from _written(part.text)
        else:
            yield part

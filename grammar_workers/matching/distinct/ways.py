"""Search for completions of outputs with unique items. It decides if a completion exists, and finds a short one.

A completion is a text up to the end of the output that repeats no seen value. A configuration is *alive* if it has a
completion. Without unique items, every output can be completed. The compiler guarantees that an unseen value exists for
each required part (item or property name). So a configuration is alive if some path leads to a settled history: each
part in progress differs from all seen values, or has ended. The search continues only while a part is equal to the
beginning of a seen value, and seen values have finitely many beginnings.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from typing import NamedTuple, TypeAlias

from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.distinct.histories import Histories, History, levels_of
from grammar_workers.matching.distinct.steps import HistoryConfiguration, Steps
from grammar_workers.matching.distinct.values import NUMBER
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.matching.spelling import TooManyTokensError, check_length
from grammar_workers.pushdown.repeated_text import Repeated, Text, merged
from grammar_workers.types import TokenId

# Maximum number of configurations whose liveness is cached.
_MOST_KNOWN = 1 << 13
# Number of configurations that are tried depth first before a breadth-first search begins.
_MOST_TRIED = 256
# Additional budget steps of a completion for each detour that it takes.
_STEPS_PER_WAY = 1000
# Fractions that end in at least so many zeros are treated alike, because further zeros do not change the value.
_ZEROS = b"0" * 64
_CLOSING = b'"}],'
# Bytes in order of preference. 0 is late and an exponent later: after any number of zeros, a number may still equal
# a seen one.
_PREFERRED = b"1234567890.abcdefghijklmnopqrstuvwxyz"
# Order in which bytes are tried, lowest first. A literal has rank 0, after the bytes that close a part.
_RANKS = {byte: rank for rank, byte in enumerate(dict.fromkeys([*_CLOSING, *_PREFERRED, *range(256)]), -len(_CLOSING))}
# The end of a path, and the bytes of the path.
_Way: TypeAlias = tuple[HistoryConfiguration, bytes]


class _Reached(NamedTuple):
    """A configuration in a search, the one before it, and the byte between them."""

    place: HistoryConfiguration
    before: _Reached | None
    byte: int


class Ways:
    """Search for completions (texts up to the end of an output) of one automaton with unique items.

    All methods spend from the work budget of `steps` and raise LimitExceededError if it is exhausted.

    Args:
        steps: The step function of the automaton. It advances a configuration by a byte.
        histories: The operations on the seen values of open containers (arrays and objects).
        recognizer: The recognizer of the automaton without unique items.
        spellable: Characters that the vocabulary can tokenize. None: all.
    """

    def __init__(
        self, steps: Steps, histories: Histories, recognizer: PushdownRecognizer, spellable: frozenset[str] | None
    ) -> None:
        self._steps = steps
        self._histories = histories
        self._recognizer = recognizer
        self._allowed = frozenset(range(256) if spellable is None else b"".join(map(str.encode, spellable)))
        self._known: dict[Hashable, bool] = {}

    def uncached(self) -> Ways:
        """Return a copy of this search with an empty cache of decisions. The two objects share no cache."""
        fresh = copy.copy(self)
        fresh._known = {}
        return fresh

    def is_alive(self, place: HistoryConfiguration) -> bool:
        """Return whether the output can be completed from a configuration without repeating a seen value.

        An exhausted work budget raises LimitExceededError.

        Args:
            place: The configuration (state, counter, frame, history).
        """
        if self._histories.is_settled(place[3]):
            return True
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        known = self._known.get(self._key(place))
        return self._way_out(place, to_known=True) is not None if known is None else known

    def to_end(self, place: HistoryConfiguration, limit: int) -> Text:
        """Return a short completion (text up to the end of the output) that repeats no seen value.

        The method follows a shortest completion of the automaton without unique items. Where this completion repeats a
        seen value, the method takes a detour.

        Args:
            place: The configuration (state, counter, frame, history) where the completion begins.
            limit: Maximum length in bytes, approximately.

        Returns:
            The completion. It is empty if the output may end in the configuration.

        Raises:
            TooManyTokensError: The completion is longer than the limit.
            LimitExceededError: No completion was found within the work budget, or the shortest one has more than
                256 KiB.
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

    def _plan(self, place: HistoryConfiguration, limit: int) -> Iterator[bytes | TokenId]:
        """Yield a shortest completion of the underlying automaton, byte by byte."""
        text = self._recognizer.shortest_text(place[:3], self._steps.budget)
        check_length(text.length, limit)
        return _written(text)

    def _way_out(self, start: HistoryConfiguration, *, to_known: bool = False) -> _Way | None:
        """Return the first configuration found in which no seen value matters, and the path to it. None if none exists.

        The search is depth first: the preferred bytes mostly lead out at once, where a breadth-first search takes
        thousands of steps. Dead configurations are cached on the way back, so a used-up value is examined once and not
        at each step. A search that takes too long continues breadth first.

        Args:
            start: The configuration where the search begins.
            to_known: Also stop at a configuration that is known to be alive.
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

    def _nearest(self, start: HistoryConfiguration, *, to_known: bool) -> _Way | None:
        """Return what `_way_out` returns, found by a breadth-first search."""
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

    def _look_around(self, reached: _Reached, *, to_known: bool) -> tuple[_Way | None, list[_Reached]]:
        """Return the first path that leads out with one more byte, and the configurations that may have other paths."""
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

    def _bytes_at(self, place: HistoryConfiguration) -> list[int]:
        """Return the allowed bytes in the order in which they are tried."""
        literal = self._steps.literal_at(place)
        possible = self._steps.bytes_at(place) & self._allowed
        return sorted(possible, key=lambda byte: min(_RANKS[byte], 0) if byte == literal else _RANKS[byte])

    def _trace(self, reached: _Reached) -> bytes:
        """Cache that all configurations before this one are alive, and return the bytes of the path."""
        text = bytearray()
        while reached.before is not None:
            text.append(reached.byte)
            reached = reached.before
            self._known[self._key(reached.place)] = True
        return bytes(reversed(text))

    def _key(self, place: HistoryConfiguration) -> Hashable:
        """Return a key of everything that decides whether the configuration is alive."""
        return *place[:3], self._histories.decisive(_without_zeros(place[3]))


def _without_zeros(level: History) -> History:
    """Return one history for all numbers that differ only in the zeros at the end of a long fraction."""
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

"""Sets of earlier values, and which of them may come out of what is being read.

Sets have numbers; each is another one with one more value. Scalars are kept in order, so that all that begin like what
has been read stand beside each other. Of containers it is remembered which of them an open one may still become.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from grammar_workers.budget import Budget
from grammar_workers.matching.distinct.numbers import sign_and_digits
from grammar_workers.matching.distinct.values import (
    BEGIN,
    DONE,
    NAME,
    NUMBER,
    STRING,
    WORD,
    Position,
    ValueId,
    Values,
    first_character,
)

SetId: TypeAlias = int
EMPTY: SetId = 0
_SET_BYTES = 250
_MOST_SETS = 32
_MOST_FITTING = 1 << 17
"""Values in all lists of them."""
_MANY_LIKELY = 256
_ABOVE = b"\xff"
"""Behind every text in UTF-8 and every run of digits."""


class _Members(NamedTuple):
    """The values of one set: all of them; (text, value) of strings and of words; (negative, digits, value) of numbers,
    all three in order; containers."""

    all: frozenset[ValueId]
    strings: list[tuple[bytes, ValueId]]
    words: list[tuple[bytes, ValueId]]
    numbers: list[tuple[bool, bytes, ValueId]]
    containers: list[ValueId]


class EarlierValues:
    """The sets of one automaton, whose members are numbered by `values`."""

    def __init__(self, values: Values, budget: Budget) -> None:
        self._values = values
        self._budget = budget
        # Each set: the one before, and the value that came to it.
        self._sets: list[tuple[SetId, ValueId]] = [(EMPTY, -1)]
        self._ids: dict[tuple[SetId, ValueId], SetId] = {}
        self._members: dict[SetId, _Members] = {EMPTY: _Members(frozenset(), [], [], [], [])}
        self._fitting: dict[tuple[int, SetId], list[ValueId]] = {}
        self._many_fitting = 0
        self.may_repeat = functools.lru_cache(maxsize=4096)(self._may_repeat)
        self.likely = functools.lru_cache(maxsize=4096)(self._first_likely)

    @property
    def nbytes(self) -> int:
        return len(self._sets) * _SET_BYTES

    def with_one_more(self, number: SetId, value: ValueId) -> SetId | None:
        """The set with another value; None where that is in it already."""
        if value in self._members_of(number).all:
            return None
        larger = self._ids.setdefault((number, value), len(self._sets))
        if larger == len(self._sets):
            self._sets.append((number, value))
        return larger

    def _may_repeat(self, number: SetId, position: Position) -> bool:
        """Whether one of the values may come out of what has been read, see `Values.may_become`."""
        return number != EMPTY and any(
            self._values.may_become(position, value) for value in self._likely(number, position)
        )

    def next_bytes(self, number: SetId, position: Position) -> frozenset[int] | None:
        """Inside of a string: the bytes after which one of the values may still come out; None for any."""
        return frozenset() if number == EMPTY else self._values.next_bytes(position, self._likely(number, position))

    def _first_likely(self, number: SetId, position: Position) -> tuple[ValueId, ...] | None:
        """Return values of a set, among which are all that may come out of what has been read. None: too many."""
        members = self._members_of(number)
        kind, text, _, container = position
        if kind in (STRING, NAME) and not container:
            values = _between(members.strings, (text,), (text + _ABOVE,))
        else:
            values = iter(self._likely(number, position))
        found = tuple(itertools.islice(values, _MANY_LIKELY))
        return found if len(found) < _MANY_LIKELY else None

    def _likely(self, number: SetId, position: Position) -> Sequence[ValueId] | Iterator[ValueId]:
        """Values of a set among which are all that may come out; of strings that go on alike one."""
        members = self._members_of(number)
        kind, text, _, container = position
        if kind == DONE:
            return [container] if container in members.all else []
        if container:
            return self._fitting_of(number, container)
        if kind == BEGIN:
            return iter(members.all)
        if kind == NUMBER:
            return _numbers_like(text, members.numbers)
        if kind == WORD:
            return _between(members.words, (text,), (text + _ABOVE,))
        return _one_for_each(text, members.strings)

    def _fitting_of(self, number: SetId, container: int) -> list[ValueId]:
        """The values that may come out of what is being read in an open container, as far as its whole parts tell."""
        if self._many_fitting > _MOST_FITTING:
            self._fitting.clear()
            self._many_fitting = 0
        ahead = []
        while container and (container, number) not in self._fitting:
            ahead.append(container)
            container = self._values.opened_before(container)
        fitting = self._fitting[container, number] if container else self._members_of(number).containers
        for later in reversed(ahead):
            self._budget.spend(len(fitting))
            fitting = [value for value in fitting if self._values.may_lead_to(later, value)]
            self._fitting[later, number] = fitting
            self._many_fitting += 1 + len(fitting)
        return fitting

    def _members_of(self, number: SetId) -> _Members:
        """Made of the nearest set that is known: mostly the one with one value less."""
        if number in self._members:
            return self._members[number]
        added = []
        while number not in self._members:
            added.append(number)
            number = self._sets[number][0]
        members = self._members[number]
        strings, words, numbers = [*members.strings], [*members.words], [*members.numbers]
        containers = [*members.containers]
        more = [self._sets[one][1] for one in reversed(added)]
        self._budget.spend(1 + (len(members.all) >> 6) + len(more))
        for value in more:
            kind, content = self._values.meaning(value)
            if kind == "string":
                bisect.insort(strings, (content, value))
            elif kind == "word":
                bisect.insort(words, (content, value))
            elif kind == "number":
                bisect.insort(numbers, (content[0], content[1], value))
            else:
                containers.append(value)
        if len(self._members) > _MOST_SETS:
            self._members = {EMPTY: self._members[EMPTY]}
        found = self._members[added[0]] = _Members(members.all.union(more), strings, words, numbers, containers)
        return found


def _between(entries: list[Any], first: Any, last: Any) -> Iterator[ValueId]:
    """The values of the entries from `first` on up to `last`, in order."""
    for place in range(bisect.bisect_left(entries, first), bisect.bisect_left(entries, last)):
        yield entries[place][-1]


def _one_for_each(text: bytes, strings: list[tuple[bytes, ValueId]]) -> Iterator[ValueId]:
    """Of the strings that begin with a text, one for each character that follows, and the one without any."""
    place = bisect.bisect_left(strings, (text,))
    while place < len(strings) and strings[place][0].startswith(text):
        whole, value = strings[place]
        yield value
        place += 1
        if len(whole) > len(text):
            place = bisect.bisect_left(strings, (first_character(whole, len(text)) + _ABOVE,), place)


def _numbers_like(text: bytes, numbers: list[tuple[bool, bytes, ValueId]]) -> Iterator[ValueId]:
    """Numbers among which are all that may come out of a text."""
    negative, digits = sign_and_digits(text)
    kept = digits.rstrip(b"0")
    yield from _between(numbers, (negative, kept), (negative, kept, 1 << 62))
    if not digits:
        yield from _between(numbers, (False, b""), (False, b"", 1 << 62))
    if not any(mark in text for mark in b"eE"):
        yield from _between(numbers, (negative, digits), (negative, digits + _ABOVE))

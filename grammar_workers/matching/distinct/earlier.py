"""Sets of seen values, with which the value in progress (partly read) is compared.

Sets are numbered; each set is another set plus one value. The scalars of a set are sorted, so that all values with
equal beginnings are adjacent. For each partly read array or object, a cache holds the members of the set that it may
still become equal to.
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
# Maximum number of values in all cached lists of members.
_MOST_FITTING = 1 << 17
_MANY_LIKELY = 256
# Suffix that sorts after every continuation in UTF-8, and after every digit.
_ABOVE = b"\xff"


class _Members(NamedTuple):
    """The values of one set.

    `all` has all values. `scalars` has ("string", text, value), ("word", text, value) and ("number", negative, digits,
    value) in ascending order. `containers` has arrays and objects.
    """

    all: frozenset[ValueId]
    scalars: list[tuple[Any, ...]]
    containers: list[ValueId]


class EarlierValues:
    """The sets of seen JSON values of one automaton. Later values must differ from the seen values.

    Sets and values are represented by numbers. A *position* is the part of the value in progress that has been read
    (see `values`).

    Args:
        values: Numbering of JSON values. It must be the `Values` that reads the outputs.
        budget: Counts the steps of work. A method that exhausts it raises LimitExceededError.

    Attributes:
        may_repeat: Function (set, position) -> bool, cached. True if the value in progress may become equal to a member
            of the set.
        likely: Function (set, position) -> tuple of values, cached. The tuple has all members that the value in
            progress may equal in the end, and possibly other members. None if it would have 256 members or more.
    """

    def __init__(self, values: Values, budget: Budget) -> None:
        self._values = values
        self._budget = budget
        # Each set is (the smaller set, the added value).
        self._sets: list[tuple[SetId, ValueId]] = [(EMPTY, -1)]
        self._ids: dict[tuple[SetId, ValueId], SetId] = {}
        self._members: dict[SetId, _Members] = {EMPTY: _Members(frozenset(), [], [])}
        self._fitting: dict[tuple[int, SetId], list[ValueId]] = {}
        self._many_fitting = 0
        self.may_repeat = functools.lru_cache(maxsize=4096)(self._may_repeat)
        self.likely = functools.lru_cache(maxsize=4096)(self._first_likely)

    @property
    def nbytes(self) -> int:
        """Approximate memory of the sets, in bytes."""
        return len(self._sets) * _SET_BYTES

    def with_one_more(self, number: SetId, value: ValueId) -> SetId | None:
        """Return the number of the set with one more value.

        Args:
            number: Number of a set. The set is not changed.
            value: Number of the value to add.

        Returns:
            The number of the larger set, or None if the set contains the value.
        """
        if value in self._members_of(number).all:
            return None
        larger = self._ids.setdefault((number, value), len(self._sets))
        if larger == len(self._sets):
            self._sets.append((number, value))
        return larger

    def _may_repeat(self, number: SetId, position: Position) -> bool:
        """Return whether the value in progress may become a member of the set, see `Values.may_become`."""
        return number != EMPTY and any(
            self._values.may_become(position, value) for value in self._likely(number, position)
        )

    def next_bytes(self, number: SetId, position: Position) -> frozenset[int] | None:
        """Return the next bytes after which the value in progress may become equal to a member of a set.

        Args:
            number: Number of the set.
            position: Part of the value that has been read. It ends inside a string or property name.

        Returns:
            The set of bytes, which may be empty. None: any byte may lead to a member.
        """
        return frozenset() if number == EMPTY else self._values.next_bytes(position, self._likely(number, position))

    def _first_likely(self, number: SetId, position: Position) -> tuple[ValueId, ...] | None:
        """Return candidates that include every member that the value in progress may become; None if there are many."""
        members = self._members_of(number)
        kind, text, _, container = position
        if kind in (STRING, NAME) and not container:
            values = _beginning_with(("string", text), members.scalars)
        else:
            values = iter(self._likely(number, position))
        found = tuple(itertools.islice(values, _MANY_LIKELY))
        return found if len(found) < _MANY_LIKELY else None

    def _likely(self, number: SetId, position: Position) -> Sequence[ValueId] | Iterator[ValueId]:
        """Return candidates for the member that the value in progress may become: one string per next character."""
        members = self._members_of(number)
        kind, text, _, container = position
        if kind == DONE:
            return [container] if container in members.all else []
        if container:
            return self._fitting_of(number, container)
        if kind == BEGIN:
            return iter(members.all)
        if kind == NUMBER:
            return _numbers_like(text, members.scalars)
        if kind == WORD:
            return _beginning_with(("word", text), members.scalars)
        return _one_for_each(text, members.scalars)

    def _fitting_of(self, number: SetId, container: int) -> list[ValueId]:
        """Return the members that agree with the complete parts of an open container."""
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
        """Return the members of a set, derived from the nearest cached set (mostly the one with one value less)."""
        if number in self._members:
            return self._members[number]
        added = []
        while number not in self._members:
            added.append(number)
            number = self._sets[number][0]
        members = self._members[number]
        scalars, containers = [*members.scalars], [*members.containers]
        more = [self._sets[one][1] for one in reversed(added)]
        self._budget.spend(1 + (len(members.all) >> 6) + len(more))
        for value in more:
            kind, content = self._values.meaning(value)
            if kind in ("string", "word"):
                bisect.insort(scalars, (kind, content, value))
            elif kind == "number":
                bisect.insort(scalars, (kind, content[0], content[1], value))
            else:
                containers.append(value)
        if len(self._members) > _MOST_SETS:
            self._members = {EMPTY: self._members[EMPTY]}
        found = self._members[added[0]] = _Members(members.all.union(more), scalars, containers)
        return found


def _between(scalars: list[tuple[Any, ...]], first: tuple[Any, ...], last: tuple[Any, ...]) -> Iterator[ValueId]:
    """Yield the values of the sorted scalars from `first` up to, but without, `last`."""
    for place in range(bisect.bisect_left(scalars, first), bisect.bisect_left(scalars, last)):
        yield scalars[place][-1]


def _beginning_with(first: tuple[Any, ...], scalars: list[tuple[Any, ...]]) -> Iterator[ValueId]:
    """Yield the values of the scalars that are like `first`, the last item of which is the beginning of a text."""
    return _between(scalars, first, (*first[:-1], first[-1] + _ABOVE))


def _one_for_each(text: bytes, scalars: list[tuple[Any, ...]]) -> Iterator[ValueId]:
    """Yield, of the strings that begin with a text, one per next character, and the text itself."""
    place = bisect.bisect_left(scalars, ("string", text))
    end = bisect.bisect_left(scalars, ("string", text + _ABOVE), place)
    while place < end:
        _, whole, value = scalars[place]
        yield value
        place += 1
        if len(whole) > len(text):
            place = bisect.bisect_left(scalars, ("string", first_character(whole, len(text)) + _ABOVE), place)


def _numbers_like(text: bytes, scalars: list[tuple[Any, ...]]) -> Iterator[ValueId]:
    """Yield a superset of the numbers that may begin with a text."""
    negative, digits = sign_and_digits(text)
    kept = digits.rstrip(b"0")
    yield from _between(scalars, ("number", negative, kept), ("number", negative, kept, 1 << 62))
    if not digits:
        yield from _between(scalars, ("number", False, b""), ("number", False, b"", 1 << 62))
    if not any(mark in text for mark in b"eE"):
        yield from _beginning_with(("number", negative, digits), scalars)

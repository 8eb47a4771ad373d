"""Deterministic automata over characters: from a nondeterministic one, and Boolean operations between them."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa.charset import ALL, Charset, contains
from grammar_workers.dfa.minimize import minimal
from grammar_workers.dfa.product import reachable_tuples
from grammar_workers.dfa.row_hash import DEAD, distinct_rows, numbered_rows
from grammar_workers.dfa.utf8 import MoveShape, row_shape
from grammar_workers.options import Limits


class Part(NamedTuple):
    """States that tell the same of some characters apart: `targets[i, number]` is what target `number` of `shape` means
    in `states[i]`."""

    states: NDArray[np.int64]
    shape: MoveShape
    targets: NDArray[np.int32]


@dataclasses.dataclass(frozen=True, eq=False)
class Dfa:
    """A deterministic automaton. Characters fall into classes: class i begins at `starts[i]` (`starts[0]` is 0).

    `table[state, class]` is the next state or -1; nobody writes to it. `accepting[state]` is 0 where the text may not
    end; any other number is a label that tells what kind of text has been read (1 where there is one kind). Matching
    begins in state 0. Every state is reachable, and every state other than 0 leads to an accepting one (`minimize` sees
    to it).
    """

    starts: tuple[int, ...]
    table: NDArray[np.int32]
    accepting: tuple[int, ...]

    @staticmethod
    def of(starts: Sequence[int], moves: Sequence[Sequence[int]], accepting: Iterable[int]) -> Dfa:
        """The automaton with this table."""
        table = np.array(moves, np.int32).reshape(len(moves), len(starts))
        return Dfa(tuple(starts), table, tuple(accepting))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Dfa)
            and self.starts == other.starts
            and self.accepting == other.accepting
            and np.array_equal(self.table, other.table)
        )

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Automata are keys of many caches, and may be large."""
        return hash((self.starts, self.accepting, self.table.tobytes()))

    @functools.cached_property
    def moves(self) -> list[list[int]]:
        """`table` for looking at single moves."""
        moves: list[list[int]] = self.table.tolist()
        return moves

    @property
    def many_states(self) -> int:
        return len(self.accepting)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is accepted."""
        return not any(self.accepting)

    @functools.cached_property
    def distinct_classes(self) -> list[int]:
        """Per class: the first class that every state treats alike."""
        numbers, firsts = distinct_rows(np.ascontiguousarray(self.table.T))
        return firsts[numbers].tolist()

    def classify(self, text: str) -> int:
        """The label of `text`, 0 when it is not accepted."""
        state = self.read(0, text)
        return 0 if state == DEAD else self.accepting[state]

    def read(self, state: int, text: str) -> int:
        """The state that `text` leads to from `state`, or DEAD."""
        for character in text:
            state = self.moves[state][bisect.bisect_right(self.starts, ord(character)) - 1]
            if state == DEAD:
                break
        return state

    @functools.cached_property
    def reachable_labels(self) -> list[frozenset[int]]:
        """Per state: the labels of the texts that can still be read from it."""
        # Bit i stands for label i.
        found = [1 << label if label else 0 for label in self.accepting]
        targets = self.successors
        changed = True
        while changed:
            changed = False
            for state in range(len(found) - 1, -1, -1):
                union = found[state]
                for target in targets[state]:
                    union |= found[target]
                if union != found[state]:
                    found[state] = union
                    changed = True
        meaning = {bits: frozenset(n for n in range(bits.bit_length()) if bits >> n & 1) for bits in set(found)}
        return [meaning[bits] for bits in found]

    @functools.lru_cache(maxsize=512)  # noqa: B019 - other caches hold automata for as long
    def tolerated_runs(self, characters: Charset, most: int) -> NDArray[np.int64]:
        """Per state, how many of these characters, `most` at most, may follow whatever they are; int64 [states]."""
        _, classes = self._spans(characters)
        inside = sorted({self.distinct_classes[number] for number in classes})
        moves = self.table[:, inside]
        runs = np.zeros(self.many_states, np.int64)
        # The last entry stands for the dead state -1.
        tolerant = np.append(np.ones(self.many_states, bool), False)
        for run in range(1, most + 1):
            still = tolerant[moves].all(axis=1)
            if np.array_equal(still, tolerant[:-1]):
                runs[still] = most
                break
            runs[still] = run
            tolerant[:-1] = still
        return runs

    def _spans(self, characters: Charset) -> tuple[list[tuple[int, int]], list[int]]:
        """`characters` cut where classes begin, and the class of each piece."""
        starts = self.starts
        spans, classes = [], []
        for low, high in characters:
            number = bisect.bisect_right(starts, low)
            while low <= high:
                end = starts[number] if number < len(starts) else high + 1
                spans.append((low, min(end - 1, high)))
                classes.append(number - 1)
                low = end
                number += 1
        return spans, classes

    @functools.cached_property
    def distinct_moves(self) -> NDArray[np.int32]:
        """Per state: where characters lead, each class of equal ones once, or -1; int32 [states, classes]."""
        return self.table[:, sorted(set(self.distinct_classes))]

    @functools.cached_property
    def successors(self) -> list[set[int]]:
        """Per state: the states that characters lead to."""
        return [set(row) - {DEAD} for row in self.distinct_moves.tolist()]

    @functools.cached_property
    def ends(self) -> list[int]:
        """The states in which a text may end."""
        return [state for state, label in enumerate(self.accepting) if label]

    @functools.cached_property
    def free_states(self) -> list[int]:
        """The states that every character leads back to."""
        _, column = self._spans(ALL)
        own = np.arange(self.many_states, dtype=np.int32)[:, None]
        return np.flatnonzero((self.table[:, column] == own).all(axis=1)).tolist()

    @functools.cached_property
    def ascii(self) -> NDArray[np.int32]:
        """Per state and character below U+0080 the next state or -1, int32 [states, 128]."""
        return self.table[:, np.searchsorted(self.starts, np.arange(0x80), "right") - 1]

    @functools.lru_cache(maxsize=512)  # noqa: B019 - other caches hold automata for as long
    def parts(self, characters: Charset) -> list[Part]:
        """The states by which of these characters they tell apart."""
        spans, classes = self._spans(characters)
        # Classes that are like another one are one kind.
        kinds: dict[int, int] = {}
        kind_of = [kinds.setdefault(self.distinct_classes[number], len(kinds)) for number in classes]
        targets, numbers = numbered_rows(np.ascontiguousarray(self.table[:, list(kinds)]))
        part_of, firsts = distinct_rows(numbers)
        if len(firsts) == 1:
            members_of = [np.arange(len(part_of))]
        else:
            members_of = np.split(np.argsort(part_of, kind="stable"), np.cumsum(np.bincount(part_of))[:-1])
        found = []
        for members, first in zip(members_of, firsts.tolist(), strict=True):
            shape = row_shape(_runs(spans, numbers[first, kind_of].tolist()))
            found.append(Part(members, shape, targets[members, : shape.many_targets]))
        return found

    @functools.cached_property
    def _rows(self) -> list[tuple[list[int], MoveShape]]:
        rows: dict[int, tuple[list[int], MoveShape]] = {}
        for part in self.parts(ALL):
            for state, targets in zip(part.states.tolist(), part.targets.tolist(), strict=True):
                rows[state] = (targets, part.shape)
        return [rows[state] for state in range(self.many_states)]

    def moves_of(self, state: int) -> tuple[Sequence[int], MoveShape]:
        """The targets of `state`, and which characters lead to which."""
        return self._rows[state]

    def ranges(self, state: int) -> list[tuple[int, int, int]]:
        """(first, last, target) of the live moves of `state`, without surrogates, equal neighbours merged."""
        targets, shape = self._rows[state]
        return [(first, last, targets[number]) for first, last, number in shape.ranges]

    def charsets(self, state: int) -> list[tuple[Charset, int]]:
        """Pairs (characters, target) of the moves, each target once, in the order of their first characters."""
        targets, shape = self._rows[state]
        return list(zip(shape.charsets, targets[: shape.many_targets], strict=True))


def _runs(spans: Sequence[tuple[int, int]], numbers: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """(first, last, number) of the spans that lead anywhere, neighbours with the same number merged."""
    runs: list[tuple[int, int, int]] = []
    for (first, last), number in zip(spans, numbers, strict=True):
        if number == DEAD:
            continue
        if runs and runs[-1][2] == number and runs[-1][1] == first - 1:
            runs[-1] = (runs[-1][0], last, number)
        else:
            runs.append((first, last, number))
    return tuple(runs)


ANY_TEXT = Dfa.of((0, 0xD800, 0xE000), ((0, DEAD, 0),), (1,))
"""Every text, as whatever constructs automata finds it; surrogates are in none."""


_PRODUCT = 15
"""A product may have so many times the states of a single automaton: of a pattern with counts and a format, few of them
are left when it is minimal."""


def combine(automata: Sequence[Dfa], verdict: Callable[[tuple[int, ...]], int], limits: Limits) -> Dfa:
    """The automaton that labels a text with `verdict` of the labels that `automata` give it.

    Any Boolean operation; for those that one automaton can decide alone, `intersect` and `unite` look at less.
    """
    return _product(automata, verdict, limits, all_alive=False)


def _product(
    automata: Sequence[Dfa], verdict: Callable[[tuple[int, ...]], int], limits: Limits, *, all_alive: bool
) -> Dfa:
    """`combine`; with `all_alive`, only of the texts that lead no automaton to a dead end."""
    budget = budget_of(limits)
    starts = sorted({0xD800, 0xE000, *(start for automaton in automata for start in automaton.starts)})
    # Characters that no automaton tells apart are one letter; surrogates are none.
    letters: dict[tuple[int, ...], int] = {}
    classes = [automaton.distinct_classes for automaton in automata]
    letter_at = [
        DEAD
        if start == 0xD800
        else letters.setdefault(
            tuple(
                distinct[bisect.bisect_right(automaton.starts, start) - 1]
                for automaton, distinct in zip(automata, classes, strict=True)
            ),
            len(letters),
        )
        for start in starts
    ]
    columns = [[letter[i] for letter in letters] for i in range(len(automata))]
    steps = 1 + (len(letters) * len(automata) >> 3)
    most = min(_PRODUCT * limits.max_regex_states, budget.left // steps + 1)
    product = reachable_tuples([automaton.table for automaton in automata], columns, most, all_alive=all_alive)
    if product is None:
        budget.spend(most * steps)
        budget.check_states(most)
    assert product is not None
    tuples, moves = product
    budget.spend(len(tuples) * steps)
    labels = np.empty_like(tuples)
    for i, automaton in enumerate(automata):
        # The label at index -1 is that of the dead state.
        labels[:, i] = np.array([*automaton.accepting, 0], np.int32)[tuples[:, i]]
    numbers, firsts = distinct_rows(labels)
    verdicts = np.array([int(verdict(tuple(found))) for found in labels[firsts].tolist()], np.int32)
    return from_table(starts, letter_at, *minimal(moves, verdicts[numbers]))


def intersect(automata: Sequence[Dfa], limits: Limits) -> Dfa:
    """The texts that all accept; where one can accept no more, the others are not followed."""
    return automata[0] if len(automata) == 1 else _product(automata, all, limits, all_alive=True)


def complement(automaton: Dfa, limits: Limits) -> Dfa:
    """The texts that are not accepted."""
    return combine([automaton], lambda found: not found[0], limits)


def unite(automata: Sequence[Dfa], limits: Limits) -> Dfa:
    """The texts that any accepts; where one accepts whatever follows, the others are not followed (De Morgan)."""
    if len(automata) == 1:
        return automata[0]
    return complement(intersect([complement(automaton, limits) for automaton in automata], limits), limits)


def without_longer(automaton: Dfa) -> Dfa:
    """The texts of which no beginning is accepted, too."""
    table = automaton.table.copy()
    table[np.flatnonzero(automaton.accepting)] = DEAD
    return minimize(Dfa(automaton.starts, table, automaton.accepting))


def restrict(automaton: Dfa, allowed: Charset) -> Dfa:
    """The same language without the texts that hold any other character than `allowed`."""
    if allowed == ALL:
        return automaton
    borders = {start for low, high in allowed for start in (low, high + 1)}
    starts = tuple(sorted({0, *automaton.starts, *(border for border in borders if border <= 0x10FFFF)}))
    column = [
        bisect.bisect_right(automaton.starts, start) - 1 if contains(allowed, start) else DEAD for start in starts
    ]
    return minimize(from_table(starts, column, automaton.table, np.array(automaton.accepting, np.int32)))


def relabel(automaton: Dfa, labels: Sequence[int]) -> Dfa:
    """The automaton with label i replaced by `labels[i]` (0: not accepted any more)."""
    if list(labels) == list(range(len(labels))):
        return automaton
    relabelled = dataclasses.replace(automaton, accepting=tuple([labels[label] for label in automaton.accepting]))
    after = [labels[label] for label in {*automaton.accepting} - {0}]
    # What still tells the same states apart is as minimal as before.
    return relabelled if all(after) and len({*after}) == len(after) else minimize(relabelled)


def literal_set(texts: Mapping[str, int], repeated: Mapping[str, str] = MappingProxyType({})) -> Dfa:
    """Exactly these texts, each with its label: their trie, minimised.

    `repeated` has a character for some of the texts that may follow them any number of times; no other text does.
    """
    characters = sorted({character for text in (*texts, *repeated.values()) for character in text})
    starts = sorted({0, *map(ord, characters), *(ord(c) + 1 for c in characters)})
    classes = {character: bisect.bisect_left(starts, ord(character)) for character in characters}
    targets: dict[tuple[int, int], int] = {}
    accepting = [0]
    for text, label in texts.items():
        state = 0
        for character in text:
            state = targets.setdefault((state, classes[character]), len(accepting))
            if state == len(accepting):
                accepting.append(0)
        accepting[state] = label
        if text in repeated:
            targets[state, classes[repeated[text]]] = state
    table = np.full((len(accepting), len(starts)), DEAD, np.int32)
    if targets:
        table[tuple(zip(*targets, strict=True))] = list(targets.values())
    return minimize(Dfa(tuple(starts), table, tuple(accepting)))


def explore(
    start: Hashable,
    following: Callable[[Any], Iterable[Hashable | None]],
    accepts: Callable[[Any], int],
    starts: Sequence[int],
    letter_at: Sequence[int],
    budget: Budget | None = None,
) -> Dfa:
    """The automaton whose states are reached from `start`: `following` has what each letter leads to (None: nowhere).

    Interval i, which begins at `starts[i]`, reads letter `letter_at[i]` (-1: nothing reads it). `budget` bounds the
    number of states; without one, they must be known to be few.
    """
    ids: dict[Hashable, int] = {start: 0}
    order = [start]
    moves = []
    for state in order:
        row = []
        last: Hashable | None = None
        number = DEAD
        for reached in following(state):
            if reached is not last:
                number = DEAD if reached is None else ids.setdefault(reached, len(order))
                last = reached
                if number == len(order):
                    order.append(reached)
                    if budget is not None:
                        budget.check_states(number - 1)
            row.append(number)
        moves.append(row)
    return from_table(starts, letter_at, np.array(moves, np.int32), np.array([*map(accepts, order)], np.int32))


def minimize(automaton: Dfa) -> Dfa:
    """Trim and merge: no unreachable state, no dead one, no two with the same future.

    A class that holds nothing but surrogates is dead: no text holds them, so none may keep a state alive.
    """
    starts, table = automaton.starts, automaton.table.copy()
    ends = (*starts[1:], 0x110000)
    table[:, [start >= 0xD800 and end <= 0xE000 for start, end in zip(starts, ends, strict=True)]] = DEAD
    return from_table(starts, range(len(starts)), *minimal(table, np.array(automaton.accepting, np.int32)))


def from_table(
    starts: Sequence[int], letter_at: Sequence[int], table: NDArray[np.int32], accepting: NDArray[np.int32]
) -> Dfa:
    """The automaton over intervals of one over letters: int32 [states, letters] of the next state or -1.

    Interval i, which begins at `starts[i]`, reads letter `letter_at[i]` (-1: nothing reads it).
    """
    moves = np.append(table, np.full((len(table), 1), DEAD, np.int32), axis=1)[:, list(letter_at)]
    # Neighbouring classes that no state distinguishes become one.
    keep = [0, *(1 + np.flatnonzero((moves[:, 1:] != moves[:, :-1]).any(axis=0))).tolist()]
    return Dfa(tuple(starts[i] for i in keep), np.ascontiguousarray(moves[:, keep]), tuple(accepting.tolist()))

"""Deterministic automata over characters: from a nondeterministic one, and Boolean operations between them."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers import charset
from grammar_workers.budget import Budget
from grammar_workers.charset import ALL, Charset
from grammar_workers.minimization import DEAD, minimal
from grammar_workers.options import Limits
from grammar_workers.tuple_product import reachable_tuples


@dataclasses.dataclass(frozen=True)
class CharacterAutomaton:
    """A deterministic automaton. Characters fall into classes: class i begins at `starts[i]` (`starts[0]` is 0).

    `moves[state][class]` is the next state or -1. `accepting[state]` is 0 where the text may not end; any other number
    is a label that tells what kind of text has been read (1 where there is one kind). Matching begins in state 0. Every
    state is reachable, and every state other than 0 leads to an accepting one (`minimize` sees to it).
    """

    starts: tuple[int, ...]
    moves: tuple[tuple[int, ...], ...]
    accepting: tuple[int, ...]

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Automata are keys of many caches, and may be large."""
        return hash((self.starts, self.moves, self.accepting))

    @functools.cached_property
    def table(self) -> NDArray[np.int32]:
        """`moves` as int32 [states, classes]."""
        return np.array(self.moves, np.int32).reshape(len(self.moves), len(self.starts))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is accepted."""
        return not any(self.accepting)

    def distinct_classes(self) -> list[int]:
        """Per class: the first class that every state treats alike."""
        first: dict[tuple[int, ...], int] = {}
        return [first.setdefault(column, number) for number, column in enumerate(zip(*self.moves, strict=True))]

    def classify(self, text: str) -> int:
        """The label of `text`, 0 when it is not accepted."""
        state = 0
        for character in text:
            state = self.moves[state][bisect.bisect_right(self.starts, ord(character)) - 1]
            if state == DEAD:
                return 0
        return self.accepting[state]

    def reachable_labels(self) -> list[frozenset[int]]:
        """Per state: the labels of the texts that can still be read from it."""
        found = [frozenset([label]) if label else frozenset() for label in self.accepting]
        changed = True
        while changed:
            changed = False
            for state in range(len(found) - 1, -1, -1):
                union = found[state].union(*(found[target] for target in set(self.moves[state]) if target != DEAD))
                if len(union) > len(found[state]):
                    found[state] = union
                    changed = True
        return found

    def tolerant_states(self, characters: Charset, run: int) -> list[int]:
        """The states from which no sequence of at most `run` of these characters leads to a dead end."""
        known = self._tolerant.get((characters, run))
        if known is None:
            known = self._tolerant[characters, run] = self._tolerant_states(characters, run)
        return known

    @functools.cached_property
    def _tolerant(self) -> dict[tuple[Charset, int], list[int]]:
        return {}

    def _tolerant_states(self, characters: Charset, run: int) -> list[int]:
        ends = (*self.starts[1:], 0x110000)
        inside = [
            number
            for number, (start, end) in enumerate(zip(self.starts, ends, strict=True))
            if charset.intersect(((start, end - 1),), characters)
        ]
        # The last row stands for the dead state, which index -1 finds.
        moves = np.array([[row[number] for number in inside] for row in self.moves] + [[DEAD] * len(inside)], np.int64)
        tolerant: NDArray[np.bool_] = np.ones(len(moves), bool)
        tolerant[DEAD] = False
        for _ in range(run):
            following: NDArray[np.bool_] = np.all(tolerant[moves], axis=1)
            if np.array_equal(following, tolerant):
                break
            tolerant = following
        return np.flatnonzero(tolerant[:-1]).tolist()

    @functools.cached_property
    def _spans(self) -> list[tuple[int, int, int]]:
        return _scalar_spans(self.starts)

    @functools.cached_property
    def _known_ranges(self) -> dict[int, list[tuple[int, int, int]]]:
        """`ranges` by state: many automata are shared by all schemas."""
        return {}

    def ranges(self, state: int) -> list[tuple[int, int, int]]:
        """(first, last, target) of the live moves of `state`, without surrogates, equal neighbours merged."""
        known = self._known_ranges.get(state)
        if known is None:
            known = self._known_ranges[state] = self._ranges(state)
        return known

    def _ranges(self, state: int) -> list[tuple[int, int, int]]:
        result: list[tuple[int, int, int]] = []
        row = self.moves[state]
        for number, first, last in self._spans:
            target = row[number]
            if target == DEAD:
                continue
            if result and result[-1][2] == target and result[-1][1] == first - 1:
                result[-1] = (result[-1][0], last, target)
            else:
                result.append((first, last, target))
        return result


@functools.lru_cache(maxsize=256)
def _scalar_spans(starts: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(class, first, last) of the scalar values, in order."""
    ends = (*starts[1:], 0x110000)
    return [
        (number, max(start, low), min(end - 1, high))
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        for low, high in ALL
        if max(start, low) <= min(end - 1, high)
    ]


def combine(
    automata: Sequence[CharacterAutomaton], verdict: Callable[[tuple[int, ...]], int], limits: Limits
) -> CharacterAutomaton:
    """The automaton that labels a text with `verdict` of the labels that `automata` give it.

    Any Boolean operation: `all` intersects, `any` unites, `lambda v: not v[0]` complements (over all texts).
    """
    budget = Budget(limits)
    starts = sorted({0xD800, 0xE000, *(start for automaton in automata for start in automaton.starts)})
    # Characters that no automaton tells apart are one letter; surrogates are none.
    letters: dict[tuple[int, ...], int] = {}
    classes = [automaton.distinct_classes() for automaton in automata]
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
    product = reachable_tuples([automaton.table for automaton in automata], columns, limits.max_regex_states)
    if product is None:
        budget.check_states(limits.max_regex_states)
    assert product is not None
    tuples, moves = product
    budget.spend(len(tuples) * (1 + (len(letters) * len(automata) >> 2)))
    # The label at index -1 is that of the dead state.
    labels = np.array(
        [np.array([*automaton.accepting, 0])[tuples[:, i]] for i, automaton in enumerate(automata)], np.int64
    )
    verdicts: dict[tuple[int, ...], int] = {}
    accepting = []
    for found in map(tuple, labels.T.tolist()):
        if found not in verdicts:
            verdicts[found] = int(verdict(found))
        accepting.append(verdicts[found])
    table, accepted = minimal(moves, np.array(accepting, np.int32))
    return from_table(starts, letter_at, table, accepted)


def intersect(automata: Sequence[CharacterAutomaton], limits: Limits) -> CharacterAutomaton:
    return automata[0] if len(automata) == 1 else combine(automata, all, limits)


def restrict(automaton: CharacterAutomaton, allowed: Charset) -> CharacterAutomaton:
    """The same language without the texts that hold any other character than `allowed`."""
    borders = {start for low, high in allowed for start in (low, high + 1)}
    starts = tuple(sorted({0, *automaton.starts, *(border for border in borders if border <= 0x10FFFF)}))
    column = [
        bisect.bisect_right(automaton.starts, start) - 1 if charset.contains(allowed, start) else DEAD
        for start in starts
    ]
    moves = tuple(tuple(DEAD if c == DEAD else row[c] for c in column) for row in automaton.moves)
    return minimize(CharacterAutomaton(starts, moves, automaton.accepting))


def relabel(automaton: CharacterAutomaton, labels: Sequence[int]) -> CharacterAutomaton:
    """The automaton with label i replaced by `labels[i]` (0: not accepted any more)."""
    return minimize(dataclasses.replace(automaton, accepting=tuple(labels[label] for label in automaton.accepting)))


def literal_set(texts: Mapping[str, int]) -> CharacterAutomaton:
    """Exactly these texts, each with its label: their trie, minimised."""
    characters = sorted({character for text in texts for character in text})
    starts = sorted({0, *map(ord, characters), *(ord(c) + 1 for c in characters)})
    classes = {character: bisect.bisect_left(starts, ord(character)) for character in characters}
    rows: list[dict[int, int]] = [{}]
    accepting = [0]
    for text, label in texts.items():
        state = 0
        for character in text:
            target = rows[state].get(classes[character])
            if target is None:
                target = rows[state][classes[character]] = len(rows)
                rows.append({})
                accepting.append(0)
            state = target
        accepting[state] = label
    moves = tuple(tuple(row.get(number, DEAD) for number in range(len(starts))) for row in rows)
    return minimize(CharacterAutomaton(tuple(starts), moves, tuple(accepting)))


def explore(
    start: Hashable,
    step: Callable[[Any, str], Hashable | None],
    accepts: Callable[[Any], int],
    alphabet: Sequence[str],
) -> CharacterAutomaton:
    """The automaton whose states are whatever `step` reaches from `start` over single characters; None is dead."""
    starts = sorted({0, *map(ord, alphabet), *(ord(c) + 1 for c in alphabet)})
    places = [(bisect.bisect_left(starts, ord(character)), character) for character in alphabet]
    ids: dict[Hashable, int] = {start: 0}
    order = [start]
    moves = []
    for state in order:
        row = [DEAD] * len(starts)
        for place, character in places:
            reached = step(state, character)
            if reached is not None:
                if reached not in ids:
                    ids[reached] = len(order)
                    order.append(reached)
                row[place] = ids[reached]
        moves.append(tuple(row))
    return minimize(CharacterAutomaton(tuple(starts), tuple(moves), tuple(accepts(state) for state in order)))


def minimize(automaton: CharacterAutomaton) -> CharacterAutomaton:
    """Trim and merge: no unreachable state, no dead one, no two with the same future.

    A class that holds nothing but surrogates is dead: no text holds them, so none may keep a state alive.
    """
    moves = np.array(automaton.moves, np.int32).reshape(len(automaton.moves), -1)
    ends = (*automaton.starts[1:], 0x110000)
    moves[:, [start >= 0xD800 and end <= 0xE000 for start, end in zip(automaton.starts, ends, strict=True)]] = DEAD
    moves, accepting = minimal(moves, np.array(automaton.accepting, np.int32))
    return from_table(automaton.starts, range(len(automaton.starts)), moves, accepting)


def from_table(
    starts: Sequence[int], letter_at: Sequence[int], table: NDArray[np.int32], accepting: NDArray[np.int32]
) -> CharacterAutomaton:
    """The automaton over intervals of one over letters: int32 [states, letters] of the next state or -1.

    Interval i, which begins at `starts[i]`, reads letter `letter_at[i]` (-1: nothing reads it).
    """
    moves = np.append(table, np.full((len(table), 1), DEAD, np.int32), axis=1)[:, list(letter_at)]
    # Neighbouring classes that no state distinguishes become one.
    keep = [0, *(1 + np.flatnonzero((moves[:, 1:] != moves[:, :-1]).any(axis=0))).tolist()]
    rows = tuple(map(tuple, moves[:, keep].tolist()))
    return CharacterAutomaton(tuple(starts[i] for i in keep), rows, tuple(accepting.tolist()))

"""Deterministic finite automata (DFAs) over characters, and Boolean operations on their languages.

The states of a DFA usually distinguish only a few classes of characters, so a transition table has one column per
class. An operation on several automata first computes their *letters*: classes of characters that each automaton treats
alike. It then explores the product automaton over letters and minimizes it.
"""

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
from grammar_workers.dfa.charset import ALL, Charset, class_starts, contains
from grammar_workers.dfa.minimize import minimal
from grammar_workers.dfa.product import reachable_tuples
from grammar_workers.dfa.row_hash import DEAD, distinct_rows, numbered_rows
from grammar_workers.dfa.utf8 import MoveShape, row_shape
from grammar_workers.options import Limits


class Part(NamedTuple):
    """Group of states of a DFA that split a given set of characters into the same classes, with their target states.

    A *target number* stands for a target state: 0 for the first target of a state in the order of characters, 1 for the
    next different one.

    Attributes:
        states: State numbers, int64 [n].
        shape: Maps characters to target numbers.
        targets: Target states, int32 [n, shape.many_targets]: from `states[i]`, characters with target number j lead to
            `targets[i, j]`.
    """

    states: NDArray[np.int64]
    shape: MoveShape
    targets: NDArray[np.int32]


@dataclasses.dataclass(frozen=True, eq=False)
class Dfa:
    """A deterministic automaton over characters, with labels on its accepting states.

    The start state is 0. Every state is reachable, and every state except 0 leads to an accepting state (`minimize`
    establishes this).

    Attributes:
        starts: First code point of each class of characters, ascending; `starts[0]` is 0. A class ends before the first
            code point of the next class.
        table: Next state, or -1 for none, int32 [states, classes]. The array must not be written to.
        accepting: Label of each state: 0 if no text may end there, else a positive number for the kind of text that has
            been read (1 if there is one kind).
    """

    starts: tuple[int, ...]
    table: NDArray[np.int32]
    accepting: tuple[int, ...]

    @staticmethod
    def of(starts: Sequence[int], moves: Sequence[Sequence[int]], accepting: Iterable[int]) -> Dfa:
        """Return the automaton whose transition table is given as nested sequences; it is not minimized.

        Args:
            starts: First code point of each class of characters, ascending from 0.
            moves: Next state, or -1 for none, for each state and class.
            accepting: Label of each state; 0 if the state does not accept.
        """
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
        """The hash, computed once: automata are keys of many caches and may be large."""
        return hash((self.starts, self.accepting, self.table.tobytes()))

    @functools.cached_property
    def moves(self) -> list[list[int]]:
        """`table` as nested lists: `moves[state][class]` is the next state, or -1. Single look-ups are then faster."""
        moves: list[list[int]] = self.table.tolist()
        return moves

    @property
    def many_states(self) -> int:
        """Number of states."""
        return len(self.accepting)

    @property
    def is_empty(self) -> bool:
        """True if no text is accepted."""
        return not any(self.accepting)

    @functools.cached_property
    def distinct_classes(self) -> list[int]:
        """For each class (column of `table`), the index of the first class with an equal column."""
        numbers, firsts = distinct_rows(np.ascontiguousarray(self.table.T))
        return firsts[numbers].tolist()

    def classify(self, text: str) -> int:
        """Return the label (positive number of a kind of text) of `text`; 0 if the automaton does not accept `text`."""
        state = self.read(0, text)
        return 0 if state == DEAD else self.accepting[state]

    def read(self, state: int, text: str) -> int:
        """Return the state after reading `text` from `state`; -1 (DEAD) if a character of `text` cannot be read."""
        for character in text:
            state = self.moves[state][bisect.bisect_right(self.starts, ord(character)) - 1]
            if state == DEAD:
                break
        return state

    @functools.cached_property
    def reachable_labels(self) -> list[frozenset[int]]:
        """For each state, the labels (kinds of accepted text) of the states that it can reach, itself included."""
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
        """Return for each state the largest n such that the state can read every sequence of n given characters.

        Args:
            characters: The characters of which the sequences consist, in any order and number.
            most: Upper limit of the returned lengths.

        Returns:
            The lengths n in characters, int64 [states].
        """
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
        """Split `characters` at class boundaries. Return the intervals, and the class of each interval."""
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
        """Next state, or -1 for none, with one column per group of equal columns of `table`, int32 [states, groups]."""
        return self.table[:, sorted(set(self.distinct_classes))]

    @functools.cached_property
    def successors(self) -> list[set[int]]:
        """For each state, the set of its next states after any single character."""
        return [set(row) - {DEAD} for row in self.distinct_moves.tolist()]

    @functools.cached_property
    def ends(self) -> list[int]:
        """The accepting states, ascending."""
        return [state for state, label in enumerate(self.accepting) if label]

    @functools.cached_property
    def free_states(self) -> list[int]:
        """States in which every character leads back to the state itself, ascending."""
        _, column = self._spans(ALL)
        own = np.arange(self.many_states, dtype=np.int32)[:, None]
        return np.flatnonzero((self.table[:, column] == own).all(axis=1)).tolist()

    @functools.cached_property
    def ascii(self) -> NDArray[np.int32]:
        """Next state, or -1 for none, for each state and ASCII character, int32 [states, 128]."""
        return self.table[:, np.searchsorted(self.starts, np.arange(0x80), "right") - 1]

    @functools.lru_cache(maxsize=512)  # noqa: B019 - other caches hold automata for as long
    def parts(self, characters: Charset) -> list[Part]:
        """Group the states by the classes into which they split the given characters.

        A class has the characters that lead a state to the same target state. The states of a group have the same
        classes, but their target states may differ.

        Args:
            characters: The characters whose transitions are compared. Transitions on other characters are ignored.

        Returns:
            Groups of states. Each state is in one group.
        """
        spans, classes = self._spans(characters)
        # Equal classes are one kind, which has one column.
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
    def rows(self) -> list[tuple[list[int], MoveShape]]:
        """For each state, its distinct target states, and the mapping from characters to these targets.

        The targets are ordered by their first characters. The mapping has ranges of characters, each with an index into
        the targets.
        """
        rows: dict[int, tuple[list[int], MoveShape]] = {}
        for part in self.parts(ALL):
            for state, targets in zip(part.states.tolist(), part.targets.tolist(), strict=True):
                rows[state] = (targets, part.shape)
        return [rows[state] for state in range(self.many_states)]

    def ranges(self, state: int) -> list[tuple[int, int, int]]:
        """Return the transitions of a state as triples (first character, last character, target state), ascending.

        Both characters are code points, inclusive. Surrogates, and characters that the state does not read, are not in
        a range. Adjacent ranges with equal targets are merged.
        """
        targets, shape = self.rows[state]
        return [(first, last, targets[number]) for first, last, number in shape.ranges]

    def charsets(self, state: int) -> list[tuple[Charset, int]]:
        """Return the transitions of a state: a pair (set of characters, target state) for each target state.

        The pairs are ordered by their first characters.
        """
        targets, shape = self.rows[state]
        return list(zip(shape.charsets, targets[: shape.many_targets], strict=True))


def _runs(spans: Sequence[tuple[int, int]], numbers: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return (first, last, number) of the live spans; adjacent spans with one target number are merged."""
    runs: list[tuple[int, int, int]] = []
    for (first, last), number in zip(spans, numbers, strict=True):
        if number == DEAD:
            continue
        if runs and runs[-1][2] == number and runs[-1][1] == first - 1:
            runs[-1] = (runs[-1][0], last, number)
        else:
            runs.append((first, last, number))
    return tuple(runs)


# The automaton of every text, in the form that minimization produces. No text contains surrogates.
ANY_TEXT = Dfa.of((0, 0xD800, 0xE000), ((0, DEAD, 0),), (1,))


# Largest size of a product, as a multiple of `max_regex_states`.
#
# Minimization removes most states of a product such as that of a pattern with counts and a format.
_PRODUCT = 15


def combine(automata: Sequence[Dfa], verdict: Callable[[tuple[int, ...]], int], limits: Limits) -> Dfa:
    """Return the automaton that gives each text a new label, computed from the labels of several automata.

    A label is a positive number for a kind of accepted text. Every Boolean operation can be expressed by `verdict`. For
    example, `any` computes the union. The functions `intersect` and `unite` explore fewer states, because they stop as
    soon as one automaton decides. LimitExceededError is raised if the product has too many states or takes too many
    steps.

    Args:
        automata: At least one automaton.
        verdict: Receives the labels of a text, one per automaton (0: not accepted). Returns the new label; 0 or False
            rejects the text, True is label 1.
        limits: `max_regex_states` and `max_steps` limit the product.
    """
    return _product(automata, verdict, limits, all_alive=False)


def _product(
    automata: Sequence[Dfa], verdict: Callable[[tuple[int, ...]], int], limits: Limits, *, all_alive: bool
) -> Dfa:
    """Implement `combine`. With `all_alive`, drop the texts that lead any of the automata to a dead end."""
    budget = budget_of(limits)
    starts = sorted({0xD800, 0xE000, *(start for automaton in automata for start in automaton.starts)})
    # Characters that no automaton distinguishes are one letter; surrogates have no letter.
    places = [start for start in starts if start != 0xD800]
    classes = np.empty((len(places), len(automata)), np.int32)
    for i, automaton in enumerate(automata):
        column = np.searchsorted(automaton.starts, places, "right") - 1
        classes[:, i] = np.array(automaton.distinct_classes)[column]
    letters, firsts = distinct_rows(classes)
    letter_at = np.insert(letters, starts.index(0xD800), DEAD).tolist()
    columns = classes[firsts].T.tolist()
    steps = 1 + (len(firsts) * len(automata) >> 3)
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
    """Return the automaton of the texts that all `automata` accept.

    The exploration stops where one of the automata can accept no text. LimitExceededError is raised if the product has
    too many states or takes too many steps.

    Args:
        automata: At least one automaton. If there is only one, it is returned unchanged, with its labels.
        limits: `max_regex_states` and `max_steps` limit the product.

    Returns:
        The minimal automaton, in which accepted texts have label 1.
    """
    return automata[0] if len(automata) == 1 else _product(automata, all, limits, all_alive=True)


def complement(automaton: Dfa, limits: Limits) -> Dfa:
    """Return the automaton that accepts, with label 1, the texts that `automaton` does not accept.

    LimitExceededError is raised if the result has too many states or takes too many steps.

    Args:
        automaton: The automaton, which is not changed.
        limits: `max_regex_states` and `max_steps` limit the result.
    """
    return combine([automaton], lambda found: not found[0], limits)


def unite(automata: Sequence[Dfa], limits: Limits) -> Dfa:
    """Return the automaton of the texts that at least one of `automata` accepts.

    The union is computed as the complement of an intersection (De Morgan), so exploration stops where one automaton
    accepts every continuation. LimitExceededError is raised if the product has too many states or takes too many steps.

    Args:
        automata: At least one automaton. If there is only one, it is returned unchanged, with its labels.
        limits: `max_regex_states` and `max_steps` limit the product.

    Returns:
        The minimal automaton, in which accepted texts have label 1.
    """
    if len(automata) == 1:
        return automata[0]
    return complement(intersect([complement(automaton, limits) for automaton in automata], limits), limits)


def without_longer(automaton: Dfa) -> Dfa:
    """Return the automaton of the accepted texts that do not begin with a shorter accepted text.

    Example: of the language `ab*`, only `a` is left.
    """
    table = automaton.table.copy()
    table[np.flatnonzero(automaton.accepting)] = DEAD
    return minimize(Dfa(automaton.starts, table, automaton.accepting))


def restrict(automaton: Dfa, allowed: Charset) -> Dfa:
    """Return the minimal automaton of the accepted texts that consist of allowed characters.

    Args:
        automaton: The automaton, which is not changed. The texts keep their labels.
        allowed: The allowed characters.
    """
    if allowed == ALL:
        return automaton
    starts = tuple(sorted({*automaton.starts, *class_starts([allowed])}))
    column = [
        bisect.bisect_right(automaton.starts, start) - 1 if contains(allowed, start) else DEAD for start in starts
    ]
    return minimize(from_table(starts, column, automaton.table, np.array(automaton.accepting, np.int32)))


def relabel(automaton: Dfa, labels: Sequence[int]) -> Dfa:
    """Return the automaton with each label i (number of a kind of accepted text) replaced by `labels[i]`.

    Args:
        automaton: The automaton, which is not changed.
        labels: New label for each old label; `labels[0]` is 0. Texts with the new label 0 are no longer accepted.
    """
    if list(labels) == list(range(len(labels))):
        return automaton
    relabelled = dataclasses.replace(automaton, accepting=tuple([labels[label] for label in automaton.accepting]))
    after = [labels[label] for label in {*automaton.accepting} - {0}]
    # If different labels stay different and none becomes 0, the automaton is still minimal.
    return relabelled if all(after) and len({*after}) == len(after) else minimize(relabelled)


def literal_set(texts: Mapping[str, int], repeated: Mapping[str, str] = MappingProxyType({})) -> Dfa:
    """Return the minimal automaton of a finite set of texts, each with its label (number of a kind of text).

    Args:
        texts: Text -> positive label.
        repeated: Text -> character that may follow it any number of times; the label stays the same. The text is a key
            of `texts`. No other key of `texts` may begin with the text and the character.
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
    """Return the automaton, not minimized, whose states are found by exploration from a start state.

    A letter is a class of characters that all states treat alike. LimitExceededError is raised if there are more states
    than `budget` allows.

    Args:
        start: Any hashable description of the start state.
        following: Function from the description of a state to the descriptions of the next states: one for each letter,
            in order; None for a letter that leads nowhere.
        accepts: Function from the description of a state to its label; 0 if the state does not accept.
        starts: First code point of each interval of characters, ascending from 0.
        letter_at: Letter of each interval; -1 if no state reads the interval.
        budget: Limits the number of states. None sets no limit, for automata that are known to be small.
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
    """Return the automaton without unreachable and dead states, and with equivalent states merged.

    Transitions on surrogates are removed, because no text contains surrogates. State 0 remains the start state.
    """
    starts, table = automaton.starts, automaton.table.copy()
    ends = (*starts[1:], 0x110000)
    table[:, [start >= 0xD800 and end <= 0xE000 for start, end in zip(starts, ends, strict=True)]] = DEAD
    return from_table(starts, range(len(starts)), *minimal(table, np.array(automaton.accepting, np.int32)))


def from_table(
    starts: Sequence[int], letter_at: Sequence[int], table: NDArray[np.int32], accepting: NDArray[np.int32]
) -> Dfa:
    """Return the automaton over characters, given the table of an automaton over letters (classes of characters).

    Args:
        starts: First code point of each interval of characters, ascending from 0.
        letter_at: Letter (column of `table`) of each interval; -1 if no state reads the interval.
        table: Next state, or -1 for none, int32 [states, letters].
        accepting: Label of each state, int32 [states]; 0 if it does not accept.
    """
    moves = np.append(table, np.full((len(table), 1), DEAD, np.int32), axis=1)[:, list(letter_at)]
    # Neighbouring classes that no state distinguishes become one.
    keep = [0, *(1 + np.flatnonzero((moves[:, 1:] != moves[:, :-1]).any(axis=0))).tolist()]
    return Dfa(tuple(starts[i] for i in keep), np.ascontiguousarray(moves[:, keep]), tuple(accepting.tolist()))

"""Deterministic automata over characters: from a nondeterministic one, and Boolean operations between them."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers import charset
from grammar_workers.charset import ALL, Charset
from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits

DEAD = -1


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

    @property
    def is_empty(self) -> bool:
        """Whether nothing is accepted."""
        return not any(self.accepting)

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

    def ranges(self, state: int) -> list[tuple[int, int, int]]:
        """(first, last, target) of the live moves of `state`, without surrogates, equal neighbours merged."""
        result: list[tuple[int, int, int]] = []
        ends = (*self.starts[1:], 0x110000)
        for start, end, target in zip(self.starts, ends, self.moves[state], strict=True):
            if target == DEAD:
                continue
            for low, high in ALL:
                first, last = max(start, low), min(end - 1, high)
                if first > last:
                    continue
                if result and result[-1][2] == target and result[-1][1] == first - 1:
                    result[-1] = (result[-1][0], last, target)
                else:
                    result.append((first, last, target))
        return result


@dataclasses.dataclass
class NondeterministicAutomaton:
    """Thompson's construction. `edges[state]` are (charset, target), `silent[state]` targets without a character.

    `at_start` and `at_end` hold silent targets that may be taken only at the beginning or the end of the text: the
    anchors of regular expressions. Matching begins in state 0 and ends in state `final`.
    """

    edges: list[list[tuple[Charset, int]]] = dataclasses.field(default_factory=list)
    silent: list[list[int]] = dataclasses.field(default_factory=list)
    at_start: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    at_end: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    final: int = 0

    def state(self) -> int:
        self.edges.append([])
        self.silent.append([])
        return len(self.edges) - 1

    def closure(self, states: Sequence[int], *, start: bool = False, end: bool = False) -> frozenset[int]:
        """All states reached without a character."""
        found = set(states)
        pending = list(states)
        while pending:
            state = pending.pop()
            targets = list(self.silent[state])
            if start:
                targets += self.at_start.get(state, [])
            if end:
                targets += self.at_end.get(state, [])
            for target in targets:
                if target not in found:
                    found.add(target)
                    pending.append(target)
        return frozenset(found)


def determinize(source: NondeterministicAutomaton, limits: Limits) -> CharacterAutomaton:
    """The minimal deterministic automaton by subset construction; raises LimitExceededError."""
    budget = _Budget(limits)
    starts = class_starts(characters for edges in source.edges for characters, _ in edges)
    classes = {each: classes_of(each, starts) for each in {c for edges in source.edges for c, _ in edges}}
    first = source.closure([0], start=True)
    ids = {first: 0}
    subsets = [first]
    moves: list[tuple[int, ...]] = []
    accepting = []
    while len(moves) < len(subsets):
        position = len(moves)
        subset = subsets[position]
        accepting.append(int(source.final in source.closure(list(subset), start=position == 0, end=True)))
        targets: dict[int, set[int]] = {}
        for state in subset:
            for characters, target in source.edges[state]:
                for number in classes[characters]:
                    targets.setdefault(number, set()).add(target)
        row = [DEAD] * len(starts)
        closed: dict[frozenset[int], int] = {}
        for number, states in targets.items():
            key = frozenset(states)
            if key not in closed:
                reached = source.closure(list(key))
                budget.spend(4 * len(reached))
                if reached not in ids:
                    budget.check_states(len(ids))
                    ids[reached] = len(subsets)
                    subsets.append(reached)
                closed[key] = ids[reached]
            row[number] = closed[key]
        moves.append(tuple(row))
    return minimize(CharacterAutomaton(tuple(starts), tuple(moves), tuple(accepting)))


def combine(
    automata: Sequence[CharacterAutomaton], verdict: Callable[[tuple[int, ...]], int], limits: Limits
) -> CharacterAutomaton:
    """The automaton that labels a text with `verdict` of the labels that `automata` give it.

    Any Boolean operation: `all` intersects, `any` unites, `lambda v: not v[0]` complements (over all texts).
    """
    budget = _Budget(limits)
    starts = sorted({start for automaton in automata for start in automaton.starts})
    columns = [[bisect.bisect_right(automaton.starts, start) - 1 for start in starts] for automaton in automata]
    first = tuple(0 for _ in automata)
    ids = {first: 0}
    tuples = [first]
    moves: list[tuple[int, ...]] = []
    accepting = []
    while len(moves) < len(tuples):
        current = tuples[len(moves)]
        accepting.append(
            int(
                verdict(
                    tuple(
                        0 if state == DEAD else automaton.accepting[state]
                        for state, automaton in zip(current, automata, strict=True)
                    )
                )
            )
        )
        rows = [
            [DEAD] * len(starts) if state == DEAD else [automaton.moves[state][c] for c in column]
            for state, automaton, column in zip(current, automata, columns, strict=True)
        ]
        budget.spend(len(starts) * len(automata))
        row = []
        for reached in zip(*rows, strict=True):
            number = ids.get(reached)
            if number is None:
                budget.check_states(len(ids))
                number = ids[reached] = len(tuples)
                tuples.append(reached)
            row.append(number)
        moves.append(tuple(row))
    return minimize(CharacterAutomaton(tuple(starts), tuple(moves), tuple(accepting)))


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
    ids: dict[Hashable, int] = {start: 0}
    order = [start]
    moves = []
    for state in order:
        row = [DEAD] * len(starts)
        for character in alphabet:
            reached = step(state, character)
            if reached is not None:
                if reached not in ids:
                    ids[reached] = len(order)
                    order.append(reached)
                row[bisect.bisect_left(starts, ord(character))] = ids[reached]
        moves.append(tuple(row))
    return minimize(CharacterAutomaton(tuple(starts), tuple(moves), tuple(accepts(state) for state in order)))


def minimize(automaton: CharacterAutomaton) -> CharacterAutomaton:
    """Trim and merge: no unreachable state, no dead one, no two with the same future."""
    moves, accepting = _trim(automaton)
    block = equivalent_states(moves, accepting)
    order: dict[int, int] = {}
    for number in block:
        order.setdefault(number, len(order))
    # Blocks are numbered in order of their first state, so state 0 stays first.
    block = [order[number] for number in block]
    representative: dict[int, int] = {}
    for state, number in enumerate(block):
        representative.setdefault(number, state)
    merged = [[DEAD if t == DEAD else block[t] for t in moves[state]] for state in representative.values()]
    flags = tuple(accepting[state] for state in representative.values())
    # Neighbouring classes that no state distinguishes become one.
    columns = list(zip(*merged, strict=True))
    keep = [i for i in range(len(columns)) if i == 0 or columns[i] != columns[i - 1]]
    return CharacterAutomaton(
        tuple(automaton.starts[i] for i in keep), tuple(tuple(row[i] for i in keep) for row in merged), flags
    )


def equivalent_states(moves: list[list[int]], accepting: list[int]) -> list[int]:
    """The block of each state in the coarsest partition that acceptance and moves respect (Hopcroft, 1971)."""
    many = len(moves)
    # sources[letter][target]: the states that move there. Distinct columns only: equal ones split alike.
    sources: list[dict[int, list[int]]] = []
    for column in set(zip(*moves, strict=True)):
        by_target: dict[int, list[int]] = {}
        for state, target in enumerate(column):
            by_target.setdefault(target, []).append(state)
        sources.append(by_target)
    block = [0] * many
    members: list[set[int]] = []
    for label in dict.fromkeys(accepting):
        members.append({state for state in range(many) if accepting[state] == label})
        for state in members[-1]:
            block[state] = len(members) - 1
    # The dead state is a block of its own that no state is in; it is a splitter, too.
    dead = frozenset([DEAD])
    pending: list[int] = [DEAD, *range(len(members))]
    queued = set(pending)
    while pending:
        number = pending.pop()
        queued.discard(number)
        splitter = dead if number == DEAD else frozenset(members[number])
        for by_target in sources:
            touched: dict[int, list[int]] = {}
            for target in splitter:
                for state in by_target.get(target, ()):
                    touched.setdefault(block[state], []).append(state)
            for old, states in touched.items():
                if len(states) == len(members[old]):
                    continue
                members.append(set(states))
                members[old].difference_update(states)
                new = len(members) - 1
                for state in states:
                    block[state] = new
                for part in (
                    (old, new)
                    if old in queued or len(members[old]) == len(states)
                    else ((old,) if len(members[old]) < len(states) else (new,))
                ):
                    if part not in queued:
                        queued.add(part)
                        pending.append(part)
    return block


class _Budget:
    """Counts the work of one construction against `Limits`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = 0

    def spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > self._limits.max_steps:
            raise LimitExceededError(f"a pattern takes more than {self._limits.max_steps} steps (limit max_steps)")

    def check_states(self, many: int) -> None:
        if many >= self._limits.max_regex_states:
            raise LimitExceededError(
                f"patterns need more than {self._limits.max_regex_states} states (limit max_regex_states)"
            )


def _trim(automaton: CharacterAutomaton) -> tuple[list[list[int]], list[int]]:
    """Moves and flags of the states that are reachable and alive, renumbered in breadth-first order; 0 stays.

    A class that holds nothing but surrogates is dead: no text holds them, so none may keep a state alive.
    """
    many = len(automaton.moves)
    ends = (*automaton.starts[1:], 0x110000)
    unreal = [i for i, end in enumerate(ends) if automaton.starts[i] >= 0xD800 and end <= 0xE000]
    if unreal:
        dead = set(unreal)
        moves = tuple(tuple(DEAD if i in dead else t for i, t in enumerate(row)) for row in automaton.moves)
        automaton = dataclasses.replace(automaton, moves=moves)
    sources: list[list[int]] = [[] for _ in range(many)]
    for state, row in enumerate(automaton.moves):
        for target in set(row):
            if target != DEAD:
                sources[target].append(state)
    alive = [state for state in range(many) if automaton.accepting[state]]
    living = set(alive)
    while alive:
        for state in sources[alive.pop()]:
            if state not in living:
                living.add(state)
                alive.append(state)
    order = {0: 0}
    queue = [0]
    for state in queue:
        for target in automaton.moves[state]:
            if target in living and target not in order:
                order[target] = len(queue)
                queue.append(target)
    trimmed = [[order.get(t, DEAD) if t in living else DEAD for t in automaton.moves[state]] for state in queue]
    return trimmed, [automaton.accepting[state] for state in queue]


def class_starts(sets: Iterable[Charset]) -> list[int]:
    borders = {0}
    for characters in sets:
        for low, high in characters:
            borders.update((low, high + 1))
    return sorted(border for border in borders if border <= 0x10FFFF)


def classes_of(characters: Charset, starts: list[int]) -> list[int]:
    found: list[int] = []
    for low, high in characters:
        found.extend(range(bisect.bisect_left(starts, low), bisect.bisect_right(starts, high)))
    return found

"""The automaton of one rule: moves over characters and calls of other rules; subset construction and minimisation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset, letters_of, spans_of
from grammar_workers.dfa.dfa import Dfa, from_table, minimize
from grammar_workers.dfa.minimize import minimal
from grammar_workers.dfa.reached import reached
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg.syntax import RuleName

_CLOSURE_MOVES = 24
"""A closure takes as long as so many moves that are united."""
_CELLS_PER_STEP = 16
"""Entries of a table that count as one step."""

Label = Charset | int
"""The letter of a move: one character of a set, or a text of the rule with this number."""


@dataclasses.dataclass
class RuleNfa:
    """`edges[state]` are (label, target), `silent[state]` targets without a text; reading begins in state 0.

    Deterministic ones (from `determinize`) have no silent moves, disjoint character sets, at most one move per rule and
    state, and every state is reachable and, but for state 0, leads to a final one if all calls can be completed.
    """

    edges: list[list[tuple[Label, int]]] = dataclasses.field(default_factory=list)
    silent: list[list[int]] = dataclasses.field(default_factory=list)
    finals: set[int] = dataclasses.field(default_factory=set)

    def __len__(self) -> int:
        return len(self.edges)

    def state(self) -> int:
        """A new state."""
        self.edges.append([])
        self.silent.append([])
        return len(self.edges) - 1

    def calls(self) -> list[int]:
        """The numbers of the rules that it calls, each once, in order."""
        return list(dict.fromkeys(label for moves in self.edges for label, _ in moves if isinstance(label, int)))

    def copy_into(self, other: RuleNfa) -> int:
        """Append all states to `other` and return the number that state 0 got."""
        base = len(other)
        other.edges += [[(label, base + target) for label, target in moves] for moves in self.edges]
        other.silent += [[base + target for target in targets] for targets in self.silent]
        return base

    def ends(self, state: int) -> bool:
        """True if a deterministic automaton ends in `state` whatever follows: final, and nothing leaves it."""
        return state in self.finals and not self.edges[state]

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """All states reached without a text."""
        return frozenset(reached(states, self.silent.__getitem__))


class TooLargeError(Exception):
    """A construction that outgrew the states or steps that the caller allowed."""


def determinize(source: RuleNfa, budget: Budget, *, max_states: int, max_steps: int | None = None) -> RuleNfa:
    """The minimal deterministic automaton, calls being letters; raises TooLargeError and LimitExceededError."""
    labels = {label for moves in source.edges for label, _ in moves}
    charsets = [label for label in labels if not isinstance(label, int)]
    # Letters: classes of characters from 0 on, then the called rules.
    starts, letter_at, classes = letters_of(charsets)
    budget.spend(len(starts) + sum(map(len, classes.values())))
    called = sorted(label for label in labels if isinstance(label, int))
    many = max(letter_at) + 1
    letters: dict[Label, list[int]] = {rule: [many + number] for number, rule in enumerate(called)}
    letters.update(classes.items())
    edges = [[(letters[label], target) for label, target in moves] for moves in source.edges]
    begun = budget.steps
    first = source.closure([0])
    ids = {first: 0}
    subsets = [first]
    moves: list[dict[int, int]] = []
    # Moves that were united, and closures. They are paid for at the end: `max_steps` decides about inlining alone.
    united = 0
    for subset in subsets:
        targets: dict[int, set[int]] = {}
        for state in subset:
            for read, target in edges[state]:
                united += len(read)
                for letter in read:
                    targets.setdefault(letter, set()).add(target)
        budget.spend(len(subset) + len(targets))
        row: dict[int, int] = {}
        closed: dict[frozenset[int], int] = {}
        for letter, states in targets.items():
            key = frozenset(states)
            if key not in closed:
                closure = source.closure(key)
                united += _CLOSURE_MOVES
                budget.spend(len(closure))
                if closure not in ids:
                    ids[closure] = len(subsets)
                    subsets.append(closure)
                    if len(subsets) > max_states or (max_steps is not None and budget.steps - begun > max_steps):
                        budget.spend(united // 4)
                        raise TooLargeError
                closed[key] = ids[closure]
            row[letter] = closed[key]
        moves.append(row)
    budget.spend(united // 4)
    finals = {number for number, subset in enumerate(subsets) if not source.finals.isdisjoint(subset)}
    return _minimal(moves, finals, spans_of(starts, letter_at), called, budget)


def _minimal(
    moves: list[dict[int, int]], finals: set[int], spans: list[list[tuple[int, int]]], called: list[int], budget: Budget
) -> RuleNfa:
    """Merge what `moves` (a letter each) has in equal states, and drop what leads to no final one."""
    used = sorted({letter for row in moves for letter in row})
    budget.spend(len(moves) * (1 + len(used) // _CELLS_PER_STEP))
    column = {letter: number for number, letter in enumerate(used)}
    dense = np.full((len(moves), len(used)), DEAD, np.int32)
    for state, row in enumerate(moves):
        dense[state, [column[letter] for letter in row]] = list(row.values())
    accepting = np.zeros(len(moves), np.int32)
    accepting[list(finals)] = 1
    dense, accepting = minimal(dense, accepting)

    @functools.cache
    def together(read: tuple[int, ...]) -> Charset:
        budget.spend(sum(len(spans[letter]) for letter in read))
        return charset.make(span for letter in read for span in spans[letter])

    result = RuleNfa()
    result.finals = set(np.flatnonzero(accepting).tolist())
    for state in range(len(dense)):
        result.state()
        characters: dict[int, list[int]] = {}
        for number in np.flatnonzero(dense[state] != DEAD).tolist():
            letter, target = used[number], int(dense[state, number])
            if letter >= len(spans):
                result.edges[state].append((called[letter - len(spans)], target))
            else:
                characters.setdefault(target, []).append(letter)
        result.edges[state] += [(together(tuple(read)), target) for target, read in characters.items()]
    return result


def to_characters(automaton: RuleNfa) -> Dfa:
    """A deterministic automaton without calls as one over characters."""
    starts, letter_at, letters = letters_of(
        label for moves in automaton.edges for label, _ in moves if not isinstance(label, int)
    )
    table = np.full((len(automaton), max(letter_at) + 1), DEAD, np.int32)
    for state, moves in enumerate(automaton.edges):
        for label, target in moves:
            assert not isinstance(label, int), "a call in a regular rule"
            table[state, letters[label]] = target
    accepting = [int(state in automaton.finals) for state in range(len(automaton))]
    return minimize(from_table(starts, letter_at, table, np.array(accepting, np.int32)))


def determinize_rule(name: RuleName, source: RuleNfa, budget: Budget) -> RuleNfa:
    """`determinize` within the limit for one regular expression; raises LimitExceededError naming the rule."""
    most = budget.limits.max_regex_states
    with name.limits():
        try:
            return determinize(source, budget, max_states=most)
        except TooLargeError:
            raise LimitExceededError(
                f"the rule {name.name!r} needs more than {most} states (fixed limit max_regex_states)"
            ) from None

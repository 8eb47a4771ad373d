"""Automaton of one grammar rule, and its determinization. A move of the automaton reads a character or calls a rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

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
from grammar_workers.memo import memoized

# Cost of one closure, in moves.
_CLOSURE_MOVES = 24
# Number of table entries that count as one budget step.
_CELLS_PER_STEP = 16

# The label of a move: a set of characters, one of which is read, or the number of a rule, a text of which is read.
Label = Charset | int
# For each letter, the states to which it leads from a set of states.
Targets = dict[int, set[int]]


@dataclasses.dataclass
class RuleNfa:
    """Nondeterministic automaton of one grammar rule. A move reads a character, calls a rule, or is silent.

    Reading begins in state 0. An automaton that `determinize` returned has these properties:

    - It has no silent moves.
    - The character sets of one state are disjoint, and one state calls a rule at most once.
    - State 0 leads to every state. Every state except state 0 leads to a final state.

    Attributes:
        edges: Moves of each state as pairs (label, next state). A label is a set of characters, one of which is read,
            or the number of a called rule.
        silent: For each state, the states that it reaches by one move that reads nothing.
        finals: States in which the rule may end.
    """

    edges: list[list[tuple[Label, int]]] = dataclasses.field(default_factory=list)
    silent: list[list[int]] = dataclasses.field(default_factory=list)
    finals: set[int] = dataclasses.field(default_factory=set)

    def __len__(self) -> int:
        return len(self.edges)

    def state(self) -> int:
        """Append a state without moves, and return its number."""
        self.edges.append([])
        self.silent.append([])
        return len(self.edges) - 1

    def calls(self) -> list[int]:
        """Return the numbers of the rules that the automaton calls, each once, in the order of the first occurrence."""
        return list(dict.fromkeys(label for moves in self.edges for label, _ in moves if isinstance(label, int)))

    def copy_into(self, other: RuleNfa) -> int:
        """Append copies of all states and moves to another automaton. The copies are not final.

        Args:
            other: The automaton to extend.

        Returns:
            Number of the copy of state 0. The copy of state i has this number plus i.
        """
        base = len(other)
        other.edges += [[(label, base + target) for label, target in moves] for moves in self.edges]
        other.silent += [[base + target for target in targets] for targets in self.silent]
        return base

    def ends(self, state: int) -> bool:
        """Return whether a state is final and has no moves, so that the rule must end in it.

        Args:
            state: Number of a state of this automaton, which must be deterministic.
        """
        return state in self.finals and not self.edges[state]

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """Return the given states, and all states that they reach by silent moves.

        Args:
            states: Numbers of the given states.
        """
        return frozenset(reached(states, self.silent.__getitem__))


class TooLargeError(Exception):
    """A construction needs more states or steps of work than its caller allows."""


def determinize(source: RuleNfa, budget: Budget, *, max_states: int, max_steps: int | None = None) -> RuleNfa:
    """Return the minimal deterministic automaton of a rule. The call of a rule counts as one letter, like a character.

    An exhausted budget raises LimitExceededError. A construction that exceeds `max_states` or `max_steps` raises
    TooLargeError.

    Args:
        source: Any automaton of a rule; not changed.
        budget: Counts the steps of work.
        max_states: Maximum number of states before minimization.
        max_steps: Maximum number of steps of work. None: as many as the budget has left.
    """
    construction = RuleSubsets(source, budget, max_states, max_steps)
    result = RuleNfa()
    construction.label(result, *_minimal(*construction.run(), budget))
    return result


class RuleSubsets:
    """Subset construction of the automaton of a rule. A state of the result is a set of states of the automaton.

    The letters are classes of characters, numbered from 0 on, and then the called rules.

    Args:
        source: The automaton; not changed.
        budget: Counts the steps of work.
        max_states: Maximum number of states.
        max_steps: Maximum number of steps of work. None: as many as the budget has left.

    Attributes:
        starts: First code points of intervals of characters, ascending.
        letter_at: Letter of each interval; -1 for surrogates.
        spans: Intervals of code points of each class of characters.
        called: Numbers of the called rules, ascending.
    """

    def __init__(self, source: RuleNfa, budget: Budget, max_states: int, max_steps: int | None = None) -> None:
        labels = {label for moves in source.edges for label, _ in moves}
        self.starts, self.letter_at, classes = letters_of(label for label in labels if not isinstance(label, int))
        budget.spend(len(self.starts) + sum(map(len, classes.values())))
        self.spans = spans_of(self.starts, self.letter_at)
        self.called = sorted(label for label in labels if isinstance(label, int))
        letters: dict[Label, list[int]] = {rule: [number] for number, rule in enumerate(self.called, len(self.spans))}
        letters.update(classes.items())
        self._edges = [[(letters[label], target) for label, target in moves] for moves in source.edges]
        self._source = source
        self._budget = budget
        self._max_states = max_states
        self._last_step = budget.steps + (budget.left if max_steps is None else max_steps)
        self._ids = {source.closure([0]): 0}
        self._subsets = list(self._ids)
        # Number of united moves, with the cost of closures. It is charged at the end, so that it does not count for
        # `max_steps`, which only decides about inlining.
        self._united = 0

    def run(self) -> tuple[list[dict[int, int]], set[int]]:
        """Return letter -> next state for each state, and the final states. Call this method once.

        An exhausted budget raises LimitExceededError. More states or steps than allowed raise TooLargeError.
        """
        moves: list[dict[int, int]] = []
        reads = [sum(len(read) for read, _ in edges) for edges in self._edges]
        try:
            for subset in self._subsets:
                targets = self.targets(subset)
                self._united += sum(map(reads.__getitem__, subset))
                self._budget.spend(len(subset) + len(targets))
                row: dict[int, int] = {}
                closed: dict[frozenset[int], int] = {}
                for letter, states in targets.items():
                    key = frozenset(states)
                    if key not in closed:
                        closed[key] = self.after(key)
                    row[letter] = closed[key]
                self.visit(len(moves), subset, targets)
                moves.append(row)
        finally:
            self._budget.spend(self._united // 4)
        finals = self._source.finals
        return moves, {number for number, subset in enumerate(self._subsets) if not finals.isdisjoint(subset)}

    def targets(self, subset: Iterable[int]) -> Targets:
        """Return the states to which each letter leads from a set of states: letter -> states.

        Args:
            subset: States of the automaton.
        """
        targets: Targets = {}
        for state in subset:
            for read, target in self._edges[state]:
                for letter in read:
                    targets.setdefault(letter, set()).add(target)
        return targets

    def after(self, states: frozenset[int]) -> int:
        """Return the state of the result for a set of states and all states that silent moves reach from them.

        More states or steps than allowed raise TooLargeError.

        Args:
            states: States of the automaton.
        """
        closure = self._source.closure(states)
        self._united += _CLOSURE_MOVES
        self._budget.spend(len(closure))
        return self.number(closure)

    def number(self, subset: frozenset[int]) -> int:
        """Return the state of the result for a set of states.

        Args:
            subset: States of the automaton.

        Raises:
            TooLargeError: There are more states or steps than allowed.
        """
        number = self._ids.setdefault(subset, len(self._subsets))
        if number == len(self._subsets):
            self._subsets.append(subset)
            if number >= self._max_states or self._budget.steps > self._last_step:
                raise TooLargeError
        return number

    def visit(self, number: int, subset: frozenset[int], targets: Targets) -> None:
        """Handle a state of the result, in the order of their numbers. This method does nothing; override it.

        Args:
            number: The state.
            subset: The set of states of the automaton.
            targets: The states to which each letter leads.
        """

    def label(self, result: RuleNfa, moves: Iterable[Mapping[int, int]], finals: set[int]) -> None:
        """Add states and their moves, with labels in place of letters, to an automaton.

        Args:
            result: The automaton, without states.
            moves: For each state, letter -> next state.
            finals: The final states.
        """
        result.finals = finals
        for row in moves:
            edges = result.edges[result.state()]
            characters: dict[int, list[int]] = {}
            for letter, target in row.items():
                if letter >= len(self.spans):
                    edges.append((self.called[letter - len(self.spans)], target))
                else:
                    characters.setdefault(target, []).append(letter)
            edges += [(self._together(tuple(read)), target) for target, read in characters.items()]

    @memoized
    def _together(self, read: tuple[int, ...]) -> Charset:
        self._budget.spend(sum(len(self.spans[letter]) for letter in read))
        return charset.make(span for letter in read for span in self.spans[letter])


def _minimal(moves: list[dict[int, int]], finals: set[int], budget: Budget) -> tuple[list[dict[int, int]], set[int]]:
    """Return the moves and the final states of the minimal automaton without dead states; letters are ascending."""
    used = sorted({letter for row in moves for letter in row})
    budget.spend(len(moves) * (1 + len(used) // _CELLS_PER_STEP))
    column = {letter: number for number, letter in enumerate(used)}
    dense = np.full((len(moves), len(used)), DEAD, np.int32)
    for state, row in enumerate(moves):
        dense[state, [column[letter] for letter in row]] = list(row.values())
    accepting = np.zeros(len(moves), np.int32)
    accepting[list(finals)] = 1
    dense, accepting = minimal(dense, accepting)
    rows = [{used[place]: int(row[place]) for place in np.flatnonzero(row != DEAD).tolist()} for row in dense]
    return rows, set(np.flatnonzero(accepting).tolist())


def to_characters(automaton: RuleNfa) -> Dfa:
    """Return a minimal DFA over characters for a rule that calls no rules.

    Args:
        automaton: Deterministic automaton of the rule. A call in it raises AssertionError.
    """
    assert not automaton.calls(), "a call in a regular rule"
    return minimize(text_moves(automaton.edges, [int(state in automaton.finals) for state in range(len(automaton))]))


def text_moves(edges: Sequence[Sequence[tuple[Label, int]]], labels: Sequence[int]) -> Dfa:
    """Return the DFA of the moves that read characters, not minimized. Calls of rules are dropped.

    Args:
        edges: Moves of each state as pairs (label, next state). The character sets of one state are disjoint.
        labels: Label of each state; 0 if it does not accept.
    """
    starts, letter_at, letters = letters_of(
        label for moves in edges for label, _ in moves if not isinstance(label, int)
    )
    table = np.full((len(edges), max(letter_at) + 1), DEAD, np.int32)
    for state, moves in enumerate(edges):
        for label, target in moves:
            if not isinstance(label, int):
                table[state, letters[label]] = target
    return from_table(starts, letter_at, table, np.array(labels, np.int32))


def determinize_rule(name: RuleName, source: RuleNfa, budget: Budget) -> RuleNfa:
    """Return the minimal deterministic automaton of a rule. Errors name the rule.

    An exhausted budget also raises LimitExceededError.

    Args:
        name: Name and position of the rule, for the error.
        source: The automaton of the rule; not changed.
        budget: Counts the steps of work. Its `limits.max_regex_states` bounds the number of states before minimization.

    Raises:
        LimitExceededError: The rule needs too many states. The error has the name and the position of the rule.
    """
    most = budget.limits.max_regex_states
    with name.limits():
        try:
            return determinize(source, budget, max_states=most)
        except TooLargeError:
            raise LimitExceededError(
                f"the rule {name.name!r} needs more than {most} states (fixed limit max_regex_states)"
            ) from None

"""Automaton of one grammar rule, and its determinization. A move of the automaton reads a character or calls a rule."""

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

# Cost of one closure, in moves.
_CLOSURE_MOVES = 24
# Number of table entries that count as one budget step.
_CELLS_PER_STEP = 16

# The label of a move: a set of characters, one of which is read, or the number of a rule, a text of which is read.
Label = Charset | int


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
    moves, finals = _subsets(source, edges, budget, max_states, max_steps)
    return _minimal(moves, finals, spans_of(starts, letter_at), called, budget)


def _subsets(
    source: RuleNfa,
    edges: list[list[tuple[list[int], int]]],
    budget: Budget,
    max_states: int,
    max_steps: int | None,
) -> tuple[list[dict[int, int]], set[int]]:
    """Return the moves of each set of states, by letter, and the final sets; `edges` are the moves of `source`."""
    begun = budget.steps
    first = source.closure([0])
    ids = {first: 0}
    subsets = [first]
    moves: list[dict[int, int]] = []
    # Number of united moves, with the cost of closures. It is charged at the end, so that it does not count for
    # `max_steps`, which only decides about inlining.
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
    return moves, {number for number, subset in enumerate(subsets) if not source.finals.isdisjoint(subset)}


def _minimal(
    moves: list[dict[int, int]], finals: set[int], spans: list[list[tuple[int, int]]], called: list[int], budget: Budget
) -> RuleNfa:
    """Return the minimal automaton without dead states; `moves` maps letters to states, for each state."""
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
    """Return a minimal DFA over characters for a rule that calls no rules.

    Args:
        automaton: Deterministic automaton of the rule. A call in it raises AssertionError.
    """
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

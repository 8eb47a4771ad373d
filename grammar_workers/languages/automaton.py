"""Automata that a client wrote as a table: states, and transitions on characters or on token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.dfa import Dfa, from_table
from grammar_workers.dfa.minimize import minimal
from grammar_workers.dfa.reached import reached, sources_of
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.errors import GrammarError, InvalidSpecificationError, UnsatisfiableError, shortened
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.specification import Automaton, Transition
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

_PATTERN_STEPS, _GROUP_STEPS, _INTERVAL_STEPS = 500, 10_000, 16
"""What reading a pattern counts against the budget, one with flags or look-around, and each interval of characters."""
_SYNTAX = frozenset("\\^$.*+?()[]{}|/")
"""Characters that may mean something else in a pattern than themselves."""
_LISTED = 300
"""Characters of the names of states in a note."""


def names_tokens(table: Automaton) -> bool:
    """True if some transition lists token ids, so that the automaton is not one of texts alone."""
    return any(transition.tokens is not None for transition in table.transitions)


def left_out(table: Automaton) -> list[str]:
    """Notes about the states that no accepted text visits, for whoever mistyped a name."""
    numbers = _numbers(table)
    targets: list[set[int]] = [set() for _ in numbers]
    for one in table.transitions:
        targets[numbers[one.source]].add(numbers[one.target])
    reachable = reached([0], targets.__getitem__)
    accepting = (numbers[name] for name in table.accepting if name in numbers)
    alive = reached(accepting, sources_of(targets).__getitem__)
    groups = {
        "no accepting state can be reached from": [name for name, n in numbers.items() if n not in alive],
        "the initial state does not lead to": [name for name, n in numbers.items() if n in alive - reachable],
    }
    return [
        f"states that {why} are left out: {shortened(', '.join(map(ascii, names)), _LISTED)}"
        for why, names in groups.items()
        if names
    ]


def automaton(table: Automaton, limits: Limits) -> Dfa:
    """The minimal automaton of a table over characters.

    Raises InvalidSpecificationError with pointer for a table that is not deterministic or names what does not exist,
    UnsatisfiableError where no accepting state can be reached, LimitExceededError.
    """
    moves = _Moves(table, limits)
    found = from_table(moves.starts, moves.letter_at, *minimal(moves.rows, moves.accepting))
    if found.is_empty:
        raise UnsatisfiableError("no accepting state can be reached from the initial one", pointer="/initial")
    return found


def token_automaton(table: Automaton, vocabulary: Vocabulary, builder: PushdownBuilder, limits: Limits) -> int:
    """Write the states of a table in which some transitions are on token ids; returns the first.

    Raises as `automaton`, and InvalidSpecificationError for a token that cannot be generated. Characters that the
    vocabulary cannot spell lead nowhere.
    """
    moves = _Moves(table, limits, vocabulary.alphabet)
    edges = _token_edges(table, moves.numbers, vocabulary)
    if mixed := [number for number in edges if moves.reads_characters[number]]:
        number = min(mixed, key=lambda one: min(index for index, _, _ in edges[one].values()))
        index, name = min((index, name) for index, name, _ in edges[number].values())
        raise InvalidSpecificationError(
            f"{name!a} reads characters, too; a state reads either characters or token ids",
            pointer=f"/transitions/{index}/tokens",
        )
    order = moves.useful({number: {target for _, _, target in tokens.values()} for number, tokens in edges.items()})
    if 0 not in order:
        raise UnsatisfiableError("no accepting state can be reached from the initial one", pointer="/initial")
    # The states that read tokens are ends of different kinds to an automaton over characters.
    kinds = {number: kind for kind, number in enumerate((n for n in order if n in edges), 2)}
    known = {kind: builder.state(exit_label=0 if moves.accepting[number] else -1) for number, kind in kinds.items()}
    renumbered = np.full(len(moves.rows) + 1, DEAD, np.int32)
    renumbered[order] = np.arange(len(order))
    labels = np.array([kinds.get(number, moves.accepting[number]) for number in order], np.int32)
    dfa = from_table(moves.starts, moves.letter_at, renumbered[moves.rows[order]], labels)
    states = dict(zip(order, StringLowering(builder).raw_states(dfa, known), strict=True))
    for number in kinds:
        tokens: dict[int, list[TokenId]] = {}
        for token, (_, _, target) in edges[number].items():
            tokens.setdefault(target, []).append(token)
        for target, named in tokens.items():
            if target in states:
                builder.token_edges(states[number], named, states[target])
    return states[0]


def _token_edges(
    table: Automaton, numbers: dict[str | int, int], vocabulary: Vocabulary
) -> dict[int, dict[TokenId, tuple[int, str | int, int]]]:
    """State -> token -> (the transition's index, the state's name, the state that it leads to)."""
    edges: dict[int, dict[TokenId, tuple[int, str | int, int]]] = {}
    for index, one in enumerate(table.transitions):
        source, target = numbers[one.source], numbers[one.target]
        for place, token in enumerate(one.tokens or ()):
            pointer = f"/transitions/{index}/tokens/{place}"
            if not vocabulary.can_generate(token):
                raise InvalidSpecificationError(f"{token} is no token that can be generated here", pointer=pointer)
            before = edges.setdefault(source, {}).setdefault(token, (index, one.source, target))
            if before[2] != target:
                raise _ambiguous(one, f"token {token}", pointer)
    return edges


class _Moves:
    """The transitions on characters as a table: `rows` int32 [states, letters] of the next state or -1.

    Interval i of characters, which begins at `starts[i]`, is letter `letter_at[i]` (-1: surrogates). `numbers`: the
    states by name, the initial one first. `accepting` int32 [states] of 0 and 1. Characters beyond `alphabet` lead
    nowhere; `reads_characters` bool [states] tells of all characters.
    """

    def __init__(self, table: Automaton, limits: Limits, alphabet: Charset = ALL) -> None:
        self._budget = budget_of(limits)
        self.numbers = _numbers(table)
        self._budget.check_states(len(self.numbers))
        self.accepting = np.zeros(len(self.numbers), np.int32)
        for index, name in enumerate(table.accepting):
            if name not in self.numbers:
                raise InvalidSpecificationError(f"no transition names {name!a}", pointer=f"/accepting/{index}")
            self.accepting[self.numbers[name]] = 1
        sets = self._sets(table.transitions, limits)
        self.starts, self.letter_at, members = charset.partition([*sets.values(), alphabet])
        self._fill(table.transitions, sets, len(members))
        self.reads_characters = (self.rows != DEAD).any(axis=1)
        self.rows[:, [not inside >> len(sets) & 1 for inside in members]] = DEAD

    def _sets(self, transitions: Sequence[Transition], limits: Limits) -> dict[str, Charset]:
        """The characters that each pattern matches."""
        sets: dict[str, Charset] = {}
        for index, one in enumerate(transitions):
            if one.pattern is not None and one.pattern not in sets:
                try:
                    sets[one.pattern] = _characters(one.pattern, limits)
                except GrammarError as error:
                    error.pointer = f"/transitions/{index}/pattern"
                    raise
                self._budget.spend(_INTERVAL_STEPS * len(sets[one.pattern]))
        return sets

    def _fill(self, transitions: Sequence[Transition], sets: dict[str, Charset], letters: int) -> None:
        self._budget.spend(len(self.numbers) * letters + len(self.starts) * (len(sets) >> 8))
        self.rows = np.full((len(self.numbers), letters), DEAD, np.int32)
        letter_at = np.array(self.letter_at)
        columns = {
            pattern: np.unique(letter_at[charset.classes_of(characters, self.starts)])
            for pattern, characters in sets.items()
        }
        for index, one in enumerate(transitions):
            if one.pattern is None:
                continue
            row, target, own = self.rows[self.numbers[one.source]], self.numbers[one.target], columns[one.pattern]
            self._budget.spend(8 + (len(own) >> 3))
            other = own[(row[own] != DEAD) & (row[own] != target)]
            if len(other):
                example = chr(self.starts[self.letter_at.index(int(other[0]))])
                raise _ambiguous(one, f"the character {example!a}", f"/transitions/{index}/pattern")
            row[own] = target

    def useful(self, beside: dict[int, set[int]]) -> list[int]:
        """The states on a way from the initial to an accepting one, the initial one first; `beside`: more moves."""
        targets = [{*row, *beside.get(state, ())} - {DEAD} for state, row in enumerate(self.rows.tolist())]
        reachable = reached([0], targets.__getitem__)
        alive = reached(np.flatnonzero(self.accepting).tolist(), sources_of(targets).__getitem__)
        return sorted(reachable & alive)


def _numbers(table: Automaton) -> dict[str | int, int]:
    """The names of the states in order, the initial one first; accepting ones only if some transition names them."""
    names = [name for one in table.transitions for name in (one.source, one.target)]
    return {name: number for number, name in enumerate(dict.fromkeys([table.initial, *names]))}


def _characters(pattern: str, limits: Limits) -> Charset:
    """The characters that a pattern of single characters matches; raises GrammarError for any other."""
    if len(pattern) == 1 and pattern not in _SYNTAX and not has_surrogate(pattern):
        return charset.of(pattern)
    budget_of(limits).spend(_GROUP_STEPS if "(?" in pattern else _PATTERN_STEPS)
    found = compile_regex(pattern, search=False, limits=limits)
    first, *others = found.successors
    if found.is_empty:
        raise InvalidSpecificationError("the pattern matches no character")
    if found.accepting[0] or 0 in first or any(others):
        raise InvalidSpecificationError("the pattern matches texts that are not one character")
    return charset.make((low, high) for low, high, _ in found.ranges(0))


def _ambiguous(one: Transition, what: str, pointer: str) -> InvalidSpecificationError:
    return InvalidSpecificationError(
        f"another transition from {one.source!a} leads to another state on {what}", pointer=pointer
    )

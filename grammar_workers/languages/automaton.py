"""User-defined automata: a table of states and transitions, on characters or on token IDs.

`automaton` compiles a table over characters to a minimal `Dfa`. `token_automaton` compiles a table with token IDs to
states of the pushdown automaton.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.dfa import Dfa, from_table
from grammar_workers.dfa.minimize import minimal
from grammar_workers.dfa.reached import reached, sources_of
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError, shortened
from grammar_workers.languages.compilation import located
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.scalar_values import has_surrogate
from grammar_workers.specification import Automaton, Transition
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

# Budget steps of a pattern, of a pattern with flags or look-around, and of each interval of its characters.
_PATTERN_STEPS, _GROUP_STEPS, _INTERVAL_STEPS = 500, 10_000, 16
# Characters that can have a special meaning in a pattern.
_SYNTAX = frozenset("\\^$.*+?()[]{}|/")
# Maximum length, in characters, of the list of state names in a warning.
_LISTED = 300


def names_tokens(table: Automaton) -> bool:
    """Return whether at least one transition of the table lists token IDs instead of a pattern for characters."""
    return any(transition.tokens is not None for transition in table.transitions)


def left_out(table: Automaton) -> list[str]:
    """Return warnings about states that no accepted text visits. A misspelled state name is the usual cause.

    Args:
        table: The user's automaton.

    Returns:
        At most two warnings, each with a list of state names: one for states from which no accepting state can be
        reached, one for states that cannot be reached from the initial state. Empty if every state can be visited.
    """
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
    """Compile a user-defined automaton, whose transitions are all on characters, to a minimal DFA.

    Errors in the table raise InvalidSpecificationError with the JSON Pointer of the faulty element:

    - Two transitions from one state lead to different states on the same character.
    - An accepting state occurs in no transition.
    - The pattern of a transition matches texts other than single characters.

    A table that is too large raises LimitExceededError.

    Args:
        table: The user's table of states and transitions. No transition lists token IDs.
        limits: Bounds on states and on steps of work.

    Returns:
        The minimal DFA, which accepts at least one text.

    Raises:
        UnsatisfiableError: No accepting state is reachable from the initial state.
    """
    moves = _Moves(table, limits)
    found = from_table(moves.starts, moves.letter_at, *minimal(moves.rows, moves.accepting))
    if found.is_empty:
        raise UnsatisfiableError("no accepting state can be reached from the initial one", pointer="/initial")
    return found


def token_automaton(table: Automaton, vocabulary: Vocabulary, builder: PushdownBuilder, limits: Limits) -> int:
    """Append a user-defined automaton with transitions on token IDs to the pushdown automaton under construction.

    Transitions on characters that the vocabulary cannot tokenize are dropped. A table that is too large raises
    LimitExceededError.

    Args:
        table: The user's table of states and transitions. Each state reads either characters or token IDs.
        vocabulary: The tokens that can be generated.
        builder: The pushdown automaton to extend.
        limits: Bounds on states and on steps of work.

    Returns:
        The number of the initial state in `builder`.

    Raises:
        InvalidSpecificationError: The table has one of the errors that `automaton` describes, a state reads both
            characters and token IDs, or a token cannot be generated.
        UnsatisfiableError: No accepting state is reachable from the initial state.
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
    # In the DFA over characters, each state that reads tokens is accepting and has a label of its own.
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
    """Return the token transitions of each state: state -> token -> (index of the transition, state name, target)."""
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
    """The transitions on characters as a table.

    `rows` int32 [states, letters] holds the next state or -1. Interval i of characters begins at `starts[i]` and is
    letter `letter_at[i]` (-1: surrogates). `numbers` maps state names to state numbers; the initial state is 0.
    `accepting` int32 [states] is 1 for accepting states. `reads_characters` bool [states] is True if the state has a
    transition on any character, even one outside `alphabet`. Characters outside `alphabet` lead nowhere in `rows`.
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
        self.starts, self.letter_at, letters = charset.letters_of([*sets.values(), alphabet])
        self._fill(table.transitions, {pattern: np.array(letters[each], np.int64) for pattern, each in sets.items()})
        self.reads_characters = (self.rows != DEAD).any(axis=1)
        self.rows[:, sorted({*range(self.rows.shape[1])} - {*letters[alphabet]})] = DEAD

    def _sets(self, transitions: Sequence[Transition], limits: Limits) -> dict[str, Charset]:
        """Return the set of characters that each pattern matches."""
        sets: dict[str, Charset] = {}
        for index, one in enumerate(transitions):
            if one.pattern is not None and one.pattern not in sets:
                with located(f"/transitions/{index}/pattern"):
                    sets[one.pattern] = _characters(one.pattern, limits)
                self._budget.spend(_INTERVAL_STEPS * len(sets[one.pattern]))
        return sets

    def _fill(self, transitions: Sequence[Transition], columns: dict[str, NDArray[np.int64]]) -> None:
        """Fill in the rows; `columns` are the letters that each pattern matches."""
        letters = max(self.letter_at) + 1
        self._budget.spend(len(self.numbers) * letters + len(self.starts) * (len(columns) >> 8))
        self.rows = np.full((len(self.numbers), letters), DEAD, np.int32)
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
        """Return the states on a path from the initial to an accepting state, in ascending order.

        `beside` maps a state to further targets (its token transitions).
        """
        targets = [{*row, *beside.get(state, ())} - {DEAD} for state, row in enumerate(self.rows.tolist())]
        reachable = reached([0], targets.__getitem__)
        alive = reached(np.flatnonzero(self.accepting).tolist(), sources_of(targets).__getitem__)
        return sorted(reachable & alive)


def _numbers(table: Automaton) -> dict[str | int, int]:
    """Number the states by name: the initial state is 0, then states in the order in which transitions name them."""
    names = [name for one in table.transitions for name in (one.source, one.target)]
    return {name: number for number, name in enumerate(dict.fromkeys([table.initial, *names]))}


def _characters(pattern: str, limits: Limits) -> Charset:
    """Return the characters that `pattern` matches. Raise GrammarError unless it matches single characters only."""
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

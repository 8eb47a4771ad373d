"""The automaton of a format: moves over characters, over tokens, and over values that have rules of their own.

    <f> JSON </f>      0 -'<'-> 1 -'f'-> 2 -'>'-> 3 ;  3 calls JSON, returns to 4 ;  4 -'<'-> 5 ; ...

Subset construction makes it deterministic over characters. A token may stand for its text, too: then what follows is
what follows either. Which of several values begins is for their first bytes to say (`lower`).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.errors import LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

State = int
Value = int
"""The number of a rule that is called."""


@dataclasses.dataclass
class FormatNfa:
    """Moves of each state; `silent` are targets without a text. Reading begins in state 0 and ends in `last`."""

    characters: list[list[tuple[Charset, State]]] = dataclasses.field(default_factory=list)
    tokens: list[list[tuple[frozenset[TokenId], State]]] = dataclasses.field(default_factory=list)
    values: list[list[tuple[Value, State]]] = dataclasses.field(default_factory=list)
    silent: list[list[State]] = dataclasses.field(default_factory=list)
    last: State = 0

    def __len__(self) -> int:
        return len(self.silent)

    def state(self) -> State:
        """A new state."""
        self.characters.append([])
        self.tokens.append([])
        self.values.append([])
        self.silent.append([])
        return len(self.silent) - 1

    def closure(self, states: Iterable[State]) -> frozenset[State]:
        """All states reached without a text."""
        found = set(states)
        pending = list(found)
        while pending:
            for target in self.silent[pending.pop()]:
                if target not in found:
                    found.add(target)
                    pending.append(target)
        return frozenset(found)


@dataclasses.dataclass
class FormatDfa:
    """Deterministic over characters and over tokens. `starts` are where classes of characters begin.

    `characters[state]`: class -> state. `tokens[state]`: token -> state. `values[state]`: value -> state. Every state
    leads to a final one if all values can be completed.
    """

    starts: list[int]
    characters: list[dict[int, State]] = dataclasses.field(default_factory=list)
    tokens: list[dict[TokenId, State]] = dataclasses.field(default_factory=list)
    values: list[dict[Value, State]] = dataclasses.field(default_factory=list)
    final: list[bool] = dataclasses.field(default_factory=list)


class Determinizer:
    """The subset construction. `first_bytes` has the bytes that each value may begin with."""

    def __init__(
        self, nfa: FormatNfa, vocabulary: Vocabulary, first_bytes: Mapping[Value, frozenset[int]], budget: Budget
    ) -> None:
        self._nfa = nfa
        self._vocabulary = vocabulary
        self._first_bytes = first_bytes
        self._budget = budget
        self._most = budget.limits.max_states
        sets = {label for moves in nfa.characters for label, _ in moves}
        self._starts = charset.class_starts(sets)
        self._classes = {each: charset.classes_of(each, self._starts) for each in sets}
        self._numbers: dict[frozenset[State], int] = {}
        self._subsets: list[frozenset[State]] = []
        self._closed: dict[frozenset[State], int] = {}
        self._rows: dict[int, dict[int, int]] = {}

    def run(self) -> FormatDfa:
        """Raises LimitExceededError, and UnsupportedFeatureError where a token is also the beginning of a value."""
        nfa = self._nfa
        result = FormatDfa(self._starts)
        self._number([0])
        for number, subset in enumerate(self._subsets):
            self._budget.spend(8 + len(subset))
            values: dict[Value, set[State]] = {}
            tokens: dict[TokenId, set[State]] = {}
            for state in subset:
                for value, target in nfa.values[state]:
                    values.setdefault(value, set()).add(target)
                for named, target in nfa.tokens[state]:
                    self._budget.spend(len(named) // 8)
                    for token in named:
                        tokens.setdefault(token, set()).add(target)
            result.characters.append(self._row(number))
            result.values.append({value: self._number(targets) for value, targets in values.items()})
            reads_text = bool(result.characters[number] or values)
            result.tokens.append(
                {
                    token: self._number(targets | (self._spelled(number, token) if reads_text else set()))
                    for token, targets in tokens.items()
                }
            )
            result.final.append(nfa.last in subset)
        if not _drop_dead(result):
            raise UnsatisfiableError("no text matches the structural tag")
        return result

    def _number(self, states: Iterable[State]) -> int:
        """The number of the subset of these and all that they lead to without a text."""
        key = frozenset(states)
        number = self._closed.get(key)
        if number is None:
            subset = self._nfa.closure(key)
            self._budget.spend(len(subset))
            number = self._numbers.setdefault(subset, len(self._subsets))
            if number == len(self._subsets):
                self._subsets.append(subset)
                if number >= self._most:
                    raise LimitExceededError(f"the tags need more than {self._most} states (limit max_states)")
            self._closed[key] = number
        return number

    def _row(self, number: int) -> dict[int, int]:
        """Class -> subset."""
        row = self._rows.get(number)
        if row is None:
            targets: dict[int, set[State]] = {}
            for state in self._subsets[number]:
                for label, target in self._nfa.characters[state]:
                    self._budget.spend(1 + len(self._classes[label]) // 8)
                    for one in self._classes[label]:
                        targets.setdefault(one, set()).add(target)
            row = self._rows[number] = {one: self._number(states) for one, states in targets.items()}
        return row

    def _spelled(self, number: int, token: TokenId) -> frozenset[State]:
        """What the text of a token leads to, where it is text."""
        if self._vocabulary.is_special(token):
            return frozenset()
        text, rest = _decoded(self._vocabulary.token_bytes(token))
        for character in text:
            self._budget.spend(1)
            if self._value_begins(number, character.encode()[0]):
                raise _both(token, self._vocabulary)
            one = self._row(number).get(bisect.bisect_right(self._starts, ord(character)) - 1)
            if one is None:
                return frozenset()
            number = one
        if not rest:
            return self._subsets[number]
        # A part of a character is left over: it leads on where some character beyond ASCII does.
        if any([*self._starts, 0x110000][one + 1] > 0x80 for one in self._row(number)):
            raise _both(token, self._vocabulary)
        return frozenset()

    def _value_begins(self, number: int, byte: int) -> bool:
        return any(
            byte in self._first_bytes[value] for state in self._subsets[number] for value, _ in self._nfa.values[state]
        )


def _decoded(data: bytes) -> tuple[str, bytes]:
    """The characters that bytes begin with, and what follows these."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        return data[: error.start].decode(), data[error.start :]


def _both(token: TokenId, vocabulary: Vocabulary) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the token {token} ({vocabulary.token_bytes(token)!r}) may come here as a token and as the beginning of text"
    )


def _drop_dead(automaton: FormatDfa) -> bool:
    """Remove moves to states from which no final one is reached; False if the first state is such a state."""
    sources: list[set[State]] = [set() for _ in automaton.final]
    for moves in (automaton.characters, automaton.tokens, automaton.values):
        for state, row in enumerate(moves):
            for target in row.values():
                sources[target].add(state)
    alive = {state for state, final in enumerate(automaton.final) if final}
    pending = list(alive)
    while pending:
        for source in sources[pending.pop()] - alive:
            alive.add(source)
            pending.append(source)
    for moves in (automaton.characters, automaton.tokens, automaton.values):
        for state, row in enumerate(moves):
            moves[state] = {letter: target for letter, target in row.items() if target in alive}
    return 0 in alive

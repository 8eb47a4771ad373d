"""The automaton of a format (node of a structural tag). It reads characters and tokens, and calls rules for values.

    <f> JSON </f>      0 -'<'-> 1 -'f'-> 2 -'>'-> 3 ;  3 calls JSON, returns to 4 ;  4 -'<'-> 5 ; ...

The subset construction makes the automaton deterministic over characters and tokens. A state may read a token and also
the text of this token. Both then lead to one next state, which allows everything that may follow one of them. If a
state calls several values, their first bytes decide between them (`lower`).
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.reached import reached, sources_of
from grammar_workers.errors import LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages.cfg.rule_nfa import RuleNfa
from grammar_workers.memo import memoized
from grammar_workers.pushdown.builder import runs
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

# The number of a state.
State = int
# The number of a value: a rule that is called.
Value = int


@dataclasses.dataclass
class FormatNfa(RuleNfa):
    """Nondeterministic automaton of a format (node of a structural tag), with moves over characters, tokens and values.

    A value, such as a JSON value, is a separate rule. A move whose label is the number of a value calls this rule.

    Attributes:
        tokens: For each state: (token IDs, target) pairs. The state reads any one of these tokens and moves to target.
        boundaries: State s -> state t, for text with a maximum number of tokens. If a token ends in s, the next token
            begins in t. All states that silent moves (without reading) reach from t, they also reach from s.
    """

    tokens: defaultdict[State, list[tuple[frozenset[TokenId], State]]] = dataclasses.field(
        default_factory=functools.partial(defaultdict, list)
    )
    boundaries: dict[State, State] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class FormatDfa:
    """Automaton of a format (node of a structural tag) that is deterministic over characters and over tokens.

    A value is a called rule, such as a JSON value. If every value has a text, every state leads to a final state.

    Attributes:
        starts: First code point of each class of characters, ascending.
        characters: For each state: index of a class of characters -> next state.
        tokens: For each state: (first token ID, last token ID, next state), in ascending order without overlaps.
        values: For each state: number of a value -> next state after the value.
        boundaries: State s -> state t, for text with a maximum number of tokens. If a token ends in s, the next token
            begins in t.
        final: For each state: True if the text may end in it.
    """

    starts: list[int]
    characters: list[dict[int, State]] = dataclasses.field(default_factory=list)
    tokens: list[list[tuple[TokenId, TokenId, State]]] = dataclasses.field(default_factory=list)
    values: list[dict[Value, State]] = dataclasses.field(default_factory=list)
    boundaries: dict[State, State] = dataclasses.field(default_factory=dict)
    final: list[bool] = dataclasses.field(default_factory=list)


class Determinizer:
    """Subset construction that converts the automaton of a format (node of a structural tag) to a deterministic one.

    Args:
        nfa: The automaton to determinize; not changed.
        vocabulary: The tokens of the model. Their texts decide which moves overlap.
        first_bytes: For each value (called rule), the bytes with which the value may begin.
        budget: Counts the steps of work, and has the limits.
    """

    def __init__(
        self, nfa: FormatNfa, vocabulary: Vocabulary, first_bytes: Mapping[Value, frozenset[int]], budget: Budget
    ) -> None:
        self._nfa = nfa
        self._vocabulary = vocabulary
        self._first_bytes = first_bytes
        self._budget = budget
        self._most = budget.limits.max_states
        sets = {label for moves in nfa.edges for label, _ in moves if not isinstance(label, int)}
        self._starts = charset.class_starts(sets)
        self._classes = {each: charset.classes_of(each, self._starts) for each in sets}
        self._numbers: dict[frozenset[State], int] = {}
        self._subsets: list[frozenset[State]] = []

    def run(self) -> FormatDfa:
        """Return the deterministic automaton. Call this method once.

        Too many states raise LimitExceededError. If a state reads a token whose text may also begin a value,
        UnsupportedFeatureError is raised.

        Raises:
            UnsatisfiableError: No text matches.
        """
        nfa = self._nfa
        result = FormatDfa(self._starts)
        self._number(frozenset([0]))
        for number, subset in enumerate(self._subsets):
            self._budget.spend(8 + len(subset))
            tokens: dict[frozenset[TokenId], set[State]] = {}
            for state in subset:
                for named, target in nfa.tokens.get(state, ()):
                    tokens.setdefault(named, set()).add(target)
            result.characters.append(self._row(number))
            values = self._values(number).items()
            result.values.append({value: self._number(frozenset(targets)) for value, targets in values})
            result.tokens.append(self._token_runs(number, tokens))
            if nfa.boundaries and not nfa.boundaries.keys().isdisjoint(subset):
                # `moved` needs no closure: the subset contains all states that silent moves reach from the targets.
                moved = frozenset(nfa.boundaries.get(state, state) for state in subset)
                result.boundaries[number] = self._number_of(moved)
            result.final.append(not nfa.finals.isdisjoint(subset))
        if not _drop_dead(result):
            raise UnsatisfiableError("no text matches the structural tag")
        return result

    @memoized
    def _number(self, states: frozenset[State]) -> int:
        """Return the number of the subset of `states` and all states that silent moves reach from them."""
        subset = self._nfa.closure(states)
        self._budget.spend(len(subset))
        return self._number_of(subset)

    def _number_of(self, subset: frozenset[State]) -> int:
        number = self._numbers.setdefault(subset, len(self._subsets))
        if number == len(self._subsets):
            self._subsets.append(subset)
            if number >= self._most:
                raise LimitExceededError(f"the tags need more than {self._most} states (fixed limit max_states)")
        return number

    @memoized
    def _row(self, number: int) -> dict[int, int]:
        """Return the next subset for each class of characters."""
        targets: dict[int, set[State]] = {}
        for state in self._subsets[number]:
            for label, target in self._nfa.edges[state]:
                if not isinstance(label, int):
                    self._budget.spend(1 + len(self._classes[label]) // 8)
                    for one in self._classes[label]:
                        targets.setdefault(one, set()).add(target)
        return {one: self._number(frozenset(states)) for one, states in targets.items()}

    @memoized
    def _values(self, number: int) -> dict[Value, set[State]]:
        """Return the states after each value of a subset."""
        found: dict[Value, set[State]] = {}
        for state in self._subsets[number]:
            for label, target in self._nfa.edges[state]:
                if isinstance(label, int):
                    found.setdefault(label, set()).add(target)
        return found

    def _token_runs(
        self, number: int, targets: Mapping[frozenset[TokenId], set[State]]
    ) -> list[tuple[TokenId, TokenId, int]]:
        """Return (first token, last token, next subset), where `targets` maps sets of tokens to states."""
        if not targets:
            return []
        sets = [(self._in_order(named), frozenset(led_to)) for named, led_to in targets.items()]
        reads_text = bool(self._row(number) or self._values(number))
        if len(sets) == 1 and not reads_text:
            ((named, led_to),) = sets
            return [(*run, self._number(led_to)) for run in runs(named)]
        universe = np.unique(np.concatenate([named for named, _ in sets]))
        # Index in `unions` of the set of states that each token leads to.
        unions: list[frozenset[State]] = [frozenset()]
        union_of = np.zeros(len(universe), np.int64)
        for named, led_to in sets:
            places = np.searchsorted(universe, named)
            before = union_of[places]
            for union in np.unique(before).tolist():
                union_of[places[before == union]] = len(unions)
                unions.append(unions[union] | led_to)
        for place in self._begins_text(number, universe) if reads_text else ():
            if spelled := self._spelled(number, int(universe[place])):
                unions.append(unions[union_of[place]] | spelled)
                union_of[place] = len(unions) - 1
        return [
            (*run, self._number(unions[union]))
            for union in np.unique(union_of).tolist()
            for run in runs(universe[union_of == union])
        ]

    def _in_order(self, tokens: frozenset[TokenId]) -> NDArray[np.int64]:
        """Return the tokens in ascending order, int64."""
        self._budget.spend(1 + len(tokens) // 64)
        return self._sorted(tokens)

    @memoized
    def _sorted(self, tokens: frozenset[TokenId]) -> NDArray[np.int64]:
        return np.array(sorted(tokens))

    def _begins_text(self, number: int, tokens: NDArray[np.int64]) -> list[int]:
        """Return the indices of the tokens whose first byte may be read as text in a subset."""
        ends = [*self._starts[1:], 0x110000]
        begins = np.zeros(256, np.bool_)
        for one in self._row(number):
            # The first byte of a character outside ASCII is at least 0x80.
            begins[min(self._starts[one], 0x80) : ends[one] if ends[one] <= 0x80 else 0x100] = True
        for value in self._values(number):
            begins[list(self._first_bytes[value])] = True
        first = self._first_byte_of_tokens[tokens]
        return np.flatnonzero((first >= 0) & begins[first]).tolist()

    @functools.cached_property
    def _first_byte_of_tokens(self) -> NDArray[np.int16]:
        """The first byte of each token, int16 [tokens]; -1 for a token without text."""
        texts = map(self._vocabulary.token_bytes, range(len(self._vocabulary)))
        return np.fromiter((text[0] if text else -1 for text in texts), np.int16, len(self._vocabulary))

    def _spelled(self, number: int, token: TokenId) -> frozenset[State]:
        """Return the states after the text of a token, read character by character."""
        text, rest = _decoded(self._vocabulary.token_bytes(token))
        for character in text:
            self._budget.spend(1)
            if any(character.encode()[0] in self._first_bytes[value] for value in self._values(number)):
                raise _both(token, self._vocabulary)
            one = self._row(number).get(bisect.bisect_right(self._starts, ord(character)) - 1)
            if one is None:
                return frozenset()
            number = one
        if not rest:
            return self._subsets[number]
        # The token ends inside a character, so it can continue if some character outside ASCII can be read.
        if any([*self._starts, 0x110000][one + 1] > 0x80 for one in self._row(number)):
            raise _both(token, self._vocabulary)
        return frozenset()


def _decoded(data: bytes) -> tuple[str, bytes]:
    """Return the longest prefix of `data` that is valid UTF-8, decoded, and the remaining bytes."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        return data[: error.start].decode(), data[error.start :]


def _both(token: TokenId, vocabulary: Vocabulary) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the token {token} ({vocabulary.token_bytes(token)!r}) may come here as a token and as the beginning of text"
    )


def _drop_dead(automaton: FormatDfa) -> bool:
    """Remove moves to states from which no final state is reachable; return False if the first state is one of them."""
    rows = zip(automaton.characters, automaton.values, automaton.tokens, strict=True)
    targets = [{*read.values(), *called.values(), *(edge[-1] for edge in edges)} for read, called, edges in rows]
    ends = (state for state, final in enumerate(automaton.final) if final)
    alive = reached(ends, sources_of(targets).__getitem__)
    for moves in (automaton.characters, automaton.values):
        for state, row in enumerate(moves):
            moves[state] = {letter: target for letter, target in row.items() if target in alive}
    automaton.tokens = [[edge for edge in edges if edge[-1] in alive] for edges in automaton.tokens]
    # Dead states stay, but no move leads to them. The target of a boundary is dead only if its source is dead.
    return 0 in alive

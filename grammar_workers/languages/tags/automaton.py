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
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import Budget
from grammar_workers.dfa.reached import reached, sources_of
from grammar_workers.errors import LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, RuleSubsets, Targets, TooLargeError
from grammar_workers.memo import memoized
from grammar_workers.pushdown.builder import runs
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

# The number of a state.
State = int
# The number of a value: a rule that is called.
Value = int
# Tokens as pairs (first ID, last ID), inclusive, ascending.
Runs: TypeAlias = tuple[tuple[TokenId, TokenId], ...]


@dataclasses.dataclass
class FormatNfa(RuleNfa):
    """Automaton of a format (node of a structural tag), with moves over characters, tokens and values.

    A value, such as a JSON value, is a separate rule. A move whose label is the number of a value calls this rule.

    Attributes:
        tokens: State -> (runs of token IDs, target) pairs. The state reads any one of these tokens and moves to target.
        boundaries: State s -> state t, for text with a maximum number of tokens. If a token ends in s, the next token
            begins in t. All states that silent moves (without reading) reach from t, they also reach from s.
    """

    tokens: defaultdict[State, list[tuple[Runs, State]]] = dataclasses.field(
        default_factory=functools.partial(defaultdict, list)
    )
    boundaries: dict[State, State] = dataclasses.field(default_factory=dict)

    def values(self, state: State) -> dict[Value, State]:
        """Return the values that a state of a deterministic automaton calls, each with the state after it.

        Args:
            state: Number of the state.
        """
        return {label: target for label, target in self.edges[state] if isinstance(label, int)}


class Determinizer(RuleSubsets):
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
        super().__init__(nfa, budget, budget.limits.max_states)
        self._nfa = nfa
        self._vocabulary = vocabulary
        self._first_bytes = first_bytes
        self._result = FormatNfa()

    def deterministic(self) -> FormatNfa:
        """Return the deterministic automaton. Call this method once.

        If a state reads a token whose text may also begin a value, UnsupportedFeatureError is raised. If every value
        has a text, every state leads to a final state.

        Raises:
            LimitExceededError: There are too many states.
            UnsatisfiableError: No text matches.
        """
        result = self._result
        try:
            self.label(result, *self.run())
        except TooLargeError:
            raise LimitExceededError(
                f"the tags need more than {self._max_states} states (fixed limit max_states)"
            ) from None
        moves: list[list[Any]] = [[*edges, *result.tokens.get(state, ())] for state, edges in enumerate(result.edges)]
        alive = reached(result.finals, sources_of([[edge[1] for edge in edges] for edges in moves]).__getitem__)
        if 0 not in alive:
            raise UnsatisfiableError("no text matches the structural tag")
        # Dead states stay, but no move leads to them. The target of a boundary is dead only if its source is dead.
        moves = [*result.edges, *result.tokens.values()]
        for edges in moves:
            edges[:] = [edge for edge in edges if edge[1] in alive]
        return result

    def visit(self, number: State, subset: frozenset[State], targets: Targets) -> None:
        """Add the moves over tokens and the boundary of a state. See `RuleSubsets.visit`."""
        nfa = self._nfa
        tokens: dict[Runs, set[State]] = {}
        for state in subset if nfa.tokens else ():
            for named, target in nfa.tokens.get(state, ()):
                tokens.setdefault(named, set()).add(target)
        if tokens:
            moves = self._token_moves(subset, targets, tokens)
            self._result.tokens[number] = [(named, self.after(led_to)) for named, led_to in moves]
        if not nfa.boundaries.keys().isdisjoint(subset):
            # `moved` has no closure: silent moves of states that have no boundary would lead back into the copy.
            moved = frozenset(nfa.boundaries.get(state, state) for state in subset)
            self._result.boundaries[number] = self.number(moved)

    def _token_moves(
        self, subset: frozenset[State], text: Targets, tokens: Mapping[Runs, set[State]]
    ) -> Iterator[tuple[Runs, frozenset[State]]]:
        """Yield disjoint sets of tokens, each with the states that they lead to; `tokens` are the moves over tokens."""
        sets = [(self._ordered(named), frozenset(led_to)) for named, led_to in tokens.items()]
        self._budget.spend(sum(1 + len(named) // 64 for named, _ in sets))
        if len(sets) == 1 and not text:
            yield next(iter(tokens)), sets[0][1]
            return
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
        for place in self._begins_text(text, universe) if text else ():
            if spelled := self._spelled(subset, int(universe[place])):
                unions.append(unions[union_of[place]] | spelled)
                union_of[place] = len(unions) - 1
        for union in np.unique(union_of).tolist():
            yield tuple(runs(universe[union_of == union])), unions[union]

    @memoized
    def _ordered(self, named: Runs) -> NDArray[np.int64]:
        """Return the tokens in ascending order, int64."""
        return np.concatenate([np.arange(first, last + 1) for first, last in named])

    def _called(self, targets: Targets) -> list[Value]:
        """Return the values among the letters that a subset reads."""
        return [self.called[letter - len(self.spans)] for letter in targets if letter >= len(self.spans)]

    def _begins_text(self, targets: Targets, tokens: NDArray[np.int64]) -> list[int]:
        """Return the indices of the tokens whose first byte may be read as text in a subset."""
        begins = np.zeros(256, np.bool_)
        for letter in targets:
            for low, high in self.spans[letter] if letter < len(self.spans) else ():
                # The first byte of a character outside ASCII is at least 0x80.
                begins[min(low, 0x80) : high + 1 if high < 0x80 else 0x100] = True
        for value in self._called(targets):
            begins[list(self._first_bytes[value])] = True
        first = self._first_byte_of_tokens[tokens]
        return np.flatnonzero((first >= 0) & begins[first]).tolist()

    @functools.cached_property
    def _first_byte_of_tokens(self) -> NDArray[np.int16]:
        """The first byte of each token, int16 [tokens]; -1 for a token without text."""
        texts = map(self._vocabulary.token_bytes, range(len(self._vocabulary)))
        return np.fromiter((text[0] if text else -1 for text in texts), np.int16, len(self._vocabulary))

    def _spelled(self, subset: frozenset[State], token: TokenId) -> frozenset[State]:
        """Return the states after the text of a token, read character by character."""
        text, rest = _decoded(self._vocabulary.token_bytes(token))
        for character in text:
            self._budget.spend(1)
            targets = self._targets(subset)
            if any(character.encode()[0] in self._first_bytes[value] for value in self._called(targets)):
                raise _both(token, self._vocabulary)
            letter = self.letter_at[bisect.bisect_right(self.starts, ord(character)) - 1]
            if letter not in targets:
                return frozenset()
            subset = self._after(subset, letter)
        if not rest:
            return subset
        # The token ends inside a character, so it can continue if some character outside ASCII can be read.
        if any(letter < len(self.spans) and self.spans[letter][-1][1] > 0x7F for letter in self._targets(subset)):
            raise _both(token, self._vocabulary)
        return frozenset()

    @memoized
    def _targets(self, subset: frozenset[State]) -> Targets:
        return self.targets(subset)

    @memoized
    def _after(self, subset: frozenset[State], letter: int) -> frozenset[State]:
        return self._nfa.closure(self._targets(subset)[letter])


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

"""Builder of the automaton of a structural tag. It appends states, fixed texts, and copies of other automata."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg.rule_nfa import RuleNfa
from grammar_workers.languages.cfg.syntax import FIRST_FORMAT, FORMATS
from grammar_workers.languages.tags.automaton import FormatNfa, State
from grammar_workers.languages.tags.spelling import Spelling
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.types import TokenId


class Layout:
    """Builder of the automaton of a structural tag.

    Most methods take a state, append something after it, and return the state after the new part. They raise
    LimitExceededError if the automaton has too many states.

    Args:
        limits: Bounds on states and on steps of work.

    Attributes:
        nfa: The automaton under construction.
    """

    def __init__(self, limits: Limits) -> None:
        self.nfa = FormatNfa()
        self._limits = limits
        self._budget = budget_of(limits)

    def state(self) -> State:
        """Append a state without moves.

        Returns:
            The number of the state.

        Raises:
            LimitExceededError: The automaton has too many states.
        """
        self._budget.spend(4)
        if len(self.nfa) >= self._limits.max_states:
            raise LimitExceededError(
                f"the tags need more than {self._limits.max_states} states (fixed limit max_states)"
            )
        return self.nfa.state()

    def fresh(self, first: State) -> State:
        """Append a state with a silent move (a move without reading) from another state.

        A loop may lead back to the new state without entering the other state again.

        Args:
            first: The other state.

        Returns:
            The number of the new state.
        """
        state = self.state()
        self.nfa.silent[first].append(state)
        return state

    def join(self, states: Sequence[State]) -> State:
        """Append a state with silent moves (moves without reading) from other states.

        Args:
            states: The other states.

        Returns:
            The number of the new state.
        """
        last = self.state()
        for state in states:
            self.nfa.silent[state].append(last)
        return last

    def token(self, tokens: frozenset[TokenId], first: State) -> State:
        """Append a move that reads one of several tokens.

        Args:
            tokens: IDs of the tokens.
            first: The state before the token.

        Returns:
            The new state after the token.
        """
        last = self.state()
        self.nfa.tokens[first].append((tokens, last))
        return last

    def spell(self, spelling: Spelling, first: State) -> State:
        """Append states that read a fixed text.

        Args:
            spelling: The text, split into plain texts and special tokens.
            first: The state before the text.

        Returns:
            The state after the text; `first` if the text is empty.
        """
        for piece in spelling:
            if isinstance(piece, int):
                first = self.token(frozenset([piece]), first)
                continue
            for character in piece:
                following = self.state()
                self.nfa.edges[first].append((((ord(character), ord(character)),), following))
                first = following
        return first

    def states_of(self, automaton: Dfa, first: State) -> list[State]:
        """Append a copy of a DFA. Its accepting states do not become final states.

        Args:
            automaton: The DFA.
            first: The state before the copy. A silent move (without reading) leads from it to the first state of the
                copy.

        Returns:
            The states of the copy, in the order of the states of `automaton`.
        """
        return self._copy(self._text_of(automaton), first)

    def embed(self, automaton: Dfa, first: State) -> State:
        """Append a copy of a DFA and a state after it.

        Args:
            automaton: The DFA.
            first: The state before the copy.

        Returns:
            The state after the copy. Silent moves (without reading) lead to it from all accepting states of the copy.
        """
        last = self.state()
        for state, label in zip(self.states_of(automaton, first), automaton.accepting, strict=True):
            if label:
                self.nfa.silent[state].append(last)
        return last

    def embed_limited(
        self, automaton: Dfa, most_characters: int | None, most_tokens: int | None, first: State, pointer: str
    ) -> State:
        """Append a DFA with a maximum number of characters or tokens.

        There is one copy of the DFA for each possible number of characters, and one copy of all these for each possible
        number of tokens. When a token begins, matching continues in the copy for one more token. The first copy reads
        the characters of a token that began before the text.

        Args:
            automaton: DFA of the allowed texts.
            most_characters: Maximum number of characters. None: no maximum.
            most_tokens: Maximum number of tokens that begin with a character of the text. None: no maximum.
            first: The state before the text.
            pointer: JSON Pointer of the format, for errors.

        Returns:
            The state after the text.

        Raises:
            LimitExceededError: The copies have too many states.
        """
        many = (1 + (most_characters or 0)) * (1 + (most_tokens or 0)) * automaton.many_states
        if many > self._limits.max_regex_states * 4:
            name, what, most = ("max_chars", "characters", most_characters)
            if most_tokens is not None:
                name, what, most = ("max_tokens", "tokens", most_tokens)
            raise LimitExceededError(
                f"{most} {what} need {many} states, more than {self._limits.max_regex_states * 4} "
                "(fixed limit max_regex_states)",
                pointer=f"{pointer}/{name}",
            )
        text = self._text_of(automaton)
        if most_characters is not None:
            text = _up_to(text, most_characters)
        last = self.state()
        copies = [self._copy(text, first)]
        for _ in range(most_tokens or 0):
            copies.append(self._copy(text))
            self.nfa.boundaries.update(zip(copies[-2], copies[-1], strict=True))
        for copy in copies:
            for number in text.finals:
                self.nfa.silent[copy[number]].append(last)
        if most_tokens is not None:
            # After the last token, only the text after the free text is allowed. Free text may end anywhere, so this
            # text can always follow.
            over = self.state()
            self.nfa.silent[over].append(last)
            self.nfa.boundaries.update(dict.fromkeys(copies[-1], over))
        return last

    @memoized
    def _text_of(self, automaton: Dfa) -> _Text:
        """Return the moves of an automaton, from a cache: each repetition of a format copies the automaton."""
        moves = [automaton.charsets(state) for state in range(automaton.many_states)]
        return _Text(moves, automaton.ends)

    def _copy(self, text: _Text, first: State | None = None) -> list[State]:
        """Append states with the moves of `text` and return them; `first` leads to the first of them."""
        states = [self.state() for _ in text.moves]
        if first is not None:
            self.nfa.silent[first].append(states[0])
        for state, moves in zip(states, text.moves, strict=True):
            for characters, target in moves:
                self._budget.spend(1 + len(characters) // 8)
                self.nfa.edges[state].append((characters, states[target]))
        return states

    def embed_rule(self, rule: RuleNfa, first: State) -> tuple[State, list[tuple[int, State, State]]]:
        """Append a copy of the automaton of a grammar rule, without the formats (nodes of structural tags) in it.

        Args:
            rule: The deterministic automaton. The code point `FIRST_FORMAT + i` is a placeholder for the format with
                index i. The number of a called rule is its index in `Values.rules`.
            first: The state before the text.

        Returns:
            The state after the text, and the formats that the caller must add. Each is a triple: index of the format,
            state before it, state after it.
        """
        self._budget.spend(sum(map(len, rule.edges)))
        states = [self.state() for _ in range(len(rule))]
        self.nfa.silent[first].append(states[0])
        formats = []
        for state, moves in zip(states, rule.edges, strict=True):
            for label, target in moves:
                if isinstance(label, int):
                    self.nfa.edges[state].append((label, states[target]))
                    continue
                if characters := charset.subtract(label, FORMATS):
                    self.nfa.edges[state].append((characters, states[target]))
                for low, high in charset.intersect(label, FORMATS):
                    formats += [(one - FIRST_FORMAT, state, states[target]) for one in range(low, high + 1)]
        return self.join([states[number] for number in rule.finals]), formats


@dataclasses.dataclass(frozen=True)
class _Text:
    """An automaton over characters, which begins in state 0: moves of each state, and accepting states."""

    moves: list[list[tuple[Charset, int]]]
    finals: list[int]


def _up_to(text: _Text, most: int) -> _Text:
    """Return the texts with at most `most` characters: each state is copied for each number of characters read."""
    numbers = {(0, 0): 0}
    moves: list[list[tuple[Charset, int]]] = []
    # `order` grows while it is iterated.
    for count, state in (order := [(0, 0)]):
        moves.append([])
        for characters, target in text.moves[state] if count < most else ():
            number = numbers.setdefault((count + 1, target), len(numbers))
            if number == len(order):
                order.append((count + 1, target))
            moves[-1].append((characters, number))
    finals = set(text.finals)
    return _Text(moves, [number for number, (_, state) in enumerate(order) if state in finals])

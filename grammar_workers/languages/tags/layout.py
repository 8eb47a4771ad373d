"""Laying out the automaton of formats: states, spellings, and automata of other kinds put into it."""

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
    """An automaton that grows. What is laid out begins in a given state; the state behind it is returned."""

    def __init__(self, limits: Limits) -> None:
        self.nfa = FormatNfa()
        self._limits = limits
        self._budget = budget_of(limits)

    def state(self) -> State:
        self._budget.spend(4)
        if len(self.nfa) >= self._limits.max_states:
            raise LimitExceededError(
                f"the tags need more than {self._limits.max_states} states (fixed limit max_states)"
            )
        return self.nfa.state()

    def fresh(self, first: State) -> State:
        """A new state behind `first`: what is laid out from it cannot be re-entered from elsewhere."""
        state = self.state()
        self.nfa.silent[first].append(state)
        return state

    def join(self, states: Sequence[State]) -> State:
        last = self.state()
        for state in states:
            self.nfa.silent[state].append(last)
        return last

    def token(self, tokens: frozenset[TokenId], first: State) -> State:
        last = self.state()
        self.nfa.tokens[first].append((tokens, last))
        return last

    def spell(self, spelling: Spelling, first: State) -> State:
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
        """States that move like those of an automaton; `first` leads to the first of them."""
        return self._copy(self._text_of(automaton), first)

    def embed(self, automaton: Dfa, first: State) -> State:
        last = self.state()
        for state, label in zip(self.states_of(automaton, first), automaton.accepting, strict=True):
            if label:
                self.nfa.silent[state].append(last)
        return last

    def embed_limited(
        self, automaton: Dfa, most_characters: int | None, most_tokens: int | None, first: State, pointer: str
    ) -> State:
        """The same with at most so many characters, and at most so many tokens that begin with one of these.

        A copy of the automaton for each character, and a copy of these for each token: where a token begins, its
        characters are read in the next one. The first copy is for what ends the token before.
        """
        many = (1 + (most_characters or 0)) * (1 + (most_tokens or 0)) * automaton.many_states
        if many > self._limits.max_regex_states * 4:
            name = "max_chars" if most_tokens is None else "max_tokens"
            raise LimitExceededError(
                f"{most_characters if most_tokens is None else most_tokens} "
                f"{'characters' if most_tokens is None else 'tokens'} need {many} states, more than "
                f"{self._limits.max_regex_states * 4} (fixed limit max_regex_states)",
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
            # Behind the last token comes only what follows. Free text may end anywhere, so there is a way on.
            over = self.state()
            self.nfa.silent[over].append(last)
            self.nfa.boundaries.update(dict.fromkeys(copies[-1], over))
        return last

    @memoized
    def _text_of(self, automaton: Dfa) -> _Text:
        """The moves of an automaton, which is laid out once more wherever its format is repeated."""
        moves = [automaton.charsets(state) for state in range(automaton.many_states)]
        return _Text(moves, automaton.ends)

    def _copy(self, text: _Text, first: State | None = None) -> list[State]:
        """States that move so; `first` leads to the first of them."""
        states = [self.state() for _ in text.moves]
        if first is not None:
            self.nfa.silent[first].append(states[0])
        for state, moves in zip(states, text.moves, strict=True):
            for characters, target in moves:
                self._budget.spend(1 + len(characters) // 8)
                self.nfa.edges[state].append((characters, states[target]))
        return states

    def embed_rule(self, rule: RuleNfa, first: State) -> tuple[State, list[tuple[int, State, State]]]:
        """The same for the deterministic automaton of a rule of a grammar.

        What stands for a format is left out: its number, and the states before and behind it.
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
    """An automaton over characters, which begins in state 0: the moves of each state, and those in which it may end."""

    moves: list[list[tuple[Charset, int]]]
    finals: list[int]


def _up_to(text: _Text, most: int) -> _Text:
    """The same with at most so many characters: a copy of each state for each number of characters read."""
    numbers = {(0, 0): 0}
    moves: list[list[tuple[Charset, int]]] = []
    # What is reached is noted while it is walked.
    for count, state in (order := [(0, 0)]):
        moves.append([])
        for characters, target in text.moves[state] if count < most else ():
            number = numbers.setdefault((count + 1, target), len(numbers))
            if number == len(order):
                order.append((count + 1, target))
            moves[-1].append((characters, number))
    finals = set(text.finals)
    return _Text(moves, [number for number, (_, state) in enumerate(order) if state in finals])

"""Laying out the automaton of formats: states, spellings, and automata of other kinds put into it."""

from __future__ import annotations

from collections.abc import Sequence

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg.rule_nfa import RuleNfa
from grammar_workers.languages.tags.automaton import FormatNfa, State
from grammar_workers.languages.tags.spelling import Spelling
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
            raise LimitExceededError(f"the tags need more than {self._limits.max_states} states (limit max_states)")
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
                self.nfa.characters[first].append((((ord(character), ord(character)),), following))
                first = following
        return first

    def states_of(self, automaton: Dfa, first: State) -> list[State]:
        """States that move like those of an automaton; `first` leads to the first of them."""
        states = [self.state() for _ in automaton.accepting]
        self.nfa.silent[first].append(states[0])
        for number, state in enumerate(states):
            by_target: dict[int, list[tuple[int, int]]] = {}
            for low, high, target in automaton.ranges(number):
                by_target.setdefault(target, []).append((low, high))
            for target, intervals in by_target.items():
                self._budget.spend(1 + len(intervals) // 8)
                self.nfa.characters[state].append((charset.make(intervals), states[target]))
        return states

    def embed(self, automaton: Dfa, first: State) -> State:
        last = self.state()
        for state, label in zip(self.states_of(automaton, first), automaton.accepting, strict=True):
            if label:
                self.nfa.silent[state].append(last)
        return last

    def embed_rule(self, rule: RuleNfa, first: State) -> State:
        """The same for the deterministic automaton of a rule of a grammar."""
        states = [self.state() for _ in range(len(rule))]
        self.nfa.silent[first].append(states[0])
        for state, moves in zip(states, rule.edges, strict=True):
            for label, target in moves:
                if isinstance(label, int):
                    self.nfa.values[state].append((label, states[target]))
                else:
                    self.nfa.characters[state].append((label, states[target]))
        return self.join([states[number] for number in rule.finals])

    def embed_up_to(self, automaton: Dfa, most: int, first: State, pointer: str) -> State:
        """The same with at most so many characters: a copy of the automaton for each."""
        many = (most + 1) * automaton.many_states
        if many > self._limits.max_regex_states * 4:
            raise LimitExceededError(
                f"{most} characters need {many} states, more than {self._limits.max_regex_states * 4} "
                "(limit max_regex_states)",
                pointer=f"{pointer}/max_chars",
            )
        last = self.state()
        alphabet = charset.ALL
        here = {0: self.fresh(first)}
        for count in range(most + 1):
            following: dict[int, State] = {}
            for number, state in here.items():
                if automaton.accepting[number]:
                    self.nfa.silent[state].append(last)
                if count == most:
                    continue
                by_target: dict[int, list[tuple[int, int]]] = {}
                for low, high, target in automaton.ranges(number):
                    by_target.setdefault(target, []).append((low, high))
                for target, intervals in by_target.items():
                    if target not in following:
                        following[target] = self.state()
                    label = charset.intersect(charset.make(intervals), alphabet)
                    self.nfa.characters[state].append((label, following[target]))
            here = following
        return last

"""Thompson's construction (1968): builder of the automaton of a grammar rule or of a structural tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg.rule_nfa import Label, RuleNfa
from grammar_workers.memo import memoized


class RuleBuilder:
    """Builder of an automaton with silent moves (moves that read nothing).

    Most methods take a state, append something after it, and return the state after the new part. They raise
    LimitExceededError if the automaton has too many states, or if the budget is exhausted.

    Args:
        nfa: The automaton to extend.
        budget: Counts the steps of work.
        max_states: Maximum number of states.
        message: Message of the error if there are more states.
        alphabet: The allowed characters. Other characters of embedded automata are dropped.

    Attributes:
        nfa: The automaton under construction.
    """

    def __init__(
        self, nfa: RuleNfa, budget: Budget, max_states: int, message: str, alphabet: Charset = charset.ALL
    ) -> None:
        self.nfa = nfa
        self._budget = budget
        self._max_states = max_states
        self._message = message
        self._alphabet = alphabet

    def state(self) -> int:
        """Append a state without moves, and return its number."""
        self._reserve(1)
        return self.nfa.state()

    def _reserve(self, states: int) -> None:
        self._budget.spend(4 * states)
        if len(self.nfa) + states > self._max_states:
            raise LimitExceededError(self._message)

    def fresh(self, first: int) -> int:
        """Append a state with a silent move from another state.

        A loop may lead back to the new state without entering the other state again.

        Args:
            first: The other state.

        Returns:
            The number of the new state.
        """
        return self.join([first])

    def join(self, states: Sequence[int]) -> int:
        """Append a state with silent moves from other states.

        Args:
            states: The other states.

        Returns:
            The number of the new state.
        """
        last = self.state()
        for state in states:
            self.nfa.silent[state].append(last)
        return last

    def read(self, label: Label, first: int) -> int:
        """Append a move that reads a character or calls a rule.

        Args:
            label: Set of characters, or number of a rule.
            first: The state before the move.

        Returns:
            The new state after the move.
        """
        last = self.state()
        self.nfa.edges[first].append((label, last))
        return last

    def copy(self, rule: RuleNfa, first: int | None = None) -> int:
        """Append a copy of an automaton. Its final states do not become final states.

        Args:
            rule: The automaton.
            first: The state before the copy. A silent move leads from it to the first state of the copy. None: no move.

        Returns:
            The number of the first state of the copy. The copy of state i has this number plus i.
        """
        self._reserve(len(rule))
        self._budget.spend(sum(map(len, rule.edges)))
        base = rule.copy_into(self.nfa)
        if first is not None:
            self.nfa.silent[first].append(base)
        return base

    def embed(self, automaton: Dfa, first: int) -> int:
        """Append a copy of a DFA and a state after it.

        Args:
            automaton: The DFA.
            first: The state before the copy.

        Returns:
            The state after the copy. Silent moves lead to it from all accepting states of the copy.
        """
        base = self.copy(self.rule_of(automaton), first)
        return self.join([base + state for state in automaton.ends])

    @memoized
    def rule_of(self, automaton: Dfa) -> RuleNfa:
        """Return a DFA over the allowed characters as the automaton of a rule. It is cached: repetitions copy it again.

        Args:
            automaton: The DFA. Its states keep their numbers.
        """
        edges: list[list[tuple[Label, int]]] = [
            [(self.allowed(characters), target) for characters, target in automaton.charsets(state)]
            for state in range(automaton.many_states)
        ]
        return RuleNfa(edges, [[] for _ in edges], set(automaton.ends))

    @memoized
    def allowed(self, characters: Charset) -> Charset:
        """Return the characters of a set that are allowed."""
        return charset.intersect(self._alphabet, characters)

    def repeat(self, add: Callable[[int], int], first: int, low: int, high: int | None) -> int:
        """Append a repetition.

        Args:
            add: Appends one copy of the repeated part after a state, and returns the state after the copy.
            first: The state before the repetition.
            low: Minimum number of copies.
            high: Maximum number of copies. None: no maximum.

        Returns:
            The state after the repetition.
        """
        for _ in range(low):
            first = add(first)
        if high is None:
            loop = self.fresh(first)
            last = self.fresh(loop)
            self.nfa.silent[add(loop)].append(loop)
            return last
        passed = [first]
        for _ in range(high - low):
            passed.append(add(passed[-1]))
        return self.join(passed)

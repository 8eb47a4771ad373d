"""Intersection of a recursive grammar and a finite automaton (Bar-Hillel, Perles and Shamir, 1961).

A rule of the result is a triple: a rule of the grammar, and the states of the automaton before and after a text of this
rule. The possible states after the text are computed first, for each rule and state before it. So only reachable rules
are built (compare the reachability algorithm of Reps, Horwitz and Sagiv, 1995).
"""

from __future__ import annotations

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.languages.cfg.rtn import TransitionNetwork, remove_dead
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, determinize_rule
from grammar_workers.memo import memoized

# A state of a rule and the state of the automaton that is reached together with it.
_Pair = tuple[int, int]
# A rule and the state of the automaton in which the rule begins.
_Entry = tuple[int, int]


def intersect(
    network: TransitionNetwork, automaton: Dfa, budget: Budget, erased: Charset = charset.EMPTY
) -> TransitionNetwork:
    """Return a grammar, as a network, of the texts that a recursive grammar and a DFA both accept.

    An empty intersection raises UnsatisfiableError. An intersection that is too large, or an exhausted budget, raises
    LimitExceededError.

    Args:
        network: Automata of all rules of the grammar; not changed. No called rule may match the empty text (see
            `rtn.remove_empty_texts`).
        automaton: A DFA over characters.
        budget: Counts the steps of work.
        erased: Characters that are removed from the texts of the result: moves on them become moves that read nothing.

    Returns:
        A new network. If nothing is erased, no called rule in it matches the empty text.
    """
    return _Intersection(network, automaton, budget, erased).build()


class _Intersection:
    def __init__(self, network: TransitionNetwork, automaton: Dfa, budget: Budget, erased: Charset) -> None:
        self._network = network
        self._automaton = automaton
        self._budget = budget
        self._erased = erased
        self._reached: dict[_Entry, dict[_Pair, None]] = {}
        self._exits: dict[_Entry, dict[int, None]] = {}
        self._waiting: dict[_Entry, list[tuple[_Entry, int]]] = {}
        self._pending: list[tuple[_Entry, _Pair]] = []

    def build(self) -> TransitionNetwork:
        start = (self._network.start, 0)
        self._enter(start)
        while self._pending:
            self._visit(*self._pending.pop())
        numbers: dict[tuple[_Entry, int], int] = {}
        result = TransitionNetwork([], [])
        for entry, exits in self._exits.items():
            for last in exits if entry != start else (-1,):
                numbers[entry, last] = len(result.names)
                result.names.append(self._network.names[entry[0]])
        result.start = numbers[start, -1]
        for (entry, last), number in numbers.items():
            source = self._rule(entry, last, numbers)
            result.rules.append(determinize_rule(result.names[number], source, self._budget))
        remove_dead(result, self._budget)
        return result

    def _enter(self, entry: _Entry) -> None:
        if entry not in self._reached:
            self._reached[entry] = {}
            self._exits[entry] = {}
            self._waiting[entry] = []
            self._reach(entry, (0, entry[1]))

    def _reach(self, entry: _Entry, pair: _Pair) -> None:
        if pair not in self._reached[entry]:
            self._reached[entry][pair] = None
            self._pending.append((entry, pair))
            self._budget.spend(1)

    def _visit(self, entry: _Entry, pair: _Pair) -> None:
        rule = self._network.rules[entry[0]]
        for label, target in rule.edges[pair[0]]:
            if isinstance(label, int):
                called = (label, pair[1])
                self._enter(called)
                self._waiting[called].append((entry, target))
                for last in list(self._exits[called]):
                    self._reach(entry, (target, last))
            else:
                for _, reached in self._both(label, pair[1]):
                    self._reach(entry, (target, reached))
        if pair[0] in rule.finals and pair[1] not in self._exits[entry]:
            self._exits[entry][pair[1]] = None
            for waiting, target in self._waiting[entry]:
                self._budget.spend(1)
                self._reach(waiting, (target, pair[1]))

    @memoized
    def _both(self, label: Charset, state: int) -> list[tuple[Charset, int]]:
        """Return the characters of `label` that the automaton can read in `state`, grouped by the next state."""
        moves = self._automaton.charsets(state)
        self._budget.spend(len(moves) + len(label))
        found = [(charset.intersect(label, characters), target) for characters, target in moves]
        return [(characters, target) for characters, target in found if characters]

    def _rule(self, entry: _Entry, last: int, numbers: dict[tuple[_Entry, int], int]) -> RuleNfa:
        """Return the rule from `entry` to the automaton's state `last`; -1 stands for any accepting state."""
        rule = self._network.rules[entry[0]]
        numbered = {pair: number for number, pair in enumerate(self._reached[entry])}
        result = RuleNfa()
        for pair, number in numbered.items():
            result.state()
            moves = result.edges[number]
            for label, target in rule.edges[pair[0]]:
                if isinstance(label, int):
                    called = (label, pair[1])
                    moves += [(numbers[called, end], numbered[target, end]) for end in self._exits[called]]
                else:
                    for characters, to in self._both(label, pair[1]):
                        if charset.intersect(characters, self._erased):
                            result.silent[number].append(numbered[target, to])
                        if kept := charset.subtract(characters, self._erased):
                            moves.append((kept, numbered[target, to]))
            self._budget.spend(1 + len(moves))
            ends_here = pair[1] == last if last >= 0 else bool(self._automaton.accepting[pair[1]])
            if ends_here and pair[0] in rule.finals:
                result.finals.add(number)
        return result

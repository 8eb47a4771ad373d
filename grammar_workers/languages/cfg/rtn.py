"""Recursive transition networks (Woods, 1970): one automaton per rule, which calls others; without dead or empty rules.

Grammar --build--> TransitionNetwork: automata with calls --remove_dead--> --remove_empty_texts--> no rule matches ""
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.reached import reached, sources_of
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError, UnsatisfiableError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.cfg.counted_parts import CountedParts
from grammar_workers.languages.cfg.rule_nfa import Label, RuleNfa, determinize_rule


@dataclasses.dataclass
class TransitionNetwork:
    """Rule i is called `names[i]` and is matched by the deterministic `rules[i]`; the language is that of `start`."""

    names: list[syntax.RuleName]
    rules: list[RuleNfa]
    start: int = 0

    def least(self, holds: Callable[[RuleNfa, set[int]], bool]) -> set[int]:
        """The least set of rules that holds those for which `holds`, given the others in it."""
        callers = sources_of([automaton.calls() for automaton in self.rules])
        found: set[int] = set()
        pending = list(range(len(self.rules)))
        while pending:
            number = pending.pop()
            if number not in found and holds(self.rules[number], found):
                found.add(number)
                pending += callers[number]
        return found


def build(grammar: syntax.Grammar, alphabet: Charset, budget: Budget) -> TransitionNetwork:
    """One automaton per rule that `start` reaches, over the characters in `alphabet`.

    Raises InvalidSpecificationError for unknown rules and rules that can never end, UnsatisfiableError when no text is
    left, LimitExceededError.
    """
    names = [grammar.named(name) for name in _reachable(grammar, budget)]
    numbers = {name: number for number, (name, _, _) in enumerate(names)}
    rules = []
    counted = CountedParts(grammar.rules, budget.limits)
    for name in names:
        with name.limits():
            rules.append(_Thompson(numbers, alphabet, counted, budget).build(grammar.rules[name.name].expression))
    network = TransitionNetwork(names, rules)
    ending = _with_text(network, budget)
    for number, (text, position, _) in enumerate(names):
        # A name with % is the reader's own: the user's rule behind it comes later.
        if number not in ending and not text.startswith("%"):
            raise InvalidSpecificationError(
                f"the rule {text!r} never ends: each of its alternatives needs itself again; add one that does not",
                position=position,
            )
    network.rules = [determinize_rule(name, rule, budget) for name, rule in zip(names, rules, strict=True)]
    remove_dead(network, budget)
    return network


def _reachable(grammar: syntax.Grammar, budget: Budget) -> list[str]:
    def named(rule: str) -> Iterator[str]:
        for reference in syntax.references(grammar.rules[rule].expression):
            budget.spend(1)
            if reference.name not in grammar.rules:
                message = f"the rule {reference.name!r} is not defined"
                raise InvalidSpecificationError(message, position=reference.position)
            yield reference.name

    return list(reached([grammar.start], named))


class _Thompson:
    """Thompson's construction of one rule."""

    def __init__(self, numbers: dict[str, int], alphabet: Charset, counted: CountedParts, budget: Budget) -> None:
        self._numbers = numbers
        self._allowed = functools.cache(functools.partial(charset.intersect, alphabet))
        self._counted = counted
        self._budget = budget
        self._automaton = RuleNfa()

    def build(self, expression: syntax.Expression) -> RuleNfa:
        first = self._state()
        self._automaton.finals.add(self._add(expression, first))
        return self._automaton

    def _state(self) -> int:
        self._budget.spend(8)
        most = self._budget.limits.max_regex_states * 8
        if len(self._automaton) >= most:
            raise LimitExceededError(
                f"a rule is longer than {most} elements once its counts are written out (fixed limit max_regex_states)"
            )
        return self._automaton.state()

    def _add(self, expression: syntax.Expression, first: int) -> int:
        """Lay the expression out from state `first`; the state behind it."""
        silent = self._automaton.silent
        if isinstance(expression, syntax.Sequence):
            for item in expression.items:
                first = self._add(item, first)
            return first
        if isinstance(expression, syntax.Repeat):
            counted = self._counted.regular(expression)
            return self._add_repeat(expression, first) if counted is None else self._add(counted, first)
        if isinstance(expression, syntax.Characters):
            for characters in expression.charsets:
                last = self._state()
                self._edge(first, characters, last)
                first = last
            return first
        last = self._state()
        if isinstance(expression, syntax.Marker):
            self._automaton.edges[first].append((charset.singles([expression.code_point]), last))
        elif isinstance(expression, syntax.Reference):
            self._automaton.edges[first].append((self._numbers[expression.name], last))
        elif isinstance(expression, syntax.Alternatives):
            for item in expression.items:
                begin = self._state()
                silent[first].append(begin)
                silent[self._add(item, begin)].append(last)
        else:
            assert isinstance(expression, syntax.Regular), "readers compile patterns and expand templates"
            self._add_regular(expression, first, last)
        return last

    def _add_regular(self, expression: syntax.Regular, first: int, last: int) -> None:
        automaton = expression.automaton
        if automaton.is_empty:
            # What matches nothing is no recursion that never ends.
            self._edge(first, charset.EMPTY, last)
        numbers = [self._state() for _ in automaton.accepting]
        self._automaton.silent[first].append(numbers[0])
        for state, number in enumerate(numbers):
            for characters, target in automaton.charsets(state):
                self._budget.spend(1 + len(characters) // 8)
                self._edge(number, characters, numbers[target])
            if automaton.accepting[state]:
                self._automaton.silent[number].append(last)

    def _add_repeat(self, expression: syntax.Repeat, first: int) -> int:
        silent = self._automaton.silent
        for _ in range(expression.low):
            self._budget.spend(1)
            first = self._add(expression.item, first)
        last = self._state()
        if expression.high is None:
            silent[first].append(last)
            begin = self._state()
            silent[last].append(begin)
            silent[self._add(expression.item, begin)].append(last)
            return last
        for _ in range(expression.high - expression.low):
            self._budget.spend(1)
            silent[first].append(last)
            # A state of its own, so that skipping cannot be mistaken for what the item begins with.
            begin = self._state()
            silent[first].append(begin)
            first = self._add(expression.item, begin)
        silent[first].append(last)
        return last

    def _edge(self, first: int, characters: Charset, last: int) -> None:
        self._automaton.edges[first].append((self._allowed(characters), last))


def remove_dead(network: TransitionNetwork, budget: Budget) -> None:
    """Drop calls that no text can complete, and states that lead to no end; raises UnsatisfiableError."""

    alive = _with_text(network, budget)
    if network.start not in alive:
        raise UnsatisfiableError("no text matches the grammar")
    for number, automaton in enumerate(network.rules):
        if any(called not in alive for called in automaton.calls()):
            automaton.edges = [
                [(label, target) for label, target in moves if not isinstance(label, int) or label in alive]
                for moves in automaton.edges
            ]
            network.rules[number] = determinize_rule(network.names[number], automaton, budget)


def _with_text(network: TransitionNetwork, budget: Budget) -> set[int]:
    """The rules that some text completes, if each set of characters holds one."""

    def has_text(automaton: RuleNfa, alive: set[int]) -> bool:
        return _ends_over(automaton, lambda label: not isinstance(label, int) or label in alive, budget)

    return network.least(has_text)


def _ends_over(automaton: RuleNfa, passable: Callable[[Label], bool], budget: Budget) -> bool:
    """Whether moves over letters that are `passable` lead from the beginning to an end."""

    def following(state: int) -> list[int]:
        budget.spend(1)
        return automaton.silent[state] + [target for label, target in automaton.edges[state] if passable(label)]

    found = reached([0], following)
    return not automaton.finals.isdisjoint(found)


def remove_empty_texts(network: TransitionNetwork, budget: Budget) -> None:
    """Rewrite the rules so that none that is called matches the empty text; the language stays.

    Where a rule that could be empty is called, the call may be skipped instead. A new start rule, which nothing calls,
    is the only one that may still be empty.
    """

    def is_nullable(automaton: RuleNfa, nullable: set[int]) -> bool:
        return _ends_over(automaton, lambda label: isinstance(label, int) and label in nullable, budget)

    nullable = network.least(is_nullable)
    for number, automaton in enumerate(network.rules):
        if number not in nullable and nullable.isdisjoint(automaton.calls()):
            continue
        result = RuleNfa()
        result.state()
        base = automaton.copy_into(result)
        result.finals = {base + state for state in automaton.finals}
        for state in range(base, len(result)):
            result.silent[state] += [target for label, target in result.edges[state] if label in nullable]
        # State 0 is new: what it does is what the old one does after any silent moves, but it is not final.
        for state in result.closure([base]):
            budget.spend(8 + len(result.edges[state]))
            result.edges[0] += result.edges[state]
        network.rules[number] = determinize_rule(network.names[number], result, budget)
    start = RuleNfa([[(network.start, 1)], []], [[], []], {1})
    if network.start in nullable:
        start.finals.add(0)
    network.rules.append(start)
    network.names.append(network.names[network.start])
    network.start = len(network.rules) - 1
    remove_dead(network, budget)

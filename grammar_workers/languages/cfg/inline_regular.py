"""The regular part of a network: rules without calls are written into their callers, tail calls become jumps.

    list: item ("," list)?      the call of itself is the last thing that happens: a jump back to the beginning
    item: "(" list ")" | word   the call of `list` is not: this recursion stays

Where everything disappears into the start rule, the language is regular, and a finite automaton does. A rule is written
into its caller while the result stays small; one that would make it too large stays a call, which is always right.
"""

from __future__ import annotations

from grammar_workers.budget import Budget
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, TooLargeError, determinize
from grammar_workers.languages.cfg.scc import components

_INLINE_STEPS = 400_000
"""The most steps that trying to write calls into one rule may take."""


def inline_regular(network: TransitionNetwork, budget: Budget) -> None:
    """Rewrite rules until only calls are left that take part in recursion, lead to it, or would grow too large."""
    regular: set[int] = set()
    for component in components([automaton.calls() for automaton in network.rules]):
        members = set(component)
        for number in component:
            automaton = network.rules[number]
            if regular.isdisjoint(automaton.calls()):
                continue
            with network.names[number].limits():
                network.rules[number] = _inlined(network, number, regular, budget)
        if _only_jumps(network, members, budget):
            try:
                jumps = {number: _with_jumps(network, number, members, budget) for number in component}
            except TooLargeError:
                continue
            regular |= members
            for number, automaton in jumps.items():
                network.rules[number] = automaton


def _only_jumps(network: TransitionNetwork, members: set[int], budget: Budget) -> bool:
    """True if all calls in these rules are of each other, and the last thing that happens."""
    for number in members:
        automaton = network.rules[number]
        budget.spend(len(automaton))
        for moves in automaton.edges:
            if any(isinstance(label, int) and not (label in members and automaton.ends(to)) for label, to in moves):
                return False
    return True


def _inlined(network: TransitionNetwork, number: int, regular: set[int], budget: Budget) -> RuleNfa:
    """The rule with the called rules of `regular` in place of their calls, or as it is when that is too large."""
    source = network.rules[number]
    most = budget.limits.max_regex_states
    result = RuleNfa()
    source.copy_into(result)
    result.finals = set(source.finals)
    for state, moves in enumerate(source.edges):
        result.edges[state] = []
        for label, target in moves:
            if not isinstance(label, int) or label not in regular:
                result.edges[state].append((label, target))
                continue
            called = network.rules[label]
            if len(result) + len(called) > most:
                return source
            budget.spend(len(called))
            base = called.copy_into(result)
            result.silent[state].append(base)
            for final in called.finals:
                result.silent[base + final].append(target)
    try:
        return determinize(result, budget, max_states=most, max_steps=_INLINE_STEPS)
    except TooLargeError:
        return source


def _with_jumps(network: TransitionNetwork, number: int, members: set[int], budget: Budget) -> RuleNfa:
    """The rule with all its mutual recursion written as jumps; raises TooLargeError."""
    if not network.rules[number].calls():
        return network.rules[number]
    result = RuleNfa()
    bases = {}
    for each in (number, *sorted(members - {number})):
        budget.spend(len(network.rules[each]))
        bases[each] = network.rules[each].copy_into(result)
        result.finals |= {bases[each] + state for state in network.rules[each].finals}
    for state, moves in enumerate(result.edges):
        result.silent[state] += [bases[label] for label, _ in moves if isinstance(label, int)]
        result.edges[state] = [(label, target) for label, target in moves if not isinstance(label, int)]
    return determinize(result, budget, max_states=budget.limits.max_regex_states, max_steps=_INLINE_STEPS)

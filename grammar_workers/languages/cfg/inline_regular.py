"""Elimination of calls from a recursive transition network, as far as its language is regular.

Rules without calls are inlined into their callers. Tail calls become jumps:

    list: item ("," list)?      the call of itself is a tail call: it becomes a jump to the beginning
    item: "(" list ")" | word   the call of `list` is not a tail call: this recursion stays

If all calls of the start rule disappear, the language is regular and a finite automaton recognizes it. A rule is
inlined only if the result stays small. A rule that would make its caller too large stays a call, which is always
correct.
"""

from __future__ import annotations

from grammar_workers.budget import Budget
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, TooLargeError, determinize
from grammar_workers.languages.cfg.scc import components

# Maximum budget steps for inlining calls into one rule.
_INLINE_STEPS = 400_000


def inline_regular(network: TransitionNetwork, budget: Budget) -> None:
    """Insert called rules into their callers as far as possible, so that regular rules need no calls.

    Three kinds of calls remain: recursive calls, calls of rules with recursion, and calls whose insertion would make a
    rule too large. Exception: if all recursive calls are at the end of a rule (tail calls), they become loops.

    Args:
        network: Automata of all rules of a grammar; the rules are replaced in place. The language does not change.
        budget: Counts the steps of work. An exhausted budget raises LimitExceededError.
    """
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
    """Return whether all calls in these rules are tail calls of one another."""
    for number in members:
        automaton = network.rules[number]
        budget.spend(len(automaton))
        for moves in automaton.edges:
            if any(isinstance(label, int) and not (label in members and automaton.ends(to)) for label, to in moves):
                return False
    return True


def _inlined(network: TransitionNetwork, number: int, regular: set[int], budget: Budget) -> RuleNfa:
    """Return the rule with the rules of `regular` in place of their calls, or unchanged if the result is too large."""
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
    """Return the rule with all recursion among `members` written as jumps, or raise TooLargeError."""
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

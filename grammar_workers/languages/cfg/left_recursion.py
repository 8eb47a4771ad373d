"""Elimination of left recursion, direct or mutual: the left-corner transform on automata.

    sum: sum "+" term | term      becomes      sum: term ("+" term)*

Let C be the set of the rules through which a rule A begins with itself, A included. A becomes one automaton that
contains a copy of each rule of C:

- It starts in all rules of C, with moves that are not calls of rules of C.
- After a text of a rule B of C, it continues in each rule of C that begins with a call of B, after this call.
- After a text of A, it may end.

Precondition: no called rule matches the empty text (`rtn.remove_empty_texts`).
"""

from __future__ import annotations

from grammar_workers.budget import Budget
from grammar_workers.dfa.reached import reached
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, determinize_rule
from grammar_workers.languages.cfg.scc import components


def remove_left_recursion(network: TransitionNetwork, budget: Budget) -> None:
    """Rewrite every rule that can begin with itself, directly or through other rules. The language does not change.

    For example, `sum: sum "+" term | term` becomes `sum: term ("+" term)*`. A rule that becomes too large raises
    LimitExceededError.

    Args:
        network: Automata of all rules of a grammar; the rules are replaced in place. No called rule may match the empty
            text. Rules that are no longer called are replaced by automata that match nothing.
        budget: Counts the steps of work.
    """
    begins = [
        list(dict.fromkeys(label for label, _ in automaton.edges[0] if isinstance(label, int)))
        for automaton in network.rules
    ]
    component_of: dict[int, frozenset[int]] = {}
    for component in components(begins):
        if len(component) > 1 or component[0] in begins[component[0]]:
            members = frozenset(component)
            component_of.update((number, members) for number in component)
    if not component_of:
        return
    rewritten = list(network.rules)

    def calls(number: int) -> list[int]:
        if number in component_of:
            rewritten[number] = _rewritten(network, number, component_of[number], budget)
        return rewritten[number].calls()

    called = reached([network.start], calls)
    # Rules that are only called at the beginning of other rules are now contained in these rules.
    for number in range(len(rewritten)):
        if number not in called:
            rewritten[number] = RuleNfa([[]], [[]], set())
    network.rules = rewritten


def _rewritten(network: TransitionNetwork, number: int, component: frozenset[int], budget: Budget) -> RuleNfa:
    result = RuleNfa()
    result.state()
    bases = {each: network.rules[each].copy_into(result) for each in component}
    budget.spend(len(result))
    # For each rule, the states after a call of it at the beginning of a rule of the component.
    after: dict[int, list[int]] = {each: [] for each in component}
    for each, base in bases.items():
        for label, target in network.rules[each].edges[0]:
            if isinstance(label, int) and label in component:
                after[label].append(base + target)
            else:
                result.edges[0].append((label, base + target))
    for each, base in bases.items():
        for state in network.rules[each].finals:
            result.silent[base + state] += after[each]
            if each == number:
                result.finals.add(base + state)
            budget.spend(1 + len(after[each]))
    return determinize_rule(network.names[number], result, budget)

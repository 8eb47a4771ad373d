"""Left recursion, direct or mutual, turned into repetition: the left-corner transform on automata.

    sum: sum "+" term | term      becomes      sum: term ("+" term)*

A rule A that begins with itself through the rules C = {A, B, ...} is matched by first matching something of a rule of C
that begins otherwise, and then, whenever a rule B of C is complete, going on with what follows B at the beginning of a
rule of C; when the complete rule is A, the text may end. So A becomes one automaton made of a copy of each rule of C.
Needs rules that match no empty text (`network.remove_empty_texts`).
"""

from __future__ import annotations

from grammar_workers.budget import Budget
from grammar_workers.dfa.reached import reached
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, determinize_rule
from grammar_workers.languages.cfg.scc import components


def remove_left_recursion(network: TransitionNetwork, budget: Budget) -> None:
    """Rewrite every rule that can begin with itself and is still called afterwards."""
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
    # What is only begun with, and never called otherwise, lives on inside the others.
    for number in range(len(rewritten)):
        if number not in called:
            rewritten[number] = RuleNfa([[]], [[]], set())
    network.rules = rewritten


def _rewritten(network: TransitionNetwork, number: int, component: frozenset[int], budget: Budget) -> RuleNfa:
    result = RuleNfa()
    result.state()
    bases = {each: network.rules[each].copy_into(result) for each in component}
    budget.spend(len(result))
    # What may follow a complete rule at the beginning of another.
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

"""What the formats of a structural tag call: JSON values, each a rule, or rules of recursive grammars; not both."""

from __future__ import annotations

import dataclasses

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.cfg.reading import rule_graph
from grammar_workers.languages.cfg.rtn import TransitionNetwork, remove_dead
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.languages.cfg.rule_nfa import Label, RuleNfa, determinize_rule
from grammar_workers.languages.cfg.syntax import RuleName
from grammar_workers.languages.tags.automaton import Determinizer, FormatNfa, Value
from grammar_workers.languages.tags.lower import ValueRule, lower
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass
class Values:
    """What has been found while the automaton of a format was laid out."""

    json: list[ValueRule] = dataclasses.field(default_factory=list)
    grammars: list[str] = dataclasses.field(default_factory=list)
    """Where the recursive grammars stand."""
    rules: list[RuleNfa] = dataclasses.field(default_factory=list)
    names: list[RuleName] = dataclasses.field(default_factory=list)

    def add_json(self, entry: int, pointer: str, *, is_open: bool = False) -> Value:
        """The number of a JSON value; `is_open` as in `ContentFormat`."""
        self.json.append(ValueRule(entry, pointer, is_open))
        return len(self.json) - 1

    def add_grammar(self, network: TransitionNetwork, pointer: str) -> RuleNfa:
        """Takes the rules of a recursive grammar; returns its first one, whose calls have their numbers here."""
        base = len(self.rules)
        for rule in network.rules:
            moves = [[(_moved(label, base), target) for label, target in edges] for edges in rule.edges]
            self.rules.append(RuleNfa(moves, rule.silent, rule.finals))
        self.names += network.names
        self.grammars.append(pointer)
        return self.rules[base + network.start]

    def graph(self, nfa: FormatNfa, restriction: Dfa | None, limits: Limits) -> RuleGraph:
        """The rule graph of formats with recursive grammars; UnsupportedFeatureError beside JSON or tokens."""
        if self.json or any(nfa.tokens) or nfa.boundaries:
            what = "a JSON Schema" if self.json else "text with a limit in tokens" if nfa.boundaries else "tokens"
            message = f"a recursive grammar together with {what}: write rules that do not contain themselves"
            raise UnsupportedFeatureError(message, pointer=self.grammars[0])
        budget, name = budget_of(limits), RuleName("tags")
        start = determinize_rule(name, nfa, budget)
        network = TransitionNetwork([*self.names, name], [*self.rules, start], len(self.rules))
        remove_dead(network, budget)
        return rule_graph(network, restriction, limits)

    def entry(self, nfa: FormatNfa, vocabulary: Vocabulary, builder: PushdownBuilder, budget: Budget) -> int:
        """The first pushdown state of formats without recursive grammars."""
        moves = dict(enumerate(rule.moves(builder) for rule in self.json))
        first_bytes = {value: frozenset(row) for value, row in moves.items()}
        automaton = Determinizer(nfa, vocabulary, first_bytes, budget).run()
        return lower(automaton, dict(enumerate(self.json)), builder)


def _moved(label: Label, base: int) -> Label:
    return label + base if isinstance(label, int) else label

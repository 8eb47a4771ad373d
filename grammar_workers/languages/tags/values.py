"""Collection of the rules that the automaton of a structural tag calls: JSON values, and rules of grammars."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.reached import reached
from grammar_workers.languages.cfg.reading import rule_graph
from grammar_workers.languages.cfg.rtn import TransitionNetwork, remove_dead
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, determinize_rule
from grammar_workers.languages.cfg.syntax import PlacedFormat, RuleName
from grammar_workers.languages.tags.automaton import Determinizer, FormatNfa, Value
from grammar_workers.languages.tags.lower import GrammarRule, Lowering, ValueRule, first_bytes
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass
class Values:
    """Collection of the rules that a structural tag calls, filled while its automaton is constructed.

    Attributes:
        rules: JSON values and rules of grammars; the number of a value (called rule) is its index.
    """

    rules: list[ValueRule | GrammarRule] = dataclasses.field(default_factory=list)

    def add_json(self, entry: int, pointer: str, *, is_open: bool = False) -> Value:
        """Add a JSON value.

        Args:
            entry: Number of the state of the pushdown automaton in which the value begins.
            pointer: JSON Pointer of the value, for errors.
            is_open: True if the tag has no end text after the value. A number then includes all characters that can
                continue it.

        Returns:
            The number of the value, an index into `rules`.
        """
        self.rules.append(ValueRule(entry, pointer, is_open))
        return len(self.rules) - 1

    def add_grammar(
        self, network: TransitionNetwork, pointer: str, formats: tuple[PlacedFormat, ...] = ()
    ) -> GrammarRule:
        """Add the called rules of a grammar.

        Args:
            network: Automata of the rules; not changed.
            pointer: JSON Pointer of the grammar, for errors.
            formats: The formats (nodes of structural tags) that reserved characters of the grammar represent.

        Returns:
            The start rule, which is not called.
        """
        called = reached(network.rules[network.start].calls(), lambda number: network.rules[number].calls())
        numbers = {number: len(self.rules) + index for index, number in enumerate(called)}

        def rule(number: int) -> GrammarRule:
            source = network.rules[number]
            moves = [
                [(numbers[label] if isinstance(label, int) else label, target) for label, target in edges]
                for edges in source.edges
            ]
            automaton = RuleNfa(moves, source.silent, source.finals)
            return GrammarRule(network.names[number], pointer, automaton, formats)

        self.rules += map(rule, numbers)
        return rule(network.start)

    def needs_stacks(self, automata: Mapping[Value, FormatNfa], nfa: FormatNfa) -> bool:
        """Return whether the tag calls only rules of grammars, so that sets of stacks can follow all its readings.

        Args:
            automata: The automaton of each rule of a grammar.
            nfa: The automaton of the structural tag.
        """
        plain = not any(each.tokens or each.boundaries for each in (nfa, *automata.values()))
        return bool(automata) and len(automata) == len(self.rules) and plain

    def graph(self, nfa: FormatNfa, restriction: Dfa | None, limits: Limits) -> RuleGraph:
        """Compile a structural tag for which `needs_stacks` is true to a rule graph over bytes.

        An exceeded limit raises LimitExceededError. A tag that matches no text raises UnsatisfiableError.

        Args:
            nfa: The automaton of the structural tag.
            restriction: DFA of the permitted texts. None: no further restriction.
            limits: Bounds on states and on steps of work.

        Returns:
            The rule graph.
        """
        budget, name = budget_of(limits), RuleName("tags")
        rules = [rule for rule in self.rules if isinstance(rule, GrammarRule)]
        automata = [*(rule.automaton for rule in rules), determinize_rule(name, nfa, budget)]
        network = TransitionNetwork([*(rule.name for rule in rules), name], automata, len(rules))
        remove_dead(network, budget)
        return rule_graph(network, restriction, limits)

    def entry(
        self,
        nfa: FormatNfa,
        automata: Mapping[Value, FormatNfa],
        vocabulary: Vocabulary,
        builder: PushdownBuilder,
        budget: Budget,
    ) -> int:
        """Append a structural tag to a pushdown automaton.

        An unsupported tag raises UnsupportedFeatureError. A tag that matches no text raises UnsatisfiableError. An
        exceeded limit raises LimitExceededError.

        Args:
            nfa: The automaton of the structural tag.
            automata: The automaton of each rule of a grammar.
            vocabulary: The tokens of the model.
            builder: The pushdown automaton to extend. It already contains the JSON values.
            budget: Counts the steps of work, and has the limits.

        Returns:
            Number of the first state of the tag in `builder`.
        """
        begins = first_bytes(self.rules, automata, builder)
        deterministic = {
            number: Determinizer(each, vocabulary, begins, budget).deterministic()
            for number, each in {**automata, len(self.rules): nfa}.items()
        }
        return Lowering(self.rules, deterministic, list(begins), vocabulary, builder).run()

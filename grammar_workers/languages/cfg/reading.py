"""The front end of `{"type": "grammar"}`: from text to a character automaton or a rule graph."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.cfg.byte_rules import ByteRules
from grammar_workers.languages.cfg.gbnf import read_gbnf
from grammar_workers.languages.cfg.inline_regular import inline_regular
from grammar_workers.languages.cfg.intersection import intersect
from grammar_workers.languages.cfg.lark import read_lark
from grammar_workers.languages.cfg.lark_context import MARKERS, erase
from grammar_workers.languages.cfg.left_recursion import remove_left_recursion
from grammar_workers.languages.cfg.rtn import TransitionNetwork, build, remove_empty_texts
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, to_characters
from grammar_workers.languages.cfg.syntax import FORMATS, PlacedFormat
from grammar_workers.options import Limits

Syntax = Literal["gbnf", "lark"]

_READERS = {"gbnf": read_gbnf, "lark": read_lark}
_GBNF_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+\s*::=", re.MULTILINE)


def guess_syntax(text: str) -> Syntax:
    """The syntax of a grammar that names none: GBNF when a line defines a rule with `::=`, Lark otherwise."""
    return "gbnf" if _GBNF_RULE.search(text) else "lark"


@dataclasses.dataclass(frozen=True)
class RuleOfFormats:
    """The automaton of a grammar with formats in it: those of its characters from `FIRST_FORMAT` on stand for them."""

    rule: RuleNfa
    formats: tuple[PlacedFormat, ...]


def read_grammar(
    text: str, syntax: Syntax, alphabet: Charset, limits: Limits
) -> Dfa | TransitionNetwork | RuleOfFormats:
    """The automaton of a grammar: over characters when its language is found to be regular, else rules with calls.

    It is restricted to texts over `alphabet`. Raises GrammarError with the position in `text`.
    """
    budget = budget_of(limits)
    grammar = _READERS[syntax](text, limits)
    if grammar.formats:
        alphabet = charset.subtract(alphabet, FORMATS)
    with grammar.named(grammar.start).limits():
        if grammar.context is None:
            network = build(grammar, alphabet, budget)
        else:
            network = build(grammar, charset.subtract(alphabet, MARKERS), budget)
            remove_empty_texts(network, budget)
            network = intersect(network, grammar.context, budget)
            erase(network, grammar.markers, budget)
        remove_empty_texts(network, budget)
        remove_left_recursion(network, budget)
        inline_regular(network, budget)
    start = network.rules[network.start]
    if not grammar.formats:
        return network if start.calls() else to_characters(start)
    if start.calls():
        raise UnsupportedFeatureError(
            "tokens and `%json` in a grammar whose rules contain themselves, or are too large to be written into one "
            "another; write rules that do not contain themselves",
            position=grammar.formats[0].position,
        )
    return RuleOfFormats(start, grammar.formats)


def rule_graph(network: TransitionNetwork, automaton: Dfa | None, limits: Limits) -> RuleGraph:
    """The bytes of what `network` and, where given, `automaton` allow; raises GrammarError."""
    budget = budget_of(limits)
    with network.names[network.start].limits():
        if automaton is not None:
            network = intersect(network, automaton, budget)
            inline_regular(network, budget)
        graph = ByteRules(network, budget).build()
        shortest, _ = graph.endings[graph.first]
        if shortest > limits.max_steps:
            raise LimitExceededError(
                f"the shortest text of the grammar has more than {limits.max_steps} bytes (fixed limit max_steps)"
            )
        return graph

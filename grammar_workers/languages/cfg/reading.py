"""Front end of `{"type": "grammar"}`: compiles grammar text to a DFA over characters or to a rule graph."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg.byte_rules import ByteRules
from grammar_workers.languages.cfg.gbnf import read_gbnf
from grammar_workers.languages.cfg.inline_regular import inline_regular
from grammar_workers.languages.cfg.intersection import intersect
from grammar_workers.languages.cfg.lark import read_lark
from grammar_workers.languages.cfg.lark_context import MARKERS
from grammar_workers.languages.cfg.left_recursion import remove_left_recursion
from grammar_workers.languages.cfg.rtn import TransitionNetwork, build, remove_empty_texts
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.languages.cfg.rule_nfa import to_characters
from grammar_workers.languages.cfg.syntax import FORMAT_CHARACTERS, PlacedFormat
from grammar_workers.options import Limits

Syntax = Literal["gbnf", "lark"]

_READERS = {"gbnf": read_gbnf, "lark": read_lark}
_GBNF_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_-]+\s*::=", re.MULTILINE)


def guess_syntax(text: str) -> Syntax:
    """Return the notation of a grammar text: `gbnf` if a line defines a rule with `::=`, else `lark`.

    Args:
        text: The grammar text. It need not be valid.
    """
    return "gbnf" if _GBNF_RULE.search(text) else "lark"


@dataclasses.dataclass(frozen=True)
class GrammarOfFormats:
    """Network of a grammar that contains tokens or JSON values (*formats* of structural tags).

    Each format is represented by one reserved character, `chr(FIRST_FORMAT + i)` for `formats[i]`.

    Attributes:
        network: The automata of the rules over characters and reserved characters.
        formats: The formats, with their positions in the grammar text.
    """

    network: TransitionNetwork
    formats: tuple[PlacedFormat, ...]


def read_grammar(
    text: str, syntax: Syntax, alphabet: Charset, limits: Limits
) -> Dfa | TransitionNetwork | GrammarOfFormats:
    """Parse and compile a context-free grammar, restricted to the characters that can be generated.

    An error in the text raises GrammarError with the position in `text`. If no text over `alphabet` matches the
    grammar, UnsatisfiableError is raised.

    Args:
        text: The grammar text.
        syntax: Notation of the text.
        alphabet: The characters that the vocabulary can tokenize.
        limits: Bounds on states and on steps of work.

    Returns:
        A GrammarOfFormats if the grammar contains tokens or JSON values. Otherwise a Dfa over characters if the
        language is found to be regular, else a TransitionNetwork (one automaton per rule, with calls).
    """
    budget = budget_of(limits)
    grammar = _READERS[syntax](text, limits)
    if grammar.formats:
        alphabet = charset.subtract(alphabet, FORMAT_CHARACTERS)
    with grammar.named(grammar.start).limits():
        if grammar.context is None:
            network = build(grammar, alphabet, budget)
        else:
            network = build(grammar, charset.subtract(alphabet, MARKERS), budget)
            remove_empty_texts(network, budget)
            network = intersect(network, grammar.context, budget, erased=MARKERS)
        remove_empty_texts(network, budget)
        remove_left_recursion(network, budget)
        inline_regular(network, budget)
    if grammar.formats:
        return GrammarOfFormats(network, grammar.formats)
    start = network.rules[network.start]
    return network if start.calls() else to_characters(start)


def rule_graph(network: TransitionNetwork, automaton: Dfa | None, limits: Limits) -> RuleGraph:
    """Compile the network of a recursive grammar (one automaton per rule, with calls) to a rule graph over bytes.

    If no text is accepted by both the network and the automaton, UnsatisfiableError is raised.

    Args:
        network: The network that `read_grammar` returned; not changed.
        automaton: DFA over characters that must accept the texts, too. None: no further restriction.
        limits: Bounds on states and on steps of work.

    Returns:
        The rule graph of the texts that `network` and `automaton` accept.

    Raises:
        LimitExceededError: The shortest text has more than `max_steps` bytes, or the graph is too large.
    """
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

"""Compiler of whole specifications: it calls the front end of each part and intersects the parts of an `all_of`.

The table shows how two parts are combined. A part is *regular* if it becomes a DFA over characters.

regular x regular           product of DFAs over characters; a list of choices is filtered by the other parts
regular x grammar           product of the rules of one recursive grammar and a DFA over characters; if the grammar
                            contains tokens or JSON, as for a structural tag
JSON x JSON                 conjunction of the schemas
JSON x banned words         restriction of every string and property name; if a word can also occur outside strings,
                            also a product with a DFA over the whole text
JSON x regular              product of the pushdown automaton and a DFA
structural tag x regular    product of the pushdown automaton and a DFA
token IDs x any             rejected (positions and automata that list token IDs)
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from grammar_workers.budget import budget_of, limits_at
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages import automaton as automata
from grammar_workers.languages.cfg.reading import rule_graph
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.languages.compilation import Compilation, located
from grammar_workers.languages.json_values import JsonValues
from grammar_workers.languages.parts import (
    EMPTY,
    Parts,
    choices,
    flattened,
    inside_of,
    intersection,
    over_tokens,
    read_parts,
    spellable_text,
)
from grammar_workers.languages.positions import token_positions
from grammar_workers.languages.regex.counters import NotCountableError, counted_text
from grammar_workers.languages.substring import spans
from grammar_workers.languages.tags.construct import Construction
from grammar_workers.languages.tags.leaves import TagLeaves
from grammar_workers.languages.tags.triggers import format_of
from grammar_workers.pushdown import intersect as product
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.spans import span_states
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.pushdown.trie import TextTrie
from grammar_workers.specification import (
    AutomatonSpecification,
    ChoiceSpecification,
    GrammarSpecification,
    JsonObjectSpecification,
    JsonSchemaSpecification,
    RegexSpecification,
    SubstringSpecification,
)


class Combination:
    """Compiler of one specification. It calls the front ends and intersects the parts of an `all_of`.

    Args:
        compilation: Vocabulary, options and limits. Its `builder` receives the states of the pushdown automaton, and
            its lists receive warnings.
    """

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._vocabulary = compilation.vocabulary
        self._limits = compilation.limits
        self._builder = compilation.builder
        self._json = JsonValues(compilation)

    def pushdown(self, specification: GrammarSpecification) -> PushdownAutomaton | RuleGraph:
        """Compile a whole specification. Call this method once.

        A specification that is rejected raises GrammarError with the JSON Pointer of the part that caused the error.

        Args:
            specification: The validated specification.

        Returns:
            A pushdown automaton over bytes. If the specification contains a context-free grammar whose recursion cannot
            be removed, a rule graph instead: automata of grammar rules that call each other.
        """
        parts = read_parts(self._compilation, "", specification)
        # An exceeded limit without a pointer gets that of the first part that is not JSON. JSON values set their own
        # pointers.
        for pointer, part in flattened("", specification):
            if not isinstance(part, JsonSchemaSpecification | JsonObjectSpecification):
                with limits_at(*inside_of(part, self._limits, pointer)):
                    return self._pushdown(parts)
        return self._pushdown(parts)

    def _pushdown(self, parts: Parts) -> PushdownAutomaton | RuleGraph:
        beyond = parts.beyond_regular()
        if len(beyond) > 1:
            raise UnsupportedFeatureError(f"{beyond[1][1]} together with {beyond[0][1]}", pointer=beyond[1][0])
        if parts.recursive:
            automaton = intersection(self._compilation, parts) if parts.regular or parts.automata else None
            pointer, network = parts.recursive[0]
            with located(pointer):
                return rule_graph(network, automaton, self._limits)
        if not beyond:
            return self._builder.build(self._regular_entry(parts))
        if parts.tokens:
            return self._token_automaton(parts)
        if parts.tags:
            pointer, tag = parts.tags[0]
            self._json.distinct = not parts.regular and not parts.automata
            leaves = TagLeaves(self._compilation, self._json)
            construction = Construction(self._vocabulary, self._limits, leaves)
            nfa, rules = construction.run(*format_of(tag, pointer))
            if leaves.values.needs_stacks(rules, nfa):
                restriction = intersection(self._compilation, parts) if parts.regular or parts.automata else None
                return leaves.values.graph(nfa, restriction, self._limits)
            entry = leaves.values.entry(nfa, rules, self._vocabulary, self._builder, budget_of(self._limits))
        else:
            entry, parts = self._json.entry(parts)
        pushdown = self._builder.build(entry)
        if not parts.regular and not parts.automata:
            return pushdown
        if len(pushdown.boundaries):
            where = parts.regular[0][0] if parts.regular else parts.tags[0][0]
            raise UnsupportedFeatureError("another specification beside text with a limit in tokens", pointer=where)
        automaton = intersection(self._compilation, parts)
        try:
            return product.intersect(pushdown, automaton, self._limits)
        except UnsatisfiableError:
            if self._compilation.doubt:
                raise UnsupportedFeatureError(
                    f"no text is certain to match all specifications: {self._compilation.doubt}"
                ) from None
            raise

    # -- regular -----------------------------------------------------------------------------------------------------

    def _regular_entry(self, parts: Parts) -> int:
        lists = [(pointer, part) for pointer, part in parts.regular if isinstance(part, ChoiceSpecification)]
        if len(parts.regular) == 1 and not parts.automata:
            pointer, only = parts.regular[0]
            if isinstance(only, SubstringSpecification):
                with located(pointer):
                    return span_states(self._builder, spans(only, self._limits, self._vocabulary.alphabet))
        if not lists:
            try:
                with budget_of(self._limits).share(2):
                    automaton = intersection(self._compilation, parts)
            except LimitExceededError:
                entry = self._counted_entry(parts)
                if entry is None:
                    raise
                return entry
            return StringLowering(self._builder).raw_states(automaton, {})[0]
        others = [
            spellable_text(self._compilation, pointer, part)
            for pointer, part in parts.regular
            if not isinstance(part, ChoiceSpecification)
        ]
        return self._choice_entry(lists, [*others, *parts.automata])

    def _counted_entry(self, parts: Parts) -> int | None:
        """Compile a regex with the counter in place of written-out counts, or return None if that is impossible."""
        if len(parts.regular) > 1 or parts.automata or not isinstance(parts.regular[0][1], RegexSpecification):
            return None
        with contextlib.suppress(NotCountableError, LimitExceededError):
            entry = counted_text(parts.regular[0][1].pattern, self._vocabulary.alphabet, self._builder, self._limits)
            if entry is None:
                raise UnsatisfiableError(EMPTY)
            return entry
        return None

    def _choice_entry(self, lists: Sequence[tuple[str, ChoiceSpecification]], automata: Sequence[Dfa]) -> int:
        remaining: dict[str, None] | None = None
        for pointer, part in lists:
            with located(pointer):
                found = choices(part)
            remaining = dict.fromkeys(c for c in found if remaining is None or c in remaining)
        assert remaining is not None
        spellable = self._vocabulary.spellable
        entries = [
            (choice.encode(), index)
            for index, choice in enumerate(remaining)
            if (spellable is None or spellable.issuperset(choice)) and all(a.classify(choice) for a in automata)
        ]
        if not entries:
            raise UnsatisfiableError(
                "no choice matches all specifications (`banned_words` count as one); change one of them"
                if automata or len(lists) > 1
                else "the vocabulary can spell none of the choices"
            )

        return TextTrie(self._builder, lambda _: 0, exit_label=0).add(sorted(entries))

    def _token_automaton(self, parts: Parts) -> PushdownAutomaton:
        pointer, part = parts.tokens[0]
        if parts.regular or parts.automata:
            raise UnsupportedFeatureError(f"{over_tokens(part)} together with another specification", pointer=pointer)
        with located(pointer):
            if isinstance(part, AutomatonSpecification):
                entry = automata.token_automaton(part, self._vocabulary, self._builder, self._limits)
            else:
                entry = token_positions(part.allowed, self._vocabulary, self._builder, self._limits)
            return self._builder.build(entry)

"""The parts of a specification put together: front ends yield DFAs over characters or rules, `all_of` intersects them.

regular x regular           product of character automata; a choice is filtered by the rest
regular x grammar           product of the rules of one recursive grammar and a character automaton
JSON x JSON                 conjunction of the schemas
JSON x banned words         every string and name of the document is restricted; where a word could also match
                            outside of strings, the raw text, too
JSON x regular              product of the pushdown automaton and a byte automaton
structural tag x regular    the same
positions, automata over    combine with nothing
token ids
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
from grammar_workers.pushdown.trie import trie_of_texts
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
    """One compilation: front ends write into the builder that they share."""

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._vocabulary = compilation.vocabulary
        self._limits = compilation.limits
        self._builder = compilation.builder
        self._json = JsonValues(compilation)

    def pushdown(self, specification: GrammarSpecification) -> PushdownAutomaton | RuleGraph:
        """The byte automaton of a whole specification: a rule graph where a grammar is truly recursive."""
        parts = read_parts(self._compilation, "", specification)
        # What no part says of itself is due to the first one that is no JSON, whose values say where they stand.
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
            formats = construction.run(*format_of(tag, pointer))
            if leaves.values.grammars:
                restriction = intersection(self._compilation, parts) if parts.regular or parts.automata else None
                return leaves.values.graph(formats, restriction, self._limits)
            entry = leaves.values.entry(formats, self._vocabulary, self._builder, budget_of(self._limits))
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
        """A regular expression that is too large with its counts written out; None where they must be."""
        if len(parts.regular) > 1 or parts.automata or not isinstance(parts.regular[0][1], RegexSpecification):
            return None
        with contextlib.suppress(NotCountableError, LimitExceededError):
            entry = counted_text(
                parts.regular[0][1].pattern,
                self._vocabulary.alphabet,
                self._builder,
                self._limits,
            )
            if entry is None:
                raise UnsatisfiableError("no text matches the pattern")
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
                "no choice matches all specifications"
                if automata or len(lists) > 1
                else "the vocabulary can spell none of the choices"
            )

        return trie_of_texts(self._builder, sorted(entries), lambda _: 0, exit_label=0)

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

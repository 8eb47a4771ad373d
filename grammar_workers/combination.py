"""Puts the parts of a specification together: front ends yield character automata or rules, `all_of` intersects them.

regular x regular   product of character automata; a choice is filtered by the rest
regular x grammar   product of the rules of one recursive grammar and a character automaton
JSON x JSON         conjunction of the schemas
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grammar_workers.character_automaton import CharacterAutomaton, intersect, restrict
from grammar_workers.errors import GrammarError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.grammar.reading import read_grammar, rule_graph
from grammar_workers.grammar.rule_graph import RuleGraph
from grammar_workers.json_schema.containers import Rule
from grammar_workers.json_schema.emitter import Emitter
from grammar_workers.json_schema.formula import FormulaPool, JsonType
from grammar_workers.json_schema.reader import SchemaReader
from grammar_workers.json_schema.rules import Rules
from grammar_workers.literal_tree import literal_tree
from grammar_workers.machine import Machine, MachineBuilder
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.regular import RegularSpecification, character_automaton, choices
from grammar_workers.specification import (
    AllOfSpecification,
    ChoiceSpecification,
    GrammarSpecification,
    GrammarTextSpecification,
    JsonObjectSpecification,
    JsonSchemaSpecification,
)
from grammar_workers.string_machine import StringMachine
from grammar_workers.vocabulary import Vocabulary

JsonSpecification = JsonSchemaSpecification | JsonObjectSpecification
Part = tuple[str, GrammarSpecification]
"""A specification and its JSON Pointer inside the whole one."""
RegularPart = tuple[str, RegularSpecification]


class Combination:
    """One compilation: front ends write into one builder, and `notes` collects what they ignored."""

    def __init__(
        self, vocabulary: Vocabulary, resources: Mapping[str, Any], options: GrammarOptions, limits: Limits
    ) -> None:
        self._vocabulary = vocabulary
        self._resources = resources
        self._options = options
        self._limits = limits
        self._builder = MachineBuilder(limits)
        self.notes: list[str] = []

    def machine(self, specification: GrammarSpecification) -> Machine | RuleGraph:
        """The byte automaton of a whole specification: a rule graph where a grammar is truly recursive."""
        parts = _flatten("", specification)
        regular = [(pointer, part) for pointer, part in parts if isinstance(part, RegularSpecification)]
        others = [(pointer, part) for pointer, part in parts if not isinstance(part, RegularSpecification)]
        if not others:
            return self._builder.build(self._regular_entry(regular))
        if any(isinstance(part, GrammarTextSpecification) for _, part in others):
            return self._grammar(others, regular)
        for pointer, part in others:
            if not isinstance(part, JsonSpecification):
                raise UnsupportedFeatureError(f"{part.type} is not supported here", pointer=pointer)
        if regular:
            raise UnsupportedFeatureError(
                f"{regular[0][1].type} together with {others[0][1].type}", pointer=regular[0][0]
            )
        entry = self._json_entry(others, regular)
        return self._builder.build(entry)

    # -- regular -----------------------------------------------------------------------------------------------------

    def automaton(self, parts: Sequence[RegularPart]) -> CharacterAutomaton:
        """The texts that all of these regular parts allow and the vocabulary can spell."""
        automata = []
        for pointer, part in parts:
            with located(pointer):
                automata.append(character_automaton(part, self._limits))
        automaton = intersect(automata, self._limits)
        spellable = self._vocabulary.spellable
        return (
            automaton if spellable is None else restrict(automaton, tuple((ord(c), ord(c)) for c in sorted(spellable)))
        )

    def _regular_entry(self, parts: Sequence[RegularPart]) -> int:
        lists = [(pointer, part) for pointer, part in parts if isinstance(part, ChoiceSpecification)]
        rest = [(pointer, part) for pointer, part in parts if not isinstance(part, ChoiceSpecification)]
        if lists:
            return self._choice_entry(lists, [self.automaton([part]) for part in rest])
        automaton = self.automaton(rest)
        if automaton.is_empty:
            raise UnsatisfiableError(
                "no text matches the pattern" if len(parts) == 1 else "no text matches all specifications"
            )
        return StringMachine(self._builder).raw_text(automaton)

    def _choice_entry(
        self, lists: Sequence[tuple[str, ChoiceSpecification]], automata: Sequence[CharacterAutomaton]
    ) -> int:
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

        def finish(_: int) -> None:
            self._builder.state(exit_label=0)

        return literal_tree(self._builder, sorted(entries), finish, exit_label=0)

    # -- grammars as text --------------------------------------------------------------------------------------------

    def _grammar(self, parts: Sequence[Part], regular: Sequence[RegularPart]) -> Machine | RuleGraph:
        """At most one recursive grammar, and whatever else there is if that is regular."""
        automata = [self.automaton(regular)] if regular else []
        recursive = None
        for pointer, part in parts:
            if not isinstance(part, GrammarTextSpecification):
                raise UnsupportedFeatureError(f"{part.type} together with grammar", pointer=pointer)
            with located(pointer):
                found = read_grammar(part.text, part.syntax, self._vocabulary.spellable, self._limits)
            if isinstance(found, CharacterAutomaton):
                automata.append(found)
            elif recursive is None:
                recursive = found
            else:
                raise UnsupportedFeatureError("a second recursive grammar", pointer=pointer)
        automaton = intersect(automata, self._limits) if automata else None
        if recursive is not None:
            return rule_graph(recursive, automaton, self._limits)
        assert automaton is not None
        if automaton.is_empty:
            raise UnsatisfiableError("no text matches all specifications")
        return self._builder.build(StringMachine(self._builder).raw_text(automaton))

    # -- JSON --------------------------------------------------------------------------------------------------------

    def _json_entry(self, parts: Sequence[Part], regular: Sequence[Part]) -> int:
        """The rule of the values that all of these JSON specifications allow."""
        pool = FormulaPool()
        formulas = []
        for pointer, part in parts:
            if isinstance(part, JsonObjectSpecification):
                formulas.append(pool.types(JsonType.OBJECT))
                continue
            assert isinstance(part, JsonSchemaSpecification)
            reader = SchemaReader(part.json_schema, self._resources, pool, self._options, self._limits)
            with located(pointer, "/schema"):
                formulas.append(reader.read())
            self.notes += reader.notes
        root = Rule(pool.all_of(formulas))
        any_order = self._options.property_order == "any"
        rules = Rules(pool, self._limits, self._vocabulary.spellable, any_order=any_order)
        rules.solve(root)
        self.notes += rules.notes
        return Emitter(rules, self._builder, self._options).emit(root)


def _flatten(pointer: str, specification: GrammarSpecification) -> list[Part]:
    """The parts of an `all_of`, those of nested ones included; of anything else, itself."""
    if not isinstance(specification, AllOfSpecification):
        return [(pointer, specification)]
    return [
        part
        for index, inner in enumerate(specification.specifications)
        for part in _flatten(f"{pointer}/specifications/{index}", inner)
    ]


@contextlib.contextmanager
def located(pointer: str, inside: str = "") -> Iterator[None]:
    """Errors inside point into the whole specification: `pointer` is the part's, `inside` that of its own pointers."""
    try:
        yield
    except GrammarError as error:
        if pointer:
            error.pointer = pointer if error.pointer is None else pointer + inside + error.pointer
        raise

"""JSON values that specifications allow together, with the banned words in them, as one rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grammar_workers.budget import Budget, running
from grammar_workers.dfa.dfa import Dfa, intersect
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.banned_in_json import matters_outside, permitted_strings
from grammar_workers.languages.compilation import Compilation, located
from grammar_workers.languages.json_schema.assertions import FormulaId, JsonType
from grammar_workers.languages.json_schema.emit.emitter import Emitter
from grammar_workers.languages.json_schema.logic import FormulaPool
from grammar_workers.languages.json_schema.read.reader import SchemaReader
from grammar_workers.languages.json_schema.read.unenforced import joined
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.sizes import NotDistinctError
from grammar_workers.languages.json_schema.solve.solver import JSON_CONSTANTS, Constants, Solver
from grammar_workers.languages.parts import Parts, any_text
from grammar_workers.options import GrammarOptions
from grammar_workers.specification import (
    BannedWordsSpecification,
    JsonObjectSpecification,
    JsonSchema,
    JsonSchemaSpecification,
)
from grammar_workers.types import UnenforcedKeyword

_DOUBTS = (
    "some objects are left out: undeclared properties may repeat a name, so only the first surely counts, and where "
    "they must satisfy different things it is not certain which of them do"
)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """JSON parts, of which all hold or `any_of` them, each with its pointer, and how their values are written.

    `permitted` restricts all strings; `inside`: where a schema stands in its part. Without `distinct`, keywords that
    need values or names to be remembered are not enforced.
    """

    parts: Sequence[tuple[str, JsonSchemaSpecification | JsonObjectSpecification]]
    options: GrammarOptions
    permitted: Dfa | None
    constants: Constants
    any_of: bool
    inside: str
    distinct: bool


class JsonValues:
    """The JSON values of one compilation."""

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._limits = compilation.limits
        self.distinct = True
        """Whether the automaton may remember which values and names there have been: no product does."""

    def entry(
        self,
        parts: Parts,
        options: GrammarOptions | None = None,
        *,
        any_of: bool = False,
        inside: str = "/schema",
        constants: Constants = JSON_CONSTANTS,
    ) -> tuple[int, Parts]:
        """The entry state of the values that all JSON parts allow, and the regular parts that the raw text must match.

        With `any_of`, of the values that one of them allows.

        Banned words are taken into account in every string, and are left over only where they matter outside of them.
        """
        banned = [(pointer, part) for pointer, part in parts.regular if isinstance(part, BannedWordsSpecification)]
        permitted = None
        options = self._compilation.options if options is None else options
        if banned:
            if options.escapes == "any":
                # A word could be hidden in an escape, or be one: what is searched has one spelling.
                options = options.model_copy(update={"escapes": "minimal"})
                self._compilation.notes.append(
                    "strings have their minimal spelling beside banned words, not any escape"
                )
            # What the vocabulary spells is for strings to say: it may have an escape and not the character.
            restriction = intersect(
                [any_text(self._compilation, pointer, part) for pointer, part in banned], self._limits
            )
            permitted = permitted_strings(restriction, self._limits)
            outside = [
                (pointer, part.model_copy(update={"words": words}))
                for pointer, part in banned
                if (words := self._outside_of_strings(part, part.words))
            ]
            parts = dataclasses.replace(parts, regular=[*(p for p in parts.regular if p not in banned), *outside])
        distinct = self.distinct and not parts.regular and not parts.automata
        asked = _Asked(parts.json, options, permitted, constants, any_of, inside, distinct)
        told = list(self._compilation.notes), list(self._compilation.unenforced)
        try:
            return self._entry(asked), parts
        except NotDistinctError:
            if options.on_unsupported == "refuse":
                raise
            self._compilation.notes[:], self._compilation.unenforced = told
            return self._entry(dataclasses.replace(asked, distinct=False)), parts

    def _entry(self, asked: _Asked) -> int:
        """The entry state. Where properties in any order exceed a limit, they keep the declared order."""
        if asked.options.property_order == "declared":
            return self._emitted(asked)
        saved = self._compilation.builder.saved()
        told = list(self._compilation.notes), list(self._compilation.unenforced), self._compilation.doubt
        try:
            return self._emitted(asked)
        except LimitExceededError as error:
            self._compilation.builder.restore(saved)
            self._compilation.notes[:], self._compilation.unenforced, self._compilation.doubt = told
            declared = asked.options.model_copy(update={"property_order": "declared"})
            # Steps of its own: the first way has perhaps taken all.
            with running(Budget(self._limits, self._limits.max_steps // 2)):
                entry = self._emitted(dataclasses.replace(asked, options=declared))
            self._compilation.notes.append(f"objects keep the declared order: {error.message}")
            return entry

    def _emitted(self, asked: _Asked) -> int:
        options, distinct, pool = asked.options, asked.distinct, FormulaPool(self._limits)
        formulas = []
        for pointer, part in asked.parts:
            if isinstance(part, JsonObjectSpecification):
                formulas.append(pool.types(JsonType.OBJECT))
                continue
            formulas.append(self.formula(part.json_schema, pool, options, pointer, asked.inside, distinct=distinct))
        root = Demand(pool.canonical(pool.any_of(formulas) if asked.any_of else pool.all_of(formulas)))
        spellable = self._compilation.vocabulary.spellable
        solver = Solver(pool, options, self._limits, spellable, asked.permitted, asked.constants, distinct=distinct)
        with located(asked.parts[0][0], asked.inside):
            try:
                solver.solve(root)
                entry = Emitter(solver, self._compilation.builder, options).emit(root)
            except LimitExceededError as error:
                # Patterns of the schema were compiled when it was read: this one is of a format, or of numbers.
                error.position = None
                raise
        self._compilation.notes += solver.notes
        self._compilation.doubt = self._compilation.doubt or solver.doubt
        if solver.has_doubts:
            self._compilation.notes.append(_DOUBTS)
        self._compilation.notes += [
            f"the property {name!a} is left out: ECMA-262 and Python disagree whether a pattern matches its name"
            for name in solver.disputed_names
        ]
        return entry

    def formula(
        self,
        schema: JsonSchema,
        pool: FormulaPool,
        options: GrammarOptions,
        pointer: str,
        inside: str = "",
        *,
        distinct: bool = False,
    ) -> FormulaId:
        """The formula of a schema; `pointer` and `inside` as in `located`."""
        reader = SchemaReader(schema, self._compilation.resources, pool, options, self._limits, distinct=distinct)
        with located(pointer, inside):
            formula = reader.read()
        self._compilation.notes += reader.notes
        before = f"{pointer}{inside}" if pointer else ""
        found = [UnenforcedKeyword(pointer=before + one["pointer"], reason=one["reason"]) for one in reader.unenforced]
        self._compilation.unenforced = joined(self._compilation.unenforced, found)
        return formula

    def _outside_of_strings(self, part: BannedWordsSpecification, words: list[str]) -> list[str]:
        """Those of the words that can occur in JSON text although they occur in none of its strings."""
        automaton = any_text(self._compilation, "", part.model_copy(update={"words": words}))
        if not matters_outside(automaton, self._limits):
            return []
        if len(words) == 1:
            return words
        half = len(words) // 2
        return self._outside_of_strings(part, words[:half]) + self._outside_of_strings(part, words[half:])

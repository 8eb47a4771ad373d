"""Compiler of the JSON parts of a specification. Schemas and banned words become states of the pushdown automaton.

All JSON parts of an `all_of` (or the alternatives of a structural tag) are joined into one logical formula. The
`solver` and `emitter` of `json_schema` compile it. Banned words restrict every string of the values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Sequence

from grammar_workers.budget import Budget, budget_of, running
from grammar_workers.dfa.dfa import Dfa, intersect
from grammar_workers.errors import GrammarError, LimitExceededError, UnsatisfiableError
from grammar_workers.languages.banned_in_json import matters_outside, permitted_strings
from grammar_workers.languages.compilation import Compilation, located
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.emit.common import CommonStates
from grammar_workers.languages.json_schema.emit.emitter import Emitter
from grammar_workers.languages.json_schema.logic import FormulaPool
from grammar_workers.languages.json_schema.read.reader import SchemaReader
from grammar_workers.languages.json_schema.read.unenforced import joined
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.sizes import NotDistinctError
from grammar_workers.languages.json_schema.solve.solver import JSON_CONSTANTS, Constants, Solver
from grammar_workers.languages.json_schema.unsatisfiable import unsatisfiable_core
from grammar_workers.languages.parts import Parts, any_text
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.escapes import ESCAPE_CHARACTERS
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


@functools.lru_cache(maxsize=64)
def _prebuilt(options: GrammarOptions) -> CommonStates:
    """Return the states with which an automaton of JSON values begins, in a builder of their own."""
    limits = Limits()
    # A budget of its own, because no compilation pays for these states.
    with running(Budget(limits)):
        pool = FormulaPool(limits)
        solver = Solver(pool, options, limits, None, None)
        common = CommonStates(PushdownBuilder(limits), options, any_escape=options.escapes == "any")
        for formula in pool.common:
            root = Demand(pool.canonical(formula))
            solver.solve(root)
            common.values.append(Emitter(solver, common).emit(root))
    return common


@dataclasses.dataclass(frozen=True)
class _Asked:
    """The JSON parts to compile and how to serialize their values.

    `parts` are (pointer, part) pairs: a value must satisfy all of them or, with `any_of`, one of them. `permitted`
    restricts all strings. `inside` is the JSON Pointer of the schema within its part. Without `distinct`, keywords for
    which the automaton would have to store values or names are not enforced. With `explain`, the error of an
    unsatisfiable schema names keywords.
    """

    parts: Sequence[tuple[str, JsonSchemaSpecification | JsonObjectSpecification]]
    options: GrammarOptions
    permitted: Dfa | None
    constants: Constants
    any_of: bool
    inside: str
    distinct: bool
    explain: bool


class JsonValues:
    """Front end that compiles the JSON parts of one compilation.

    Args:
        compilation: Vocabulary, options and limits, the builder to extend, and the lists that collect warnings.

    Attributes:
        distinct: True (default) if the automaton may store the values and names that have occurred, for keywords such
            as `uniqueItems`. Set it to False if the automaton is intersected with another automaton later: a product of
            automata cannot store values.
    """

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._limits = compilation.limits
        # True if the automaton may store which values and names have occurred. A product of automata cannot store
        # them.
        self.distinct = True
        self._states: dict[tuple[bool, GrammarOptions], CommonStates] = {}

    def entry(
        self,
        parts: Parts,
        options: GrammarOptions | None = None,
        *,
        any_of: bool = False,
        inside: str = "/schema",
        constants: Constants = JSON_CONSTANTS,
        explain: bool = True,
    ) -> tuple[int, Parts]:
        """Append states for the JSON values of a specification to the pushdown automaton under construction.

        A schema that is rejected raises GrammarError. Banned words restrict every string. With banned words, the option
        `escapes: any` is changed to `minimal` and a warning is added, because an escape could hide a banned word.

        Args:
            parts: The parts of a specification (members of an `all_of`), at least one of which is a JSON part. Not
                changed.
            options: Options of the grammar. None: the options of the compilation.
            any_of: True to compile the values that satisfy at least one JSON part. False: values satisfy all JSON
                parts.
            inside: JSON Pointer of the schema within its part, for the pointers of errors.
            constants: The texts of null, true and false.
            explain: True if the error of an unsatisfiable schema names keywords, which takes time.

        Returns:
            Number of the entry state in the builder, and a copy of `parts`. The caller must intersect the automaton
            with the regular parts of this copy. The copy contains only the banned words that can also occur outside
            strings.

        Raises:
            NotDistinctError: A keyword such as `uniqueItems` cannot be enforced exactly, and `on_unsupported` is
                `reject`.
        """
        options = self._compilation.options if options is None else options
        permitted, options, parts = self._permitted(parts, options)
        distinct = self.distinct and not parts.regular and not parts.automata
        asked = _Asked(parts.json, options, permitted, constants, any_of, inside, distinct, explain)
        told = list(self._compilation.notes), list(self._compilation.unenforced)
        try:
            return self._entry(asked), parts
        except NotDistinctError:
            if options.on_unsupported == "reject":
                raise
            self._compilation.notes[:], self._compilation.unenforced = told
            return self._entry(dataclasses.replace(asked, distinct=False)), parts

    def _permitted(self, parts: Parts, options: GrammarOptions) -> tuple[Dfa | None, GrammarOptions, Parts]:
        """Return the strings that banned words permit (None: all), and options and parts to compile beside them."""
        banned = [(pointer, part) for pointer, part in parts.regular if isinstance(part, BannedWordsSpecification)]
        if not banned:
            return None, options, parts
        if options.escapes == "any":
            # An escape could hide a word, or be one. With minimal escapes, each string has one form to search.
            options = options.model_copy(update={"escapes": "minimal"})
            self._compilation.notes.append("strings have their minimal spelling beside banned words, not any escape")
        # Characters outside the vocabulary are not excluded here: the vocabulary may have the escape of a character.
        restriction = intersect([any_text(self._compilation, pointer, part) for pointer, part in banned], self._limits)
        permitted = permitted_strings(restriction, self._limits)
        outside = [
            (pointer, part.model_copy(update={"words": words}))
            for pointer, part in banned
            if (words := self._outside_of_strings(part, part.words))
        ]
        parts = dataclasses.replace(parts, regular=[*(p for p in parts.regular if p not in banned), *outside])
        return permitted, options, parts

    def _entry(self, asked: _Asked) -> int:
        """Return the entry state. If properties in any order exceed a limit, compile the declared order instead."""
        if asked.options.property_order == "declared":
            return self._emitted(asked)
        saved = self._compilation.builder.saved()
        told = list(self._compilation.notes), list(self._compilation.unenforced), self._compilation.doubt
        try:
            return self._emitted(asked)
        except LimitExceededError as error:
            self._compilation.builder.restore(saved)
            # They may refer to states that have just been removed.
            self._states.clear()
            self._compilation.notes[:], self._compilation.unenforced, self._compilation.doubt = told
            declared = asked.options.model_copy(update={"property_order": "declared"})
            # A separate budget, because the first attempt may have used all of the other.
            with running(Budget(self._limits, self._limits.max_steps // 2)):
                entry = self._emitted(dataclasses.replace(asked, options=declared))
            self._compilation.notes.append(f"objects keep the declared order: {error.message}")
            return entry

    def _emitted(self, asked: _Asked) -> int:
        schemas = [
            {"type": "object"} if isinstance(part, JsonObjectSpecification) else part.json_schema
            for _, part in asked.parts
        ]
        solver, root = self._solver(asked, schemas)
        try:
            with located(asked.parts[0][0], asked.inside):
                solver.solve(root)
                entry = Emitter(solver, self._common(solver, asked.options)).emit(root)
        except LimitExceededError as error:
            # The position is in a pattern of a format or of numbers, because patterns of the schema were compiled when
            # it was read.
            error.position = None
            raise
        except UnsatisfiableError as error:
            if asked.explain:
                self._explain(error.message, asked, schemas)
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

    def _common(self, solver: Solver, options: GrammarOptions) -> CommonStates:
        """Return the states that the JSON values with these options share."""
        builder = self._compilation.builder
        can_escape = solver.spelling.can_spell(ESCAPE_CHARACTERS)
        if options.escapes == "any" and not can_escape:
            solver.notes.append("strings have their minimal spelling: the vocabulary lacks characters of escapes")
        any_escape = can_escape and options.escapes == "any"
        key = (any_escape, options)
        if key not in self._states:
            if builder.is_empty and solver.is_free:
                self._states[key] = _prebuilt(options).begin(builder)
            else:
                self._states[key] = CommonStates(builder, options, any_escape=any_escape)
        return self._states[key]

    def _solver(self, asked: _Asked, schemas: Sequence[JsonSchema]) -> tuple[Solver, Demand]:
        """Return a solver for the values that all `schemas` (with `any_of`, one of them) allow, and its root demand."""
        options, pool = asked.options, FormulaPool(self._limits)
        formulas = [
            self.formula(schema, pool, options, pointer, asked.inside, distinct=asked.distinct)
            for schema, (pointer, _) in zip(schemas, asked.parts, strict=True)
        ]
        root = Demand(pool.canonical(pool.any_of(formulas) if asked.any_of else pool.all_of(formulas)))
        spellable, distinct = self._compilation.vocabulary.spellable, asked.distinct
        return Solver(pool, options, self._limits, spellable, asked.permitted, asked.constants, distinct=distinct), root

    def _explain(self, message: str, asked: _Asked, schemas: Sequence[JsonSchema]) -> None:
        """Raise UnsatisfiableError with keywords that exclude every value, if the rest of the budget finds them."""

        def satisfiable(reduced: Sequence[JsonSchema]) -> bool:
            # Reading a schema costs few steps, and happens again for each group of keywords.
            budget_of(self._limits).spend(len(json.dumps(reduced)))
            try:
                solver, root = self._solver(asked, reduced)
                solver.solve(root)
            except LimitExceededError:
                raise
            except GrammarError:  # such as a reference into a keyword that is left out
                return True
            return solver.satisfiable(root) or bool(solver.doubt)

        places = [pointer if len(schemas) > 1 else "" for pointer, _ in asked.parts]
        with contextlib.suppress(LimitExceededError), budget_of(self._limits).share(1):
            if core := unsatisfiable_core(schemas, places, satisfiable):
                (index, pointer), keywords = core
                with located(asked.parts[index][0], asked.inside):
                    raise UnsatisfiableError(f"{message}: {keywords}", pointer=pointer)

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
        """Convert a schema to a logical formula in a pool. Warnings are appended to the lists of the compilation.

        A schema that is rejected raises GrammarError.

        Args:
            schema: The JSON Schema.
            pool: The pool (table of logical formulas) to which the formula is added.
            options: Options of the grammar.
            pointer: JSON Pointer of the part of the specification that contains the schema, for errors and warnings.
            inside: JSON Pointer of the schema within that part.
            distinct: True if the automaton may store the values and names that have occurred, for keywords such as
                `uniqueItems`.

        Returns:
            The number of the formula in `pool`.
        """
        reader = SchemaReader(schema, self._compilation.resources, pool, options, self._limits, distinct=distinct)
        with located(pointer, inside):
            formula = reader.read()
        self._compilation.notes += reader.notes
        before = f"{pointer}{inside}" if pointer else ""
        found = [UnenforcedKeyword(pointer=before + one["pointer"], reason=one["reason"]) for one in reader.unenforced]
        self._compilation.unenforced = joined(self._compilation.unenforced, found)
        return formula

    def _outside_of_strings(self, part: BannedWordsSpecification, words: list[str]) -> list[str]:
        """Return those of `words` that can occur in JSON text even if none of its strings contains them."""
        automaton = any_text(self._compilation, "", part.model_copy(update={"words": words}))
        if not matters_outside(automaton, self._limits):
            return []
        if len(words) == 1:
            return words
        half = len(words) // 2
        return self._outside_of_strings(part, words[:half]) + self._outside_of_strings(part, words[half:])

"""The reader of JSON Schemas: every keyword is enforced, refused with its JSON Pointer, or noted as ignored.

With `on_unsupported: report` some are left out (`unenforced`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from grammar_workers.budget import limits_at
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.read.container_keywords import DEPENDENCIES, UNEVALUATED, ContainerKeywords
from grammar_workers.languages.json_schema.read.definitions import Definitions
from grammar_workers.languages.json_schema.read.keywords import ANNOTATIONS, NEAR_KEYWORDS, REFERRING
from grammar_workers.languages.json_schema.read.references import References, Scope
from grammar_workers.languages.json_schema.read.scalar_keywords import ScalarKeywords
from grammar_workers.languages.json_schema.read.schema_keywords import SchemaKeywords
from grammar_workers.languages.json_schema.read.unenforced import Unenforced
from grammar_workers.languages.json_schema.read.unevaluated import Unevaluated
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.types import UnenforcedKeyword

Schema: TypeAlias = Mapping[str, Any] | bool

_OF_OBJECTS = (
    "properties patternProperties additionalProperties required propertyNames minProperties maxProperties "
    + " ".join(DEPENDENCIES)
)
_SCHEMA_STEPS = 32
"""Steps of the budget."""


class SchemaReader:
    """The reader of one document. A schema becomes the conjunction of what its keywords say, group by group.

    `notes` collects what was ignored, for `TokenFSM.notes`; `unenforced` what was left out though it asserts something.
    `distinct`: whether the automaton may remember which values and names there have been.
    """

    def __init__(
        self,
        document: Schema,
        resources: Mapping[str, Any],
        pool: FormulaPool,
        options: GrammarOptions,
        limits: Limits,
        *,
        distinct: bool = True,
    ) -> None:
        self.notes: list[str] = []
        self.unenforced: list[UnenforcedKeyword] = []
        self._document = document
        self._pool = pool
        self._options = options
        self._limits = limits
        self._distinct = distinct
        self._references = References(document, resources)
        self._left_out = Unenforced(report=options.on_unsupported == "report")
        self._start()

    def _start(self) -> None:
        """Whatever remembers what has been read, new."""
        self.notes.clear()
        self._left_out.begin()
        pool, options, limits, left_out = self._pool, self._options, self._limits, self._left_out
        self._definitions = definitions = Definitions(pool, self._references, left_out)
        scalars = ScalarKeywords(pool, options, limits, left_out, self.notes)
        unevaluated = Unevaluated(pool, self._references, definitions, left_out)
        containers = ContainerKeywords(
            pool, self._references, scalars, unevaluated, left_out, options, limits, distinct=self._distinct
        )
        self._groups: list[tuple[str, Callable[[SchemaKeywords], FormulaId]]] = [
            ("type", scalars.types),
            ("const enum", scalars.listed_values),
            ("minLength maxLength pattern format x-turnstile", scalars.strings),
            ("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf", scalars.numbers),
            ("prefixItems items additionalItems minItems maxItems contains uniqueItems", containers.arrays),
            (_OF_OBJECTS, containers.objects),
            ("allOf anyOf oneOf not if", containers.combined),
            (" ".join(REFERRING), definitions.referred),
            # Last, for the order in which parts of a schema name the properties is that in which they come.
            (" ".join(UNEVALUATED), containers.unevaluated),
        ]
        # Most schemas have a keyword or two, and only what these are about is read.
        self._group_of = {keyword: i for i, (keywords, _) in enumerate(self._groups) for keyword in keywords.split()}

    def read(self) -> FormulaId:
        """The formula of the whole document; everything it refers to is defined in the pool."""
        root = self._read()
        while not self._left_out.complete():
            self._start()
            root = self._read()
        self.unenforced = self._left_out.listed(self._document)
        self.notes = list(dict.fromkeys([*self.notes, *self._references.notes]))
        return root

    def _read(self) -> FormulaId:
        scope = self._references.root
        root = self._definitions.refer(scope.resource, scope)
        while self._definitions.pending:
            location, contents, scope = self._definitions.pending.pop()
            self._left_out.define(location)
            self._pool.define(location, self._schema(contents, scope, 0), scope.pointer)
        return root

    def _schema(self, schema: Any, scope: Scope, depth: int) -> FormulaId:
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        if not isinstance(schema, dict):
            raise InvalidSpecificationError("a schema must be an object or a boolean", pointer=scope.pointer)
        self._pool.spend(_SCHEMA_STEPS)
        if depth > self._limits.max_nesting:
            raise LimitExceededError(
                f"the schema nests deeper than {self._limits.max_nesting} (fixed limit max_nesting)",
                pointer=scope.pointer,
            )
        scope = self._references.entered(scope, schema)
        if self._references.lacks_dialect(schema):
            self.notes.append(f"{scope.pointer or '#'}: unknown $schema {schema['$schema']!r}, read as {scope.draft}")
        known = SchemaKeywords(schema, scope, depth, self._schema)
        if "$ref" in schema and scope.draft <= 7:
            known.update(schema)
            return self._definitions.referred(known)
        for keyword, value in schema.items():
            if keyword in scope.dialect.keywords:
                known[keyword] = value
            elif keyword not in ANNOTATIONS:
                near = NEAR_KEYWORDS.find(keyword)
                meant = "" if near in (None, keyword) else f" (is {near!r} meant?)"
                self.notes.append(f"{scope.pointer or '#'}: ignored keyword {keyword!r}{meant}")
        asked = {self._group_of[keyword] for keyword in known if keyword in self._group_of}
        with limits_at(scope.pointer):
            parts = [self._groups[number][1](known) for number in sorted(asked)]
        formula = self._pool.all_of(parts)
        # A copy: what is read leads back to this reader, and the pool would hold it in a circle.
        self._pool.note_schema(formula, scope.pointer, dict(known))
        return formula

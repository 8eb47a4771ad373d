"""Reader of JSON Schemas: it converts each keyword to a formula, or rejects the schema with the keyword's JSON Pointer.

With `on_unsupported: report`, unsupported keywords are reported instead of rejected (module `unenforced`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from grammar_workers.budget import limits_at
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.read.container_keywords import DEPENDENCIES, UNEVALUATED, ContainerKeywords
from grammar_workers.languages.json_schema.read.definitions import Definitions, Reading
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
# Budget steps for each schema.
_SCHEMA_STEPS = 32


class SchemaReader:
    """Reader of one JSON Schema. It converts the schema to a formula, the conjunction of the formulas of its keywords.

    Args:
        document: The schema.
        resources: URI -> further schema to which `$ref` may refer.
        pool: Table of all formulas, which creates new formulas.
        options: Options of the grammar, such as `on_unsupported` and `format`.
        limits: Limits of the compilation.
        distinct: True if masks may depend on earlier items of an array and earlier names of an object.

    Attributes:
        notes: Warnings about ignored keywords and references, for `TokenFSM.notes`; filled by `read`.
        unenforced: The keywords that assert something but are not enforced, with reasons; filled by `read`.
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
        self._references = References(document, resources)
        self._left_out = Unenforced(report=options.on_unsupported == "report")
        self._max_nesting = limits.max_nesting
        self._reading = Reading(pool, self._references, options, limits, self._left_out, self.notes, distinct)
        self._start()

    def _start(self) -> None:
        """Create anew all objects that hold results of a reading."""
        self.notes.clear()
        self._left_out.begin()
        self._definitions = definitions = Definitions(self._reading)
        scalars = ScalarKeywords(self._reading)
        containers = ContainerKeywords(self._reading, scalars, Unevaluated(self._reading, definitions))
        self._groups: list[tuple[str, Callable[[SchemaKeywords], FormulaId]]] = [
            ("type", scalars.types),
            ("const enum", scalars.listed_values),
            ("minLength maxLength pattern format x-turnstile", scalars.strings),
            ("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf", scalars.numbers),
            ("prefixItems items additionalItems minItems maxItems contains uniqueItems", containers.arrays),
            (_OF_OBJECTS, containers.objects),
            ("allOf anyOf oneOf not if", containers.combined),
            (" ".join(REFERRING), definitions.referred),
            # Last, because properties come in the order in which the parts of the formula first mention them.
            (" ".join(UNEVALUATED), containers.unevaluated),
        ]
        # Most schemas have a keyword or two, and only the groups of these are called.
        self._group_of = {keyword: i for i, (keywords, _) in enumerate(self._groups) for keyword in keywords.split()}

    def read(self) -> FormulaId:
        """Read the document and all subschemas to which it refers.

        The formulas of the subschemas are defined in the pool. GrammarError is raised if the schema is malformed,
        unsupported or too large.

        Returns:
            Number, in the pool, of the formula of the document: the conjunction of the formulas of its keywords.
        """
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
        if depth > self._max_nesting:
            raise LimitExceededError(
                f"the schema nests deeper than {self._max_nesting} (fixed limit max_nesting)",
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
        # A copy, because `known` refers to this reader, and the pool would become part of a reference cycle.
        self._pool.note_schema(formula, scope.pointer, dict(known))
        return formula

"""The reader of JSON Schemas: every keyword is enforced, refused with its JSON Pointer, or noted as ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from grammar_workers.errors import InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.read.container_keywords import DEPENDENCIES, UNEVALUATED, ContainerKeywords
from grammar_workers.languages.json_schema.read.definitions import Definitions
from grammar_workers.languages.json_schema.read.keywords import ANNOTATIONS
from grammar_workers.languages.json_schema.read.references import References, Scope
from grammar_workers.languages.json_schema.read.scalar_keywords import ScalarKeywords
from grammar_workers.languages.json_schema.read.subschemas import Subschemas
from grammar_workers.languages.json_schema.read.unevaluated import Unevaluated
from grammar_workers.options import GrammarOptions, Limits

Schema: TypeAlias = Mapping[str, Any] | bool

_REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")
# What the keywords are about: most schemas have a keyword or two, and only what these are about is read.
_ABOUT = {
    keyword: about
    for about, keywords in {
        "type": ("type",),
        "values": ("const", "enum"),
        "strings": ("minLength", "maxLength", "pattern", "format"),
        "numbers": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        "arrays": ("prefixItems", "items", "additionalItems", "minItems", "maxItems", "contains", "uniqueItems"),
        "objects": (
            *("properties", "patternProperties", "additionalProperties", "required"),
            *("propertyNames", "minProperties", "maxProperties", *DEPENDENCIES),
        ),
        "schemas": ("allOf", "anyOf", "oneOf", "not", "if"),
        "references": _REFERRING,
        "the rest": UNEVALUATED,
    }.items()
    for keyword in keywords
}
_SCHEMA_STEPS, _STEPS_OF_REFERENCE = 32, 40
"""Steps of the budget. Dynamic references may lead to the same subschemas in very many ways."""


class SchemaReader:
    """The reader of one document. A schema becomes the conjunction of what its keywords say, group by group.

    `notes` collects what was ignored, for `TokenFSM.notes`.
    """

    def __init__(
        self,
        document: Schema,
        resources: Mapping[str, Any],
        pool: FormulaPool,
        options: GrammarOptions,
        limits: Limits,
    ) -> None:
        self.notes: list[str] = []
        self._pool = pool
        self._limits = limits
        self._references = References(document, resources)
        self._definitions = Definitions(pool)
        self._scalars = ScalarKeywords(pool, options, limits, self.notes)
        unevaluated = Unevaluated(pool, self._references, self._definitions)
        self._containers = ContainerKeywords(pool, self._references, self._scalars, unevaluated, options, limits)

    def read(self) -> FormulaId:
        """The formula of the whole document; everything it refers to is defined in the pool."""
        scope = self._references.root
        root = self._definitions.refer(scope.resource, scope)
        while self._definitions.pending:
            location, contents, scope = self._definitions.pending.pop()
            self._pool.define(location, self._schema(contents, scope, 0), scope.pointer)
        self.notes = list(dict.fromkeys(self.notes))
        return root

    def _schema(self, schema: Any, scope: Scope, depth: int) -> FormulaId:
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        if not isinstance(schema, dict):
            raise InvalidSpecificationError("a schema must be an object or a boolean", pointer=scope.pointer)
        self._pool.spend(_SCHEMA_STEPS)
        if depth > self._limits.max_nesting:
            raise LimitExceededError(
                f"the schema nests deeper than {self._limits.max_nesting} (limit max_nesting)", pointer=scope.pointer
            )
        scope = self._references.entered(scope, schema)
        if self._references.lacks_dialect(schema):
            self.notes.append(f"{scope.pointer or '#'}: unknown $schema {schema['$schema']!r}, read as {scope.draft}")
        if "$ref" in schema and scope.draft <= 7:
            return self._referred(schema, scope)
        known = {}
        about = set()
        for keyword, value in schema.items():
            if keyword in scope.dialect.keywords:
                known[keyword] = value
                about.add(_ABOUT.get(keyword))
            elif keyword not in ANNOTATIONS:
                self.notes.append(f"{scope.pointer or '#'}: ignored keyword {keyword!r}")
        scalars, containers = self._scalars, self._containers
        subschemas = Subschemas(known, scope, depth, self._schema)
        parts = [
            scalars.types(known, scope) if "type" in about else TRUE,
            scalars.listed_values(known, scope) if "values" in about else TRUE,
            scalars.strings(known, scope) if "strings" in about else TRUE,
            scalars.numbers(known, scope) if "numbers" in about else TRUE,
            containers.arrays(known, scope, subschemas) if "arrays" in about else TRUE,
            containers.objects(known, scope, subschemas) if "objects" in about else TRUE,
            self._combined(known, subschemas) if "schemas" in about else TRUE,
            self._referred(known, scope) if "references" in about else TRUE,
            # Last, for the order in which parts of a schema name the properties is that in which they come.
            containers.unevaluated(known, scope, subschemas) if "the rest" in about else TRUE,
        ]
        formula = self._pool.all_of(parts)
        self._pool.note_pointer(formula, scope.pointer)
        return formula

    def _referred(self, schema: Mapping[str, Any], scope: Scope) -> FormulaId:
        parts = []
        for keyword in _REFERRING:
            if keyword in schema:
                self._pool.spend(_STEPS_OF_REFERENCE)
                contents, target = self._references.resolve(schema[keyword], keyword, scope)
                parts.append(self._definitions.refer(contents, target))
        return self._pool.all_of(parts)

    def _combined(self, schema: Mapping[str, Any], subschemas: Subschemas) -> FormulaId:
        pool = self._pool
        parts = []
        if "allOf" in schema:
            parts += subschemas.listed("allOf")
        if "anyOf" in schema:
            parts.append(pool.any_of(subschemas.listed("anyOf")))
        if "oneOf" in schema:
            options = subschemas.listed("oneOf")
            parts.append(
                pool.any_of(
                    pool.all_of([option, *(pool.not_(other) for j, other in enumerate(options) if j != i)])
                    for i, option in enumerate(options)
                )
            )
        if "not" in schema:
            parts.append(pool.not_(subschemas.one("not")))
        if "if" in schema:
            condition = subschemas.one("if")
            then = subschemas.one("then") if "then" in schema else TRUE
            otherwise = subschemas.one("else") if "else" in schema else TRUE
            parts.append(pool.any_of([pool.all_of([condition, then]), pool.all_of([pool.not_(condition), otherwise])]))
        return pool.all_of(parts)

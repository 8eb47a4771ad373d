"""Evaluations: the items or properties of a value that `unevaluatedItems` and `unevaluatedProperties` exempt.

A subschema evaluates parts of a value: the properties that it names, or the items at its positions. A subschema in
`anyOf`, `if` or a similar keyword evaluates parts only if the value satisfies the subschema. So a schema has several
*evaluations*. An evaluation is a set of parts with a condition under which at least these parts are evaluated.
`unevaluated*` then means: the condition of one evaluation holds, and all parts outside this evaluation satisfy the
keyword's schema. More evaluated parts only weaken this requirement. So several conditions may hold at once, and the
translation is still exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from grammar_workers.errors import LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.json_schema.assertions import FormulaId, JsonType
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, requires
from grammar_workers.languages.json_schema.read.definitions import Definitions, Reading
from grammar_workers.languages.json_schema.read.keywords import REFERRING
from grammar_workers.languages.json_schema.read.references import Scope
from grammar_workers.languages.json_schema.read.schema_keywords import SchemaKeywords

# Largest number of different sets of evaluated parts of one schema.
_MAX_EVALUATIONS = 64


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Items of an array, or properties of an object, that a schema evaluates (exempts from `unevaluated*`).

    Attributes:
        everything: True if all items or properties are evaluated; the other fields are then not set.
        names: Names of evaluated properties.
        patterns: Regular expressions. All properties whose names one of them matches are evaluated.
        count: Number of evaluated items at the beginning of the array.
        contained: Numbers of formulas; items that satisfy one of them are evaluated.
    """

    everything: bool = False
    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    count: int = 0
    contained: frozenset[FormulaId] = frozenset()

    def __or__(self, other: Evaluated) -> Evaluated:
        if self.everything or other.everything:
            return Evaluated(everything=True)
        return Evaluated(
            names=self.names | other.names,
            patterns=self.patterns | other.patterns,
            count=max(self.count, other.count),
            contained=self.contained | other.contained,
        )


# Evaluated parts -> a condition under which at least these parts are evaluated.
Evaluations: TypeAlias = dict[Evaluated, FormulaId]
_NOTHING = Evaluated()


class Unevaluated:
    """Analysis of the items or properties that schemas evaluate, which `unevaluated*` then exempts.

    Results are cached for each schema, scope and keyword. For example, the schema

        {"properties": {"a": ...}, "anyOf": [{"properties": {"b": ...}}, ...]}

    evaluates "a" under the condition TRUE. It evaluates "a" and "b" under the condition that the first alternative
    holds.

    Args:
        reading: Looks up the schemas that references name, and has the keywords that are not enforced.
        definitions: Collects the subschemas that conditions refer to.
    """

    def __init__(self, reading: Reading, definitions: Definitions) -> None:
        self._pool = reading.pool
        self._references = reading.references
        self._left_out = reading.left_out
        self._definitions = definitions
        self._known: dict[tuple[str, str], Evaluations] = {}

    def evaluations(self, schema: SchemaKeywords, keyword: str) -> Evaluations:
        """Return the sets of items or properties that the other keywords of a schema evaluate, each with a condition.

        LimitExceededError is raised if there are too many sets. UnsupportedFeatureError is raised if a schema or
        keyword that would evaluate items or properties is not available or not enforced.

        Args:
            schema: The schema that has the keyword.
            keyword: `unevaluatedProperties` or `unevaluatedItems`, whose own value is not considered.

        Returns:
            Dict: set of evaluated items or properties -> formula of a condition under which at least these are
            evaluated.
        """
        self._left_out.check_evaluates(schema.schema, schema.scope, but=keyword)
        beside = {name: value for name, value in schema.items() if name != keyword}
        return self._within(beside, keyword, schema.scope)

    def _of(self, schema: Any, keyword: str, scope: Scope) -> Evaluations:
        """Return the evaluations of a schema, given that it holds."""
        if not isinstance(schema, dict):
            return {_NOTHING: TRUE}
        identity = (scope.location(schema), keyword)
        if identity not in self._known:
            # A cycle of references that consumes nothing ends here. The formula of the schema raises the error.
            self._known[identity] = {_NOTHING: TRUE}
            inner = self._references.entered(scope, schema)
            known = {name: value for name, value in schema.items() if name in inner.dialect.keywords}
            try:
                self._left_out.check_evaluates(schema, inner)
                self._known[identity] = self._within(known, keyword, inner)
            except UnsupportedFeatureError:
                del self._known[identity]
                raise
        return self._known[identity]

    def _within(self, schema: Mapping[str, Any], keyword: str, scope: Scope) -> Evaluations:
        if scope.draft <= 7 and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        own = self._properties(schema) if keyword == "unevaluatedProperties" else self._items(schema, scope)
        found: Evaluations = {own: TRUE}
        for reference in REFERRING:
            if reference in schema:
                target, inside = self._references.resolve(schema[reference], reference, scope)
                found = self._both(found, self._of(target, keyword, inside), scope)
        for part, inside in self._parts(schema, "allOf", scope):
            found = self._both(found, self._of(part, keyword, inside), scope)
        for part, inside in self._parts(schema, "anyOf", scope):
            found = self._both(found, self._either({_NOTHING: TRUE}, self._if_holds(part, keyword, inside)), scope)
        if schema.get("oneOf"):
            options = [self._if_holds(part, keyword, inside) for part, inside in self._parts(schema, "oneOf", scope)]
            found = self._both(found, self._either(*options), scope)
        if "if" in schema:
            found = self._both(found, self._conditional(schema, keyword, scope), scope)
        for dependencies in ("dependentSchemas", "dependencies"):
            for name, part in self._map(schema, dependencies).items():
                evaluations = self._of(part, keyword, scope.below(dependencies, name))
                # `requires` is also true of values that are no objects, and these do not have the property.
                is_there = self._pool.all_of([self._pool.types(JsonType.OBJECT), requires(self._pool, (name,))])
                present = self._given(is_there, evaluations)
                found = self._both(found, self._either({_NOTHING: TRUE}, present), scope)
        return found

    # -- what the keywords of one schema evaluate themselves ---------------------------------------------------------

    def _properties(self, schema: Mapping[str, Any]) -> Evaluated:
        return Evaluated(
            everything="additionalProperties" in schema or "unevaluatedProperties" in schema,
            names=frozenset(self._map(schema, "properties")),
            patterns=frozenset(self._map(schema, "patternProperties")),
        )

    def _items(self, schema: Mapping[str, Any], scope: Scope) -> Evaluated:
        contained = frozenset[FormulaId]()
        if "contains" in schema and scope.draft >= 2020:
            contained = frozenset([self._definitions.refer(schema["contains"], scope.below("contains"))])
        by_position = isinstance(schema.get("items"), list)
        prefix = schema["items"] if by_position else schema.get("prefixItems")
        return Evaluated(
            everything=("additionalItems" if by_position else "items") in schema or "unevaluatedItems" in schema,
            count=len(prefix) if isinstance(prefix, list) else 0,
            contained=contained,
        )

    # -- combinations ----------------------------------------------------------------------------------------------

    def _conditional(self, schema: Mapping[str, Any], keyword: str, scope: Scope) -> Evaluations:
        """Return the evaluations of `if` with `then`, or of `else`."""
        holds = self._if_holds(schema["if"], keyword, scope.below("if"))
        if "then" in schema:
            holds = self._both(holds, self._of(schema["then"], keyword, scope.below("then")), scope)
        if "else" not in schema:
            return self._either({_NOTHING: TRUE}, holds)
        fails = self._pool.not_(self._definitions.refer(schema["if"], scope.below("if")))
        return self._either(holds, self._given(fails, self._of(schema["else"], keyword, scope.below("else"))))

    def _if_holds(self, schema: Any, keyword: str, scope: Scope) -> Evaluations:
        return self._given(self._definitions.refer(schema, scope), self._of(schema, keyword, scope))

    def _given(self, condition: FormulaId, evaluations: Evaluations) -> Evaluations:
        return {evaluated: self._pool.all_of([condition, also]) for evaluated, also in evaluations.items()}

    def _either(self, *options: Evaluations) -> Evaluations:
        found: Evaluations = {}
        for option in options:
            for evaluated, condition in option.items():
                found[evaluated] = self._pool.any_of([found.get(evaluated, FALSE), condition])
        return found

    def _both(self, first: Evaluations, second: Evaluations, scope: Scope) -> Evaluations:
        found: Evaluations = {}
        for evaluated, condition in first.items():
            for also, given in second.items():
                union = evaluated | also
                found[union] = self._pool.any_of([found.get(union, FALSE), self._pool.all_of([condition, given])])
            if len(found) > _MAX_EVALUATIONS:
                raise LimitExceededError(
                    f"alternatives evaluate different parts in more than {_MAX_EVALUATIONS} ways", pointer=scope.pointer
                )
        return found

    @staticmethod
    def _map(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
        # What is malformed is reported where the keyword itself is read.
        value = schema.get(keyword, {})
        return value if isinstance(value, dict) else {}

    @staticmethod
    def _parts(schema: Mapping[str, Any], keyword: str, scope: Scope) -> list[tuple[Any, Scope]]:
        value = schema.get(keyword)
        return [(part, scope.below(keyword, i)) for i, part in enumerate(value if isinstance(value, list) else [])]

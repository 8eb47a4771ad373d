"""Evaluations: the parts that `unevaluatedProperties` and `unevaluatedItems` leave alone, by the alternatives taken.

Every subschema that applies to the same instance evaluates some of its parts: the properties it names, the items at
its positions. Alternatives (`anyOf`, `if`, ...) do so only when they hold. So a schema has several *evaluations*, each
with a condition under which at least that much is evaluated; the keyword then means that one of the conditions holds
together with what is asked of the parts that this evaluation leaves. More evaluated parts only ask less, so the
conditions need not exclude each other, and the translation is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from grammar_workers.errors import LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.json_schema.assertions import FormulaId, JsonType
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool, requires
from grammar_workers.languages.json_schema.read.definitions import Definitions
from grammar_workers.languages.json_schema.read.keywords import REFERRING
from grammar_workers.languages.json_schema.read.references import References, Scope
from grammar_workers.languages.json_schema.read.schema_keywords import SchemaKeywords
from grammar_workers.languages.json_schema.read.unenforced import Unenforced

_MAX_EVALUATIONS = 64
"""Different sets of evaluated parts that one schema may lead to."""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Properties by name and by pattern, the first `count` items, items that satisfy one of `contained`; or all."""

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


Evaluations: TypeAlias = dict[Evaluated, FormulaId]
"""Evaluated parts -> a condition under which at least these are."""
_NOTHING = Evaluated()


class Unevaluated:
    """The evaluations of schemas, each worked out once per keyword.

        {"properties": {"a": ...}, "anyOf": [{"properties": {"b": ...}}, ...]}

    evaluates a under the condition TRUE, and a and b under the condition that the first alternative holds.
    """

    def __init__(
        self, pool: FormulaPool, references: References, definitions: Definitions, left_out: Unenforced
    ) -> None:
        self._pool = pool
        self._references = references
        self._definitions = definitions
        self._left_out = left_out
        self._known: dict[tuple[str, str], Evaluations] = {}

    def evaluations(self, schema: SchemaKeywords, keyword: str) -> Evaluations:
        """The evaluations by the keywords beside `keyword` (one of the two) in `schema`.

        Raises LimitExceededError when there are too many cases to tell apart, UnsupportedFeatureError when something
        that would evaluate parts is not at hand or left out.
        """
        self._left_out.check_evaluates(schema.schema, schema.scope, but=keyword)
        beside = {name: value for name, value in schema.items() if name != keyword}
        return self._within(beside, keyword, schema.scope)

    def _of(self, schema: Any, keyword: str, scope: Scope) -> Evaluations:
        """The evaluations of a schema given that it holds."""
        if not isinstance(schema, dict):
            return {_NOTHING: TRUE}
        identity = (scope.location(schema), keyword)
        if identity not in self._known:
            # A cycle that consumes nothing ends here; the formula of the schema is what complains about it.
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
                # Of another value than an object, a keyword about properties says nothing: neither that it has them.
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
        """Of `if` with `then`, or of `else`."""
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

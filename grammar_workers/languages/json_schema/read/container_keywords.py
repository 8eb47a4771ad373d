"""Formulas of keywords whose values contain schemas: keywords of arrays and objects, `allOf`, `not` and others."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

from grammar_workers.errors import GrammarError, UnsupportedFeatureError
from grammar_workers.languages.json_schema.assertions import (
    ALL_TYPES,
    ArrayShape,
    FormulaId,
    ItemCount,
    JsonType,
    ObjectShape,
    PropertyCount,
    PropertyNames,
    UniqueItems,
)
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, requires
from grammar_workers.languages.json_schema.read.definitions import Reading
from grammar_workers.languages.json_schema.read.keywords import MAX_UNIQUE, RESTRICTIONS
from grammar_workers.languages.json_schema.read.listed_values import identity, listed_items
from grammar_workers.languages.json_schema.read.scalar_keywords import ScalarKeywords
from grammar_workers.languages.json_schema.read.schema_keywords import (
    SchemaKeywords,
    checked_pattern,
    property_names,
)
from grammar_workers.languages.json_schema.read.unevaluated import Evaluated, Unevaluated
from grammar_workers.languages.regex.compile import search_automaton

DEPENDENCIES = ("dependentRequired", "dependentSchemas", "dependencies")
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_CLOSED_PARTS = (
    "`additionalProperties: false` in one part of `allOf` forbids the properties of the others; to allow all of them, "
    "write `unevaluatedProperties: false` beside `allOf` in its place, or merge the parts"
)


class ContainerKeywords:
    """Converter of keywords to formulas, for arrays, objects and combinations (`allOf`, `not` and similar keywords).

    There is one method for each group of keywords.

    Args:
        reading: Creates the formulas, and receives warnings and the keywords that are not enforced.
        scalars: Converts listed values (`enum`, `const`) to formulas.
        unevaluated: Determines which items and properties a schema evaluates.
    """

    def __init__(self, reading: Reading, scalars: ScalarKeywords, unevaluated: Unevaluated) -> None:
        self._reading = reading
        self._pool = reading.pool
        self._left_out = reading.left_out
        self._scalars = scalars
        self._unevaluated = unevaluated

    def arrays(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of a schema's keywords about arrays. TRUE if it has none.

        The keywords are `prefixItems`, `items`, `contains`, `uniqueItems`, and the bounds of the number of items.
        GrammarError is raised if a value is malformed, or if an unsupported keyword must be enforced (`on_unsupported:
        reject`).

        Args:
            schema: The keywords of the schema.
        """
        parts = []
        if isinstance(schema.get("items"), list) and schema.scope.draft < 2020:
            prefix = schema.listed("items") if schema["items"] else []
            items = schema.one("additionalItems")
        elif isinstance(schema.get("items"), list):
            expected = "one schema: `prefixItems` lists those of tuples, or `$schema` names a draft up to 2019-09"
            raise schema.scope.wrong("items", expected)
        else:
            prefix = schema.listed("prefixItems")
            items = schema.one("items")
        minimum = schema.count("minItems") or 0
        maximum = schema.count("maxItems")
        if prefix or items != TRUE or minimum or maximum is not None:
            parts.append(self._pool.atom(JsonType.ARRAY, ArrayShape(tuple(prefix), items, minimum, maximum)))
        if "contains" in schema:
            least = schema.count("minContains")
            most = schema.count("maxContains")
            if most is None or self._left_out.leaves_out(schema, "maxContains"):
                contained, most = schema.one("contains"), None
            else:
                contained = self._strictly(schema, "contains", "maxContains")
            number = ItemCount(contained, 1 if least is None else least, most)
            if number.minimum or most is not None:
                parts.append(self._pool.atom(JsonType.ARRAY, number))
        if schema.get("uniqueItems") is True and (maximum is None or maximum > 1):
            with self._left_out.unless_unsupported(schema, "uniqueItems"):
                parts.append(self._unique(schema))
        return self._pool.all_of(parts)

    def _strictly(self, schema: SchemaKeywords, keyword: str, judge: str) -> FormulaId:
        """Return the formula of the schema that `keyword` holds, which `judge` requires to be exact."""
        with self._left_out.strict_inside(schema, judge):
            return schema.one(keyword)

    def _unique(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of `uniqueItems`.

        Items out of few listed values are unique if each value occurs at most once.

        Raises:
            UnsupportedFeatureError: The values are not listed or too many, and masks may not depend on seen items.
        """
        values = listed_items(schema, schema.scope, self._reading.references)
        equal: dict[Hashable, list[Any]] = {}
        for value in values or []:
            equal.setdefault(identity(value), []).append(value)
        pool, pointer = self._pool, schema.scope.below("uniqueItems").pointer
        once: FormulaId | None = None
        if values is not None and len(equal) <= MAX_UNIQUE:
            counts = [ItemCount(self._scalars.one_of(same), 0, 1) for same in equal.values()]
            once = pool.all_of(pool.atom(JsonType.ARRAY, count) for count in counts)
        if self._reading.distinct:
            atom = pool.atom(JsonType.ARRAY, UniqueItems(once))
            pool.note_pointer(atom, pointer)
            return atom
        if once is None:
            raise UnsupportedFeatureError(
                f"uniqueItems over more than {MAX_UNIQUE} values, or over values that are not listed, is not supported "
                "beside a specification that restricts the whole text",
                pointer=pointer,
            )
        return once

    def objects(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of a schema's keywords about objects. TRUE if it has none.

        The keywords concern the names, values and number of properties, and dependencies. GrammarError is raised if a
        value is malformed, or if an unsupported keyword must be enforced (`on_unsupported: reject`).

        Args:
            schema: The keywords of the schema.
        """
        pool = self._pool
        parts = []
        properties = schema.named("properties")
        patterns = schema.named("patternProperties")
        known = [(pattern, inside) for pattern, inside in patterns if self._is_known(schema, pattern)]
        additional = schema.one("additionalProperties")
        is_closed = "properties" in schema and not self._reading.options.additional_properties
        if is_closed and "additionalProperties" not in schema:
            additional = FALSE
        if len(known) < len(patterns):
            # It is not known which properties are additional.
            if "additionalProperties" in schema and additional != TRUE:
                error = UnsupportedFeatureError("a pattern beside it is not enforced")
                self._left_out.leave_out(error, schema, "additionalProperties")
            patterns, additional = known, TRUE
        required = property_names(schema["required"], schema.scope.below("required")) if "required" in schema else ()
        if properties or patterns or required or additional != TRUE:
            shape = ObjectShape(tuple(properties), tuple(patterns), additional, required)
            parts.append(pool.atom(JsonType.OBJECT, shape))
        if "propertyNames" in schema:
            names = schema.one("propertyNames")
            parts.append(pool.atom(JsonType.OBJECT, PropertyNames(names)))
        parts.append(self._property_count(schema, len(properties) + len(required)))
        if not schema.keys().isdisjoint(DEPENDENCIES):
            parts += self._dependencies(schema)
        return pool.all_of(parts)

    def _property_count(self, schema: SchemaKeywords, named: int) -> FormulaId:
        """Return the formula of `minProperties` and `maxProperties`. At most `named` names are declared or required."""
        least = schema.count("minProperties") or 0
        most = schema.count("maxProperties")
        if least > named + 1 and not self._reading.distinct:
            # Undeclared names may repeat, so only one of them surely adds to the number of properties.
            error = UnsupportedFeatureError(
                f"minProperties is too high. {RESTRICTIONS['minProperties']}",
                pointer=schema.scope.below("minProperties").pointer,
            )
            self._left_out.leave_out(error, schema, "minProperties")
            least = 0
        if not least and most is None:
            return TRUE
        count = self._pool.atom(JsonType.OBJECT, PropertyCount(least, most))
        self._pool.note_pointer(count, schema.scope.below("minProperties" if least else "maxProperties").pointer)
        return count

    def _is_known(self, schema: SchemaKeywords, pattern: str) -> bool:
        where = schema.scope.below("patternProperties", pattern)
        with self._left_out.unless_unsupported(schema, "patternProperties", pattern):
            checked_pattern(pattern, where, search_automaton, self._reading.limits)
            return True
        return False

    def _dependencies(self, schema: SchemaKeywords) -> Iterator[FormulaId]:
        """Yield each dependency as: no object, or without the property, or with the consequence."""
        pool = self._pool
        for keyword in DEPENDENCIES:
            dependencies = schema.get(keyword, {})
            if not isinstance(dependencies, dict):
                raise schema.scope.wrong(keyword, "an object")
            for name, implied in dependencies.items():
                inside = schema.scope.below(keyword, name)
                if keyword == "dependentRequired" or (keyword == "dependencies" and isinstance(implied, list)):
                    consequence = requires(pool, property_names(implied, inside))
                else:
                    consequence = schema.at(inside, implied)
                if consequence != TRUE:
                    other = pool.types(ALL_TYPES & ~JsonType.OBJECT)
                    yield pool.any_of([other, pool.not_(requires(pool, (name,))), consequence])

    def combined(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of `allOf`, `anyOf`, `oneOf`, `not` and `if` in a schema. TRUE without these keywords.

        GrammarError is raised if the value of a keyword is malformed, or if an inner schema is rejected.

        Args:
            schema: The keywords of the schema.
        """
        pool = self._pool
        parts = schema.listed("allOf")
        if "allOf" in schema and self._excludes(schema):
            self._pool.hint = _CLOSED_PARTS
            self._reading.references.notes.append(f"{schema.scope.below('allOf').pointer}: {_CLOSED_PARTS}")
        if "anyOf" in schema:
            parts.append(pool.any_of(schema.listed("anyOf")))
        if "oneOf" in schema and self._left_out.leaves_out(schema, "oneOf"):
            parts.append(pool.any_of(schema.listed("oneOf")))
        elif "oneOf" in schema:
            with self._left_out.strict_inside(schema, "oneOf"):
                options = schema.listed("oneOf")
            parts.append(
                pool.any_of(
                    pool.all_of([option, *(pool.not_(other) for j, other in enumerate(options) if j != i)])
                    for i, option in enumerate(options)
                )
            )
        if "not" in schema and not self._left_out.leaves_out(schema, "not"):
            parts.append(pool.not_(self._strictly(schema, "not", "not")))
        if "if" in schema and not self._left_out.leaves_out(schema, "if"):
            condition = self._strictly(schema, "if", "if")
            then, otherwise = schema.one("then"), schema.one("else")
            parts.append(pool.any_of([pool.all_of([condition, then]), pool.all_of([pool.not_(condition), otherwise])]))
        return pool.all_of(parts)

    def _excludes(self, schema: SchemaKeywords) -> bool:
        """Return whether a part of `allOf` excludes properties that another part, or the schema itself, declares."""
        parts: list[Any] = [schema, *schema["allOf"]]
        for part in schema["allOf"]:
            if isinstance(part, dict) and "$ref" in part:
                with contextlib.suppress(GrammarError):
                    parts.append(self._reading.references.resolve(part["$ref"], "$ref", schema.scope)[0])
        apart = {id(part): part for part in parts}.values()  # many may refer to one
        objects = [part for part in apart if isinstance(part, dict) and isinstance(part.get("properties"), dict)]
        names = {name for part in objects for name in part["properties"]}
        closed = [part for part in objects if part.get("additionalProperties") is False]
        return any("patternProperties" not in part and not names <= part["properties"].keys() for part in closed)

    def unevaluated(self, schema: SchemaKeywords) -> FormulaId:
        """Return the formula of `unevaluatedProperties` and `unevaluatedItems` of a schema. TRUE without them.

        For each keyword, the formula is a disjunction of cases. Each case has a condition, such as that a branch of
        `anyOf` holds, and exempts the items or properties that the other keywords evaluate under this condition.
        GrammarError is raised if an unsupported keyword must be enforced (`on_unsupported: reject`).

        Args:
            schema: The keywords of the schema.
        """
        pool = self._pool
        parts = []
        for keyword in UNEVALUATED:
            if keyword in schema and not self._left_out.leaves_out(schema, keyword):
                rest = schema.one(keyword)
                with self._left_out.unless_unsupported(schema, keyword):
                    cases = self._unevaluated.evaluations(schema, keyword).items()
                    remaining = (pool.all_of([when, self._remaining(keyword, but, rest)]) for but, when in cases)
                    parts.append(pool.any_of(remaining))
        return pool.all_of(parts)

    def _remaining(self, keyword: str, evaluated: Evaluated, rest: FormulaId) -> FormulaId:
        """Return the formula that all parts that are not evaluated satisfy `rest`."""
        if evaluated.everything:
            return TRUE
        if keyword == "unevaluatedItems":
            items = self._pool.any_of([rest, *sorted(evaluated.contained)])
            return self._pool.atom(JsonType.ARRAY, ArrayShape((TRUE,) * evaluated.count, items, 0, None))
        names = tuple((name, TRUE) for name in sorted(evaluated.names))
        patterns = tuple((pattern, TRUE) for pattern in sorted(evaluated.patterns))
        return self._pool.atom(JsonType.OBJECT, ObjectShape(names, patterns, rest, ()))

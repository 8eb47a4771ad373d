"""Reads a JSON Schema into formulas: every keyword is enforced, refused with its JSON Pointer, or noted as ignored."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.json_schema.logic import (
    ALL_TYPES,
    BOOLEAN,
    FALSE,
    TRUE,
    ArrayShape,
    Assertion,
    FiniteTexts,
    FormulaId,
    FormulaPool,
    IsInteger,
    ItemCount,
    JsonType,
    MultipleOf,
    NumberBound,
    ObjectShape,
    PropertyCount,
    PropertyNames,
    StringLengths,
    StringPattern,
    requires,
)
from grammar_workers.languages.json_schema.read import formats
from grammar_workers.languages.json_schema.read.definitions import Definitions
from grammar_workers.languages.json_schema.read.keywords import ANNOTATIONS, MAX_UNIQUE, PLAIN_NUMBERS, RESTRICTIONS
from grammar_workers.languages.json_schema.read.listed_values import identity, listed_items
from grammar_workers.languages.json_schema.read.references import References, Scope
from grammar_workers.languages.json_schema.read.unevaluated import Evaluated, Unevaluated
from grammar_workers.languages.regex.compile import search_automaton
from grammar_workers.languages.regex.lengths import pattern_and_lengths
from grammar_workers.options import GrammarOptions, Limits

Schema: TypeAlias = Mapping[str, Any] | bool

_TYPES = {
    "null": JsonType.NULL,
    "boolean": BOOLEAN,
    "integer": JsonType.NUMBER,
    "number": JsonType.NUMBER,
    "string": JsonType.STRING,
    "array": JsonType.ARRAY,
    "object": JsonType.OBJECT,
}
_REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")
_DEPENDENCIES = ("dependentRequired", "dependentSchemas", "dependencies")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
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
            *("propertyNames", "minProperties", "maxProperties", *_DEPENDENCIES),
        ),
        "schemas": ("allOf", "anyOf", "oneOf", "not", "if"),
        "references": _REFERRING,
        "the rest": _UNEVALUATED,
    }.items()
    for keyword in keywords
}
_MAX_MAGNITUDE = 400
"""Powers of ten that a numeric keyword may have: more than a double has."""
_SCHEMA_STEPS, _STEPS_OF_REFERENCE = 32, 40
"""What following a reference counts: dynamic references may lead to the same subschemas in very many ways."""
_MAX_COUNT = 1_000_000_000
"""The largest count that registers hold."""

_PLAIN_NUMBERS = f"bounds and multiples: {PLAIN_NUMBERS}"


class SchemaReader:
    """Reads one document. `notes` collects what was ignored, for `TokenFSM.notes`."""

    def __init__(
        self,
        document: Schema,
        resources: Mapping[str, Any],
        pool: FormulaPool,
        options: GrammarOptions,
        limits: Limits,
    ) -> None:
        self._pool = pool
        self._options = options
        self._limits = limits
        self._references = References(document, resources)
        self._definitions = Definitions(pool)
        self._evaluation = Unevaluated(pool, self._references, self._definitions)
        self._types: dict[tuple[int | str, ...], FormulaId] = {}
        self.notes: list[str] = []

    def read(self) -> FormulaId:
        """The formula of the whole document; everything it refers to is defined in the pool."""
        scope = self._references.root
        root = self._definitions.refer(scope.resource, scope)
        while self._definitions.pending:
            location, contents, scope = self._definitions.pending.pop()
            self._pool.define(location, self._schema(contents, scope, 0), scope.pointer)
        self.notes = list(dict.fromkeys(self.notes))
        return root

    # -- structure -------------------------------------------------------------------------------------------------

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
            return self._ref(schema, scope)
        known = {}
        about = set()
        for keyword, value in schema.items():
            if keyword in scope.dialect.keywords:
                known[keyword] = value
                about.add(_ABOUT.get(keyword))
            elif keyword not in ANNOTATIONS:
                self.notes.append(f"{scope.pointer or '#'}: ignored keyword {keyword!r}")
        parts = [
            self._type(known, scope) if "type" in about else TRUE,
            self._finite(known, scope) if "values" in about else TRUE,
            self._string(known, scope) if "strings" in about else TRUE,
            self._number(known, scope) if "numbers" in about else TRUE,
            self._array(known, scope, depth) if "arrays" in about else TRUE,
            self._object(known, scope, depth) if "objects" in about else TRUE,
            self._combined(known, scope, depth) if "schemas" in about else TRUE,
            self._ref(known, scope) if "references" in about else TRUE,
            # Last, for the order in which parts of a schema name the properties is that in which they come.
            self._unevaluated(known, scope, depth) if "the rest" in about else TRUE,
        ]
        formula = self._pool.all_of(parts)
        self._pool.place(formula, scope.pointer)
        return formula

    def _ref(self, schema: Mapping[str, Any], scope: Scope) -> FormulaId:
        parts = []
        for keyword in _REFERRING:
            if keyword in schema:
                self._pool.spend(_STEPS_OF_REFERENCE)
                contents, target = self._references.resolve(schema[keyword], keyword, scope)
                parts.append(self._definitions.refer(contents, target))
        return self._pool.all_of(parts)

    def _combined(self, schema: Mapping[str, Any], scope: Scope, depth: int) -> FormulaId:
        pool = self._pool
        parts = []
        if "allOf" in schema:
            parts += self._list(schema, "allOf", scope, depth)
        if "anyOf" in schema:
            parts.append(pool.any_of(self._list(schema, "anyOf", scope, depth)))
        if "oneOf" in schema:
            options = self._list(schema, "oneOf", scope, depth)
            parts.append(
                pool.any_of(
                    pool.all_of([option, *(pool.not_(other) for j, other in enumerate(options) if j != i)])
                    for i, option in enumerate(options)
                )
            )
        if "not" in schema:
            parts.append(pool.not_(self._sub(schema, "not", scope, depth)))
        if "if" in schema:
            condition = self._sub(schema, "if", scope, depth)
            then = self._sub(schema, "then", scope, depth) if "then" in schema else TRUE
            otherwise = self._sub(schema, "else", scope, depth) if "else" in schema else TRUE
            parts.append(pool.any_of([pool.all_of([condition, then]), pool.all_of([pool.not_(condition), otherwise])]))
        return pool.all_of(parts)

    def _sub(self, schema: Mapping[str, Any], keyword: str, scope: Scope, depth: int) -> FormulaId:
        return self._schema(schema[keyword], scope.below(keyword), depth + 1)

    def _list(self, schema: Mapping[str, Any], keyword: str, scope: Scope, depth: int) -> list[FormulaId]:
        schemas = schema[keyword]
        if not isinstance(schemas, list) or not schemas:
            raise InvalidSpecificationError(
                f"{keyword} must be a non-empty array of schemas", pointer=scope.below(keyword).pointer
            )
        return [self._schema(part, scope.below(keyword, i), depth + 1) for i, part in enumerate(schemas)]

    def _map(self, schema: Mapping[str, Any], keyword: str, scope: Scope, depth: int) -> list[tuple[str, FormulaId]]:
        if keyword not in schema:
            return []
        schemas = schema[keyword]
        if not isinstance(schemas, dict):
            raise InvalidSpecificationError(f"{keyword} must be an object", pointer=scope.below(keyword).pointer)
        return [(name, self._schema(part, scope.below(keyword, name), depth + 1)) for name, part in schemas.items()]

    # -- assertions about any type ---------------------------------------------------------------------------------

    def _type(self, schema: Mapping[str, Any], scope: Scope) -> FormulaId:
        names = schema["type"]
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not names or not all(isinstance(n, str) and n in _TYPES for n in names):
            raise InvalidSpecificationError(
                f"type must be one of {', '.join(_TYPES)}, or an array of them", pointer=scope.below("type").pointer
            )
        identity = (scope.draft, *names)
        if identity not in self._types:
            self._types[identity] = self._one_of_types(names, scope.draft)
        return self._types[identity]

    def _one_of_types(self, names: list[str], draft: int) -> FormulaId:
        test = self._pool.types(functools.reduce(operator.or_, [_TYPES[name] for name in names]))
        if "integer" in names and "number" not in names:
            with_fraction = self._options.number_spelling == "any" and draft > 4
            integer = MultipleOf("1") if with_fraction else IsInteger(by_spelling=draft == 4)
            return self._pool.all_of([test, self._pool.leaf(JsonType.NUMBER, integer)])
        return test

    def _finite(self, schema: Mapping[str, Any], scope: Scope) -> FormulaId:
        parts = []
        if "const" in schema:
            parts.append(self._values([schema["const"]]))
        if "enum" in schema:
            if not isinstance(schema["enum"], list):
                raise InvalidSpecificationError("enum must be an array", pointer=scope.below("enum").pointer)
            parts.append(self._values(schema["enum"]))
        return self._pool.all_of(parts)

    def _values(self, values: list[Any]) -> FormulaId:
        """Exactly these values: scalars of one type together, arrays and objects each as a shape of their own."""
        strings: list[str] = []
        numbers: list[str] = []
        constants = JsonType(0)
        parts: list[FormulaId] = []
        for value in values:
            if value is None:
                constants |= JsonType.NULL
            elif isinstance(value, bool):
                constants |= JsonType.TRUE if value else JsonType.FALSE
            elif isinstance(value, str):
                strings.append(value)
            elif isinstance(value, int | float | Decimal):
                numbers.extend(_spellings(value, with_fraction=self._options.number_spelling == "any"))
            elif isinstance(value, list):
                shape = ArrayShape(tuple(self._values([item]) for item in value), FALSE, len(value), len(value))
                parts.append(self._typed(JsonType.ARRAY, shape))
            else:
                properties = tuple((name, self._values([item])) for name, item in value.items())
                parts.append(self._typed(JsonType.OBJECT, ObjectShape(properties, (), FALSE, tuple(value))))
        if strings:
            parts.append(self._typed(JsonType.STRING, FiniteTexts(tuple(dict.fromkeys(strings)))))
        if numbers:
            parts.append(self._typed(JsonType.NUMBER, FiniteTexts(tuple(dict.fromkeys(numbers)))))
        return self._pool.any_of([self._pool.types(constants), *parts])

    def _typed(self, type_: JsonType, assertion: Assertion) -> FormulaId:
        return self._pool.all_of([self._pool.types(type_), self._pool.leaf(type_, assertion)])

    # -- assertions about one type ---------------------------------------------------------------------------------

    def _string(self, schema: Mapping[str, Any], scope: Scope) -> FormulaId:
        parts = []
        minimum = self._count(schema, "minLength", scope) or 0
        maximum = self._count(schema, "maxLength", scope)
        if minimum or maximum is not None:
            parts.append(self._pool.leaf(JsonType.STRING, StringLengths(minimum, maximum)))
        if "pattern" in schema:
            parts.append(self._pattern(schema["pattern"], scope.below("pattern")))
        if "format" in schema:
            parts.append(self._format(schema["format"], scope))
        return self._pool.all_of(parts)

    def _pattern(self, pattern: Any, scope: Scope) -> FormulaId:
        self._check_pattern(pattern, scope, pattern_and_lengths)
        return self._pool.leaf(JsonType.STRING, StringPattern(pattern))

    def _check_pattern(self, pattern: Any, scope: Scope, read: Callable[[str, Limits], object]) -> None:
        """Raise what `read` raises, by which it is read later, with the pointer to it."""
        if not isinstance(pattern, str):
            raise InvalidSpecificationError("a pattern must be a string", pointer=scope.pointer)
        try:
            read(pattern, self._limits)
        except GrammarError as error:
            error.pointer = scope.pointer
            raise

    def _format(self, name: Any, scope: Scope) -> FormulaId:
        if not isinstance(name, str):
            raise InvalidSpecificationError("format must be a string", pointer=scope.below("format").pointer)
        if self._options.format == "annotate" and not scope.dialect.asserts_format:
            return TRUE
        if name not in formats.PATTERNS:
            self.notes.append(f"{scope.pointer or '#'}: unknown format {name!r}")
            return TRUE
        parts = [self._pool.leaf(JsonType.STRING, StringPattern(formats.source_of(name, scope.draft)))]
        if name in formats.MAXIMUM_LENGTHS:
            parts.append(self._pool.leaf(JsonType.STRING, StringLengths(0, formats.MAXIMUM_LENGTHS[name])))
        return self._pool.all_of(parts)

    def _number(self, schema: Mapping[str, Any], scope: Scope) -> FormulaId:
        parts = []
        for side, upper in (("Minimum", False), ("Maximum", True)):
            keyword, exclusive = side.lower(), f"exclusive{side}"
            strict = scope.draft == 4 and schema.get(exclusive) is True
            if keyword in schema:
                parts.append(self._bound(schema, keyword, scope, upper, strict))
            if exclusive in schema and scope.draft > 4:
                parts.append(self._bound(schema, exclusive, scope, upper, True))
        if "multipleOf" in schema:
            divisor = self._decimal(schema, "multipleOf", scope)
            if divisor <= 0:
                raise InvalidSpecificationError(
                    "multipleOf must be positive", pointer=scope.below("multipleOf").pointer
                )
            parts.append(self._pool.leaf(JsonType.NUMBER, MultipleOf(format(divisor, "f"))))
        if parts and _PLAIN_NUMBERS not in self.notes:
            self.notes.append(_PLAIN_NUMBERS)
        return self._pool.all_of(parts)

    def _bound(self, schema: Mapping[str, Any], keyword: str, scope: Scope, upper: bool, exclusive: bool) -> FormulaId:
        bound = format(self._decimal(schema, keyword, scope), "f")
        return self._pool.leaf(JsonType.NUMBER, NumberBound(bound, upper, exclusive))

    def _array(self, schema: Mapping[str, Any], scope: Scope, depth: int) -> FormulaId:
        parts = []
        prefix: list[FormulaId] = []
        items = TRUE
        if "prefixItems" in schema:
            prefix = self._list(schema, "prefixItems", scope, depth)
        if isinstance(schema.get("items"), list) and scope.draft < 2020:
            prefix = self._list(schema, "items", scope, depth) if schema["items"] else []
            if "additionalItems" in schema:
                items = self._sub(schema, "additionalItems", scope, depth)
        elif "items" in schema:
            items = self._sub(schema, "items", scope, depth)
        minimum = self._count(schema, "minItems", scope) or 0
        maximum = self._count(schema, "maxItems", scope)
        if prefix or items != TRUE or minimum or maximum is not None:
            parts.append(self._pool.leaf(JsonType.ARRAY, ArrayShape(tuple(prefix), items, minimum, maximum)))
        if "contains" in schema:
            contained = self._sub(schema, "contains", scope, depth)
            least = self._count(schema, "minContains", scope)
            most = self._count(schema, "maxContains", scope)
            count = ItemCount(contained, 1 if least is None else least, most)
            if count.minimum or most is not None:
                parts.append(self._pool.leaf(JsonType.ARRAY, count))
        if schema.get("uniqueItems") is True and (maximum is None or maximum > 1):
            parts.append(self._unique(schema, scope))
        return self._pool.all_of(parts)

    def _unique(self, schema: Mapping[str, Any], scope: Scope) -> FormulaId:
        """Items out of finitely many values are unique when each value occurs at most once."""
        values = listed_items(schema, scope, self._references)
        equal: dict[Hashable, list[Any]] = {}
        for value in values or []:
            equal.setdefault(identity(value), []).append(value)
        if values is None or len(equal) > MAX_UNIQUE:
            raise UnsupportedFeatureError(
                f"uniqueItems is supported for {RESTRICTIONS['uniqueItems']}",
                pointer=scope.below("uniqueItems").pointer,
            )
        once = [self._pool.leaf(JsonType.ARRAY, ItemCount(self._values(same), 0, 1)) for same in equal.values()]
        return self._pool.all_of(once)

    def _object(self, schema: Mapping[str, Any], scope: Scope, depth: int) -> FormulaId:
        pool = self._pool
        parts = []
        properties = self._map(schema, "properties", scope, depth)
        patterns = self._map(schema, "patternProperties", scope, depth)
        for pattern, _ in patterns:
            self._check_pattern(pattern, scope.below("patternProperties", pattern), search_automaton)
        additional = FALSE if "properties" in schema and not self._options.additional_properties else TRUE
        if "additionalProperties" in schema:
            additional = self._sub(schema, "additionalProperties", scope, depth)
        required = self._names(schema["required"], scope.below("required")) if "required" in schema else ()
        if properties or patterns or required or additional != TRUE:
            shape = ObjectShape(tuple(properties), tuple(patterns), additional, required)
            parts.append(pool.leaf(JsonType.OBJECT, shape))
        if "propertyNames" in schema:
            names = self._sub(schema, "propertyNames", scope, depth)
            parts.append(pool.leaf(JsonType.OBJECT, PropertyNames(names)))
        least = self._count(schema, "minProperties", scope) or 0
        most = self._count(schema, "maxProperties", scope)
        if least > len(properties) + len(required) + 1:
            # Undeclared names may repeat, so only one of them surely adds to the number of properties.
            raise UnsupportedFeatureError(
                f"minProperties is supported {RESTRICTIONS['minProperties']}",
                pointer=scope.below("minProperties").pointer,
            )
        if least or most is not None:
            parts.append(pool.leaf(JsonType.OBJECT, PropertyCount(least, most)))
        if not schema.keys().isdisjoint(_DEPENDENCIES):
            parts += self._dependencies(schema, scope, depth)
        return pool.all_of(parts)

    def _dependencies(self, schema: Mapping[str, Any], scope: Scope, depth: int) -> Iterator[FormulaId]:
        """Each as: not an object, or without the property, or what it implies."""
        pool = self._pool
        for keyword in _DEPENDENCIES:
            dependencies = schema.get(keyword, {})
            if not isinstance(dependencies, dict):
                raise InvalidSpecificationError(f"{keyword} must be an object", pointer=scope.below(keyword).pointer)
            for name, implied in dependencies.items():
                place = scope.below(keyword, name)
                if keyword == "dependentRequired" or (keyword == "dependencies" and isinstance(implied, list)):
                    consequence = requires(pool, self._names(implied, place))
                else:
                    consequence = self._schema(implied, place, depth + 1)
                if consequence != TRUE:
                    other = pool.types(ALL_TYPES & ~JsonType.OBJECT)
                    yield pool.any_of([other, pool.not_(requires(pool, (name,))), consequence])

    def _unevaluated(self, schema: Mapping[str, Any], scope: Scope, depth: int) -> FormulaId:
        pool = self._pool
        parts = []
        for keyword in _UNEVALUATED:
            if keyword in schema:
                rest = self._sub(schema, keyword, scope, depth)
                evaluations = self._evaluation.evaluations(schema, keyword, scope)
                parts.append(
                    pool.any_of(
                        pool.all_of([condition, self._remaining(keyword, evaluated, rest)])
                        for evaluated, condition in evaluations.items()
                    )
                )
        return pool.all_of(parts)

    def _remaining(self, keyword: str, evaluated: Evaluated, rest: FormulaId) -> FormulaId:
        """Parts that are not evaluated satisfy `rest`."""
        if evaluated.everything:
            return TRUE
        if keyword == "unevaluatedItems":
            items = self._pool.any_of([rest, *sorted(evaluated.contained)])
            return self._pool.leaf(JsonType.ARRAY, ArrayShape((TRUE,) * evaluated.count, items, 0, None))
        names = tuple((name, TRUE) for name in sorted(evaluated.names))
        patterns = tuple((pattern, TRUE) for pattern in sorted(evaluated.patterns))
        return self._pool.leaf(JsonType.OBJECT, ObjectShape(names, patterns, rest, ()))

    # -- values of keywords ----------------------------------------------------------------------------------------

    @staticmethod
    def _names(value: Any, scope: Scope) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise InvalidSpecificationError("must be an array of property names", pointer=scope.pointer)
        return tuple(dict.fromkeys(value))

    @staticmethod
    def _decimal(schema: Mapping[str, Any], keyword: str, scope: Scope) -> Decimal:
        value = schema[keyword]
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise InvalidSpecificationError(f"{keyword} must be a number", pointer=scope.below(keyword).pointer)
        number = Decimal(str(value))
        if not number.is_finite() or abs(number.adjusted()) > _MAX_MAGNITUDE:
            raise LimitExceededError(
                f"{keyword} is beyond the range of numbers (1e{_MAX_MAGNITUDE})", pointer=scope.below(keyword).pointer
            )
        return number

    def _count(self, schema: Mapping[str, Any], keyword: str, scope: Scope) -> int | None:
        if keyword not in schema:
            return None
        value = self._decimal(schema, keyword, scope)
        if value != value.to_integral_value() or value < 0:
            raise InvalidSpecificationError(
                f"{keyword} must be a non-negative integer", pointer=scope.below(keyword).pointer
            )
        if value > _MAX_COUNT and keyword.startswith("min"):
            raise LimitExceededError(f"{keyword} above {_MAX_COUNT}", pointer=scope.below(keyword).pointer)
        # No larger maximum makes a difference to anything that fits into memory.
        return min(int(value), _MAX_COUNT)


def _spellings(value: int | float | Decimal, *, with_fraction: bool) -> Iterator[str]:
    """How a number is written: as `json.dumps` does, and as an integer too where it equals one (2.0 is 2, or 2 2.0)."""
    yield json.dumps(value) if isinstance(value, int | float) else str(value)
    if value == int(value):
        yield str(int(value))
        if with_fraction:
            yield f"{int(value)}.0"
            if not value:
                yield from ("-0", "-0.0")

"""Reads a JSON Schema into formulas: every keyword is enforced, refused with its JSON Pointer, or noted as ignored."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from grammar_workers.errors import (
    GrammarError,
    InvalidSpecificationError,
    LimitExceededError,
    UnsupportedFeatureError,
)
from grammar_workers.json_schema.formula import (
    BOOLEAN,
    FALSE,
    TRUE,
    ArrayShape,
    FiniteTexts,
    FormulaId,
    FormulaPool,
    IsInteger,
    JsonType,
    NumberBound,
    ObjectShape,
    StringLengths,
    StringPattern,
)
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.regex import compile_regex

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

ANNOTATIONS = frozenset(
    ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"]
    + ["contentEncoding", "contentMediaType", "contentSchema"]
)
"""Keywords that never assert anything: they do not change the key."""

SUBSCHEMAS = frozenset(
    ["additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames"]
    + ["unevaluatedItems", "unevaluatedProperties"]
)
"""Keywords whose value is a schema (`items` may also be an array of them)."""
SCHEMA_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
"""Keywords whose value is an array of schemas."""
SCHEMA_MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"])
"""Keywords whose value maps names to schemas."""

_CONTAINERS = frozenset(["$defs", "definitions"])
_ENFORCED = frozenset(
    ["type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems"]
    + ["maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
    + ["anyOf", "$ref"]
)
_REFUSED = frozenset(
    ["allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"]
    + ["patternProperties", "propertyNames", "minProperties", "maxProperties", "additionalItems", "contains"]
    + ["minContains", "maxContains", "uniqueItems", "multipleOf", "format", "$anchor", "$id", "id", "$dynamicRef"]
    + ["$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "unevaluatedProperties", "unevaluatedItems"]
    + ["$vocabulary"]
)


class SchemaReader:
    """Reads one document. `notes` collects what was ignored, for `TokenFSM.notes`."""

    def __init__(self, document: Schema, pool: FormulaPool, options: GrammarOptions, limits: Limits) -> None:
        self._document = document
        self._pool = pool
        self._options = options
        self._limits = limits
        self._pending: list[str] = []
        self._defined: set[str] = set()
        self.notes: list[str] = []

    def read(self) -> FormulaId:
        """The formula of the whole document; everything it refers to is defined in the pool."""
        root = self._refer("")
        while self._pending:
            pointer = self._pending.pop()
            self._pool.define(pointer, self._schema(self._locate(pointer), pointer, 0))
        return root

    # -- structure -----------------------------------------------------------------------------------------------

    def _refer(self, pointer: str) -> FormulaId:
        if pointer not in self._defined:
            self._defined.add(pointer)
            self._pending.append(pointer)
        return self._pool.reference(pointer)

    def _locate(self, pointer: str) -> Any:
        target: Any = self._document
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and name in target:
                target = target[name]
            elif isinstance(target, list) and re.fullmatch("0|[1-9][0-9]*", name) and int(name) < len(target):
                target = target[int(name)]
            else:
                raise InvalidSpecificationError(f"$ref to {pointer or '#'!r}, which does not exist", pointer=pointer)
        return target

    def _schema(self, schema: Any, pointer: str, depth: int) -> FormulaId:
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        if not isinstance(schema, Mapping):
            raise InvalidSpecificationError("a schema must be an object or a boolean", pointer=pointer)
        if depth > self._limits.max_nesting:
            raise LimitExceededError(
                f"the schema nests deeper than {self._limits.max_nesting} (limit max_nesting)", pointer=pointer
            )
        for keyword in schema:
            if keyword in _REFUSED and not self._is_trivial(keyword, schema[keyword]):
                raise UnsupportedFeatureError(
                    f"the keyword {keyword!r} is not supported", pointer=f"{pointer}/{_escape(keyword)}"
                )
            if keyword not in _ENFORCED and keyword not in _CONTAINERS and keyword not in ANNOTATIONS:
                self.notes.append(f"{pointer or '#'}: ignored keyword {keyword!r}")
        parts = [
            self._type(schema, pointer),
            self._finite(schema, pointer),
            self._string(schema, pointer),
            self._number(schema, pointer),
            self._array(schema, pointer, depth),
            self._object(schema, pointer, depth),
            self._any_of(schema, pointer, depth),
            self._ref(schema, pointer),
        ]
        return self._pool.all_of(parts)

    @staticmethod
    def _is_trivial(keyword: str, value: Any) -> bool:
        """Whether a keyword that is not enforced says nothing here."""
        return (keyword == "uniqueItems" and value is False) or (keyword in ("$id", "id") and isinstance(value, str))

    def _any_of(self, schema: Mapping[str, Any], pointer: str, depth: int) -> FormulaId:
        if "anyOf" not in schema:
            return TRUE
        parts = self._schema_list(schema["anyOf"], f"{pointer}/anyOf", depth)
        return self._pool.any_of(parts)

    def _schema_list(self, schemas: Any, pointer: str, depth: int) -> list[FormulaId]:
        if not isinstance(schemas, list) or not schemas:
            raise InvalidSpecificationError("must be a non-empty array of schemas", pointer=pointer)
        return [self._schema(part, f"{pointer}/{i}", depth + 1) for i, part in enumerate(schemas)]

    def _ref(self, schema: Mapping[str, Any], pointer: str) -> FormulaId:
        if "$ref" not in schema:
            return TRUE
        ref = schema["$ref"]
        if not isinstance(ref, str):
            raise InvalidSpecificationError("$ref must be a string", pointer=f"{pointer}/$ref")
        if ref != "#" and not ref.startswith("#/"):
            raise UnsupportedFeatureError(
                f"$ref to {ref!r}: only references within the document", pointer=f"{pointer}/$ref"
            )
        target = urllib.parse.unquote(ref[1:])
        try:
            self._locate(target)
        except InvalidSpecificationError as error:
            raise InvalidSpecificationError(error.message, pointer=f"{pointer}/$ref") from None
        return self._refer(target)

    # -- assertions about any type -------------------------------------------------------------------------------

    def _type(self, schema: Mapping[str, Any], pointer: str) -> FormulaId:
        if "type" not in schema:
            return TRUE
        names = schema["type"]
        names = [names] if isinstance(names, str) else names
        if (
            not isinstance(names, list)
            or not names
            or any(name not in _TYPES for name in names if isinstance(name, str))
        ):
            raise InvalidSpecificationError(
                f"type must be one of {', '.join(_TYPES)}, or an array of them", pointer=f"{pointer}/type"
            )
        types = JsonType(0)
        for name in names:
            if not isinstance(name, str):
                raise InvalidSpecificationError("type must hold strings", pointer=f"{pointer}/type")
            types |= _TYPES[name]
        test = self._pool.types(types)
        if "integer" in names and "number" not in names:
            return self._pool.all_of([test, self._pool.leaf(JsonType.NUMBER, IsInteger())])
        return test

    def _finite(self, schema: Mapping[str, Any], pointer: str) -> FormulaId:
        parts = []
        if "const" in schema:
            parts.append(self._values([schema["const"]]))
        if "enum" in schema:
            if not isinstance(schema["enum"], list):
                raise InvalidSpecificationError("enum must be an array", pointer=f"{pointer}/enum")
            parts.append(self._values(schema["enum"]))
        return self._pool.all_of(parts)

    def _values(self, values: list[Any]) -> FormulaId:
        """Exactly these values: scalars of one type together, arrays and objects each as a shape of their own."""
        pool = self._pool
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
                numbers.extend(_spellings(value))
            elif isinstance(value, list):
                shape = ArrayShape(tuple(self._values([item]) for item in value), FALSE, len(value), len(value))
                parts.append(self._typed(JsonType.ARRAY, shape))
            else:
                properties = tuple((name, self._values([item])) for name, item in value.items())
                parts.append(self._typed(JsonType.OBJECT, ObjectShape(properties, FALSE, tuple(value))))
        if strings:
            parts.append(self._typed(JsonType.STRING, FiniteTexts(tuple(dict.fromkeys(strings)))))
        if numbers:
            parts.append(self._typed(JsonType.NUMBER, FiniteTexts(tuple(dict.fromkeys(numbers)))))
        return pool.any_of([pool.types(constants), *parts])

    def _typed(self, type_: JsonType, assertion: Any) -> FormulaId:
        return self._pool.all_of([self._pool.types(type_), self._pool.leaf(type_, assertion)])

    # -- assertions about one type -------------------------------------------------------------------------------

    def _string(self, schema: Mapping[str, Any], pointer: str) -> FormulaId:
        parts = []
        minimum = self._count(schema, "minLength", pointer) or 0
        maximum = self._count(schema, "maxLength", pointer)
        if minimum or maximum is not None:
            parts.append(self._pool.leaf(JsonType.STRING, StringLengths(minimum, maximum)))
        if "pattern" in schema:
            pattern = schema["pattern"]
            if not isinstance(pattern, str):
                raise InvalidSpecificationError("pattern must be a string", pointer=f"{pointer}/pattern")
            try:
                compile_regex(pattern, search=True, limits=self._limits)
            except GrammarError as error:
                error.pointer = f"{pointer}/pattern"
                raise
            parts.append(self._pool.leaf(JsonType.STRING, StringPattern(pattern)))
        return self._pool.all_of(parts)

    def _number(self, schema: Mapping[str, Any], pointer: str) -> FormulaId:
        parts = []
        for keyword, upper, exclusive in (
            ("minimum", False, False),
            ("exclusiveMinimum", False, True),
            ("maximum", True, False),
            ("exclusiveMaximum", True, True),
        ):
            if keyword in schema:
                value = schema[keyword]
                if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
                    raise InvalidSpecificationError(f"{keyword} must be a number", pointer=f"{pointer}/{keyword}")
                bound = format(Decimal(str(value)), "f")
                parts.append(self._pool.leaf(JsonType.NUMBER, NumberBound(bound, upper, exclusive)))
        return self._pool.all_of(parts)

    def _array(self, schema: Mapping[str, Any], pointer: str, depth: int) -> FormulaId:
        if not any(keyword in schema for keyword in ("items", "prefixItems", "minItems", "maxItems")):
            return TRUE
        prefix = []
        if "prefixItems" in schema:
            prefix = self._schema_list(schema["prefixItems"], f"{pointer}/prefixItems", depth)
        if isinstance(schema.get("items"), list):
            raise UnsupportedFeatureError("items as an array is not supported", pointer=f"{pointer}/items")
        items = self._schema(schema["items"], f"{pointer}/items", depth + 1) if "items" in schema else TRUE
        minimum = self._count(schema, "minItems", pointer) or 0
        maximum = self._count(schema, "maxItems", pointer)
        return self._pool.leaf(JsonType.ARRAY, ArrayShape(tuple(prefix), items, minimum, maximum))

    def _object(self, schema: Mapping[str, Any], pointer: str, depth: int) -> FormulaId:
        if not any(keyword in schema for keyword in ("properties", "additionalProperties", "required")):
            return TRUE
        declared = schema.get("properties", {})
        if not isinstance(declared, Mapping):
            raise InvalidSpecificationError("properties must be an object", pointer=f"{pointer}/properties")
        properties = tuple(
            (name, self._schema(part, f"{pointer}/properties/{_escape(name)}", depth + 1))
            for name, part in declared.items()
        )
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise InvalidSpecificationError("required must be an array of strings", pointer=f"{pointer}/required")
        additional = TRUE if self._options.additional_properties or "properties" not in schema else FALSE
        if "additionalProperties" in schema:
            additional = self._schema(schema["additionalProperties"], f"{pointer}/additionalProperties", depth + 1)
        return self._pool.leaf(JsonType.OBJECT, ObjectShape(properties, additional, tuple(dict.fromkeys(required))))

    def _count(self, schema: Mapping[str, Any], keyword: str, pointer: str) -> int | None:
        value = schema.get(keyword)
        if keyword not in schema:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != int(value) or value < 0:
            raise InvalidSpecificationError(f"{keyword} must be a non-negative integer", pointer=f"{pointer}/{keyword}")
        return int(value)


def _spellings(value: int | float | Decimal) -> Iterator[str]:
    """How a number is written: as `json.dumps` does, and as an integer too where it equals one (2.0 is 2)."""
    yield json.dumps(value) if isinstance(value, int | float) else str(value)
    if not isinstance(value, int) and value == int(value):
        yield str(int(value))


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")

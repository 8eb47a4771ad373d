"""Base class of the converters of JSON Schemas to formats, for notations of values other than JSON.

A *format* is a node of a structural tag. All keywords of JSON Schema apply to strings and other scalars. Objects have
only the declared properties, in the declared order. If a schema does not restrict the type, only scalars are allowed.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Literal

from grammar_workers import tag_formats as formats
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.json_types import target_of, types_of_value
from grammar_workers.languages.json_schema.read.keywords import ANNOTATIONS
from grammar_workers.languages.tags.texts import StringTexts

# The JSON types that contain other values.
CONTAINERS = frozenset({"object", "array"})
_OBJECT = {"properties", "required", "additionalProperties"}
_ARRAY = {"items", "minItems", "maxItems"}
_ALTERNATIVES = ("anyOf", "oneOf")
# Maximum nesting depth, counting containers, references and alternatives.
_DEEPEST = 16

# The kinds of values that a notation writes differently.
Kind = Literal["string", "scalar", "object", "array"]


@dataclasses.dataclass(frozen=True)
class Listed:
    """Format (node of a structural tag) for a list of formats in order. Optional formats may be missing.

    Attributes:
        elements: Pairs (format, True if it is required).
        separator: Text between two formats that occur.
    """

    elements: tuple[tuple[Any, bool], ...]
    separator: str


class NestedValues(abc.ABC):
    """Base class of the converters of JSON Schemas to formats (nodes of structural tags), for one notation of values.

    Args:
        root: JSON document that contains the schemas. References are resolved in it.
        definitions: Definitions in the document, for references: keywords such as `$defs`, with their values.
        notation: The name of the notation, for errors.
    """

    def __init__(self, root: Any, definitions: dict[str, Any], notation: str) -> None:
        self._root = root
        self._definitions = definitions
        self._notation = notation

    # -- what a notation says ------------------------------------------------------------------------------------

    @abc.abstractmethod
    def member(self, name: str, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Return the format (node of a structural tag) of a property: its name and its value.

        An unsupported name or schema raises UnsupportedFeatureError with the JSON Pointer.

        Args:
            name: The name of the property.
            schema: The JSON Schema of its value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the property.
        """

    @abc.abstractmethod
    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Return the format (node of a structural tag) of the values that a schema allows.

        An unsupported schema raises UnsupportedFeatureError with its pointer.

        Args:
            schema: The JSON Schema of the value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the value.
        """

    @abc.abstractmethod
    def _object(self, listed: list[tuple[Any, bool]]) -> Any:
        """Return the format of an object with these properties, each with True if it is required."""

    @abc.abstractmethod
    def _array(self, items: Any, pointer: str, depth: int, least: int, most: int | None) -> Any:
        """Return the format of an array of `least` to `most` values of the schema `items`."""

    @abc.abstractmethod
    def _constant(self, value: Any, pointer: str) -> Any:
        """Return the format of one object or array."""

    # -- the walk ------------------------------------------------------------------------------------------------

    def told(self, schema: Any, types: frozenset[str] | None = None) -> dict[str, Any]:
        """Return a copy of a schema with the definitions of its document, so that references can be resolved.

        Args:
            schema: The JSON Schema; not changed.
            types: The JSON types that the result allows. None: those that `schema` allows.
        """
        parts = [schema] if types is None else [schema, {"type": sorted(types)}]
        return {**self._definitions, "allOf": parts}

    def types(self, schema: Any) -> frozenset[str]:
        """Return the JSON types that a schema allows. If it allows all types, `object` and `array` are omitted."""
        found = types_of_value(schema, self._root)
        return found - CONTAINERS if len(found) == 7 else found

    def kinds(self, schema: Any, pointer: str, depth: int, excludes: tuple[str, ...]) -> list[tuple[Kind, Any]]:
        """Return formats (nodes of structural tags) that together describe all values that a schema allows.

        An unsupported schema raises UnsupportedFeatureError with its JSON Pointer.

        Args:
            schema: The JSON Schema of the value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the value.
            excludes: Texts that no string contains, such as the text that ends a string.

        Returns:
            Pairs (kind of the values, format). Kinds are `string`, `scalar` (all other scalars), `object` and `array`.
            Several pairs may have the same kind. [] if the schema allows no value.
        """
        types = self.types(schema)
        found: list[tuple[Kind, Any]] = []
        if "string" in types:
            found.append(("string", StringTexts(self.told(schema), excludes, but_json=False)))
        if scalars := types - {"string"} - CONTAINERS:
            found.append(("scalar", formats.JsonSchemaFormat(json_schema=self.told(schema, scalars))))
        return found + self.containers(schema, pointer, depth + 1) if types & CONTAINERS else found

    def containers(self, schema: Any, pointer: str, depth: int) -> list[tuple[Kind, Any]]:
        """Return formats (nodes of structural tags) that together describe the objects and arrays of a schema.

        Args:
            schema: The JSON Schema of the value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays), references and alternatives around the value.

        Returns:
            Pairs (kind, format). The kind is `object` or `array`. [] if the schema allows neither.

        Raises:
            UnsupportedFeatureError: `depth` exceeds 16 (the schema may be recursive), or a keyword is not supported.
        """
        if depth > _DEEPEST:
            raise UnsupportedFeatureError(f"a value that holds its own kind, in {self._notation}", pointer=pointer)
        types = types_of_value(schema, self._root)
        if not types & CONTAINERS:
            return []
        keywords = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
        if "const" in keywords or "enum" in keywords:
            self._check(keywords, {"const", "enum", "type"}, pointer)
            self._check(keywords, {"enum" if "enum" in keywords else "const", "type"}, pointer)
            return [
                ("object" if isinstance(value, dict) else "array", self._constant(value, pointer))
                for value in keywords.get("enum", [keywords.get("const")])
                if isinstance(value, dict | list)
            ]
        if "$ref" in keywords:
            self._check(keywords, {"$ref"}, pointer)
            return self.containers(target_of(keywords["$ref"], self._root), pointer, depth + 1)
        for word in _ALTERNATIVES:
            if word in keywords:
                return self._alternatives(word, keywords, pointer, depth)
        found: list[tuple[Kind, Any]] = []
        known = {"type"} | (_OBJECT if "object" in types else set()) | (_ARRAY if "array" in types else set())
        self._check(keywords, known, pointer)
        if "object" in types:
            found.append(("object", self._object(self._members(schema, pointer, depth))))
        if "array" in types:
            least, most = keywords.get("minItems", 0), keywords.get("maxItems")
            found.append(("array", self._array(keywords.get("items", True), f"{pointer}/items", depth, least, most)))
        return found

    def _alternatives(self, word: str, keywords: dict[str, Any], pointer: str, depth: int) -> list[tuple[Kind, Any]]:
        self._check(keywords, {word, "type"}, pointer)
        held = [
            (f"{pointer}/{word}/{index}", part)
            for index, part in enumerate(keywords[word])
            if types_of_value(part, self._root) & CONTAINERS
        ]
        if word == "oneOf" and len(held) > 1:
            raise UnsupportedFeatureError(f"oneOf between containers, in {self._notation}", pointer=f"{pointer}/oneOf")
        return [one for place, part in held for one in self.containers(part, place, depth + 1)]

    def _members(self, schema: Any, pointer: str, depth: int) -> list[tuple[Any, bool]]:
        required = schema.get("required", [])
        properties = schema.get("properties", {})
        for name in required:
            if name not in properties:
                raise UnsupportedFeatureError(f"the required property {name!a} has no schema", pointer=pointer)
        return [
            (self.member(name, value, f"{pointer}/properties/{escaped(name)}", depth), name in required)
            for name, value in properties.items()
        ]

    def _check(self, keywords: dict[str, Any], known: set[str], pointer: str) -> None:
        """Raise UnsupportedFeatureError if there is a keyword that is not in `known`."""
        if others := keywords.keys() - known:
            name = min(others)
            raise UnsupportedFeatureError(
                f"`{name}` of an object or array, in {self._notation}", pointer=f"{pointer}/{escaped(name)}"
            )


def repeated(first: Any, further: Any, least: int, most: int | None) -> Any:
    """Return the format (node of a structural tag) of a list, such as items with a separator between them.

    Args:
        first: Format of the first element.
        further: Format of every further element, such as a separator and an item.
        least: Minimum number of elements.
        most: Maximum number of elements. None: unlimited. 0: the result describes the empty text.
    """
    if most == 0:
        return const("")
    times = formats.RepeatFormat.model_construct(
        min=max(least - 1, 0), max=-1 if most is None else max(most - 1, 0), content=further
    )
    items = sequence([first, times])
    return items if least else formats.OptionalFormat.model_construct(content=items)


# The contents of these formats are not client input and have been checked, so `model_construct` skips validation.


def const(text: str) -> Any:
    """Return the format (node of a structural tag) of a fixed text."""
    return formats.ConstStringFormat(value=text)


def sequence(elements: list[Any]) -> Any:
    """Return the format (node of a structural tag) for several formats in order. []: the format of the empty text."""
    if len(elements) == 1:
        return elements[0]
    return formats.SequenceFormat.model_construct(elements=elements or [const("")])


def any_of(elements: list[Any]) -> Any:
    """Return the format (node of a structural tag) for a choice between `elements`, at least one format."""
    return elements[0] if len(elements) == 1 else formats.OrFormat.model_construct(elements=elements)


def escaped(name: str) -> str:
    """Return a property name with the escapes of a JSON Pointer: `~` becomes `~0`, and `/` becomes `~1`."""
    return name.replace("~", "~0").replace("/", "~1")

"""Values of schemas as formats, where objects and arrays are not written as JSON: a walk that the notations share.

Strings and other scalars have all that their schema asks of them. Objects have the declared properties, in their order;
of values that a schema says nothing about there are the scalars.
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

CONTAINERS = frozenset({"object", "array"})
_OBJECT = {"properties", "required", "additionalProperties"}
_ARRAY = {"items", "minItems", "maxItems"}
_ALTERNATIVES = ("anyOf", "oneOf")
_DEEPEST = 16

Kind = Literal["string", "scalar", "object", "array"]


@dataclasses.dataclass(frozen=True)
class Listed:
    """Formats in a row, each with whether it must come, and a text between those that do."""

    elements: tuple[tuple[Any, bool], ...]
    separator: str


class NestedValues(abc.ABC):
    """The values that schemas within one document allow, in one notation."""

    def __init__(self, root: Any, definitions: dict[str, Any], notation: str) -> None:
        self._root = root
        self._definitions = definitions
        self._notation = notation

    # -- what a notation says ------------------------------------------------------------------------------------

    @abc.abstractmethod
    def member(self, name: str, schema: Any, pointer: str, depth: int = 0) -> Any:
        """A property with its name."""

    @abc.abstractmethod
    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Any value; UnsupportedFeatureError at `pointer` or below it."""

    @abc.abstractmethod
    def _object(self, listed: list[tuple[Any, bool]]) -> Any:
        """An object of these properties, each with whether it must come."""

    @abc.abstractmethod
    def _array(self, items: Any, pointer: str, depth: int, least: int, most: int | None) -> Any:
        """An array of `least` to `most` values of the schema `items`."""

    @abc.abstractmethod
    def _constant(self, value: Any, pointer: str) -> Any:
        """One object or array."""

    # -- the walk ------------------------------------------------------------------------------------------------

    def told(self, schema: Any, types: frozenset[str] | None = None) -> dict[str, Any]:
        """The schema, for values of these types alone, with what its references may lead to."""
        parts = [schema] if types is None else [schema, {"type": sorted(types)}]
        return {**self._definitions, "allOf": parts}

    def types(self, schema: Any) -> frozenset[str]:
        """The JSON types of values; without containers where the schema says nothing."""
        found = types_of_value(schema, self._root)
        return found - CONTAINERS if len(found) == 7 else found

    def kinds(self, schema: Any, pointer: str, depth: int, end: str) -> list[tuple[Kind, Any]]:
        """The strings without `end`, the other scalars, and the objects and arrays around which `depth` others are."""
        types = self.types(schema)
        found: list[tuple[Kind, Any]] = []
        if "string" in types:
            found.append(("string", StringTexts(self.told(schema), (end,), but_json=False)))
        if scalars := types - {"string"} - CONTAINERS:
            found.append(("scalar", formats.JsonSchemaFormat(json_schema=self.told(schema, scalars))))
        return found + self.containers(schema, pointer, depth + 1) if types & CONTAINERS else found

    def containers(self, schema: Any, pointer: str, depth: int) -> list[tuple[Kind, Any]]:
        """The objects and arrays among the values."""
        if depth > _DEEPEST:
            raise UnsupportedFeatureError(f"a value that holds its own kind, in {self._notation}", pointer=pointer)
        if not types_of_value(schema, self._root) & CONTAINERS:
            return []
        keywords = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
        if "const" in keywords or "enum" in keywords:
            if keywords.keys() - {"const", "enum", "type"} or len(keywords.keys() & {"const", "enum"}) > 1:
                raise self._unsupported(keywords, {"const", "enum", "type"}, pointer)
            return [
                ("object" if isinstance(value, dict) else "array", self._constant(value, pointer))
                for value in keywords.get("enum", [keywords.get("const")])
                if isinstance(value, dict | list)
            ]
        if "$ref" in keywords:
            if len(keywords) > 1:
                raise self._unsupported(keywords, {"$ref"}, pointer)
            return self.containers(target_of(keywords["$ref"], self._root), pointer, depth + 1)
        for word in _ALTERNATIVES:
            if word in keywords:
                return self._alternatives(word, keywords, pointer, depth)
        found: list[tuple[Kind, Any]] = []
        types = types_of_value(schema, self._root)
        known = {"type"} | (_OBJECT if "object" in types else set()) | (_ARRAY if "array" in types else set())
        if keywords.keys() - known:
            raise self._unsupported(keywords, known, pointer)
        if "object" in types:
            found.append(("object", self._object(self._members(schema, pointer, depth))))
        if "array" in types:
            least, most = keywords.get("minItems", 0), keywords.get("maxItems")
            found.append(("array", self._array(keywords.get("items", True), f"{pointer}/items", depth, least, most)))
        return found

    def _alternatives(self, word: str, keywords: dict[str, Any], pointer: str, depth: int) -> list[tuple[Kind, Any]]:
        if keywords.keys() - {word, "type"}:
            raise self._unsupported(keywords, {word, "type"}, pointer)
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

    def _unsupported(self, keywords: dict[str, Any], known: set[str], pointer: str) -> UnsupportedFeatureError:
        name = min(keywords.keys() - known) if keywords.keys() - known else "const"
        return UnsupportedFeatureError(
            f"`{name}` of an object or array, in {self._notation}", pointer=f"{pointer}/{escaped(name)}"
        )


def repeated(first: Any, further: Any, least: int, most: int | None) -> Any:
    """`first` and then any number of `further`, `least` to `most` altogether."""
    if most == 0:
        return const("")
    times = formats.RepeatFormat.model_construct(
        min=max(least - 1, 0), max=-1 if most is None else max(most - 1, 0), content=further
    )
    items = sequence([first, times])
    return items if least else formats.OptionalFormat.model_construct(content=items)


# What is inside is no format that came from outside, and has been checked.


def const(text: str) -> Any:
    """Exactly a text."""
    return formats.ConstStringFormat(value=text)


def sequence(elements: list[Any]) -> Any:
    """All of these, one after the other."""
    if len(elements) == 1:
        return elements[0]
    return formats.SequenceFormat.model_construct(elements=elements or [const("")])


def any_of(elements: list[Any]) -> Any:
    """One of these."""
    return elements[0] if len(elements) == 1 else formats.OrFormat.model_construct(elements=elements)


def escaped(name: str) -> str:
    """A name as a step of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")

"""Values with bare names, and strings as they are between two equal texts, as formats: Gemma's notation.

    {city:<escape>Paris<escape>,days:3,tags:[<escape>a<escape>,<escape>b<escape>]}

Strings and other scalars have all that their schema asks of them. Objects have the declared properties, in their order;
of values that a schema says nothing about there are the scalars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grammar_workers import tag_formats as formats
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.json_types import target_of, types_of_value
from grammar_workers.languages.json_schema.read.keywords import ANNOTATIONS
from grammar_workers.notations import bare_literal

_CONTAINERS = frozenset({"object", "array"})
_OBJECT = {"properties", "required", "additionalProperties"}
_ARRAY = {"items", "minItems", "maxItems"}
_ALTERNATIVES = ("anyOf", "oneOf")
_DEEPEST = 16

Listing = Callable[[list[tuple[Any, bool]], str], Any]
"""(Formats with whether each must come, the text between two) -> a format."""
Text = Callable[[Any], Any]
"""The schema of a string -> the format of its text, which does not hold the quote."""


class BareValues:
    """The values that schemas within one document allow. `quote` stands on both sides of a string."""

    def __init__(self, root: Any, definitions: dict[str, Any], quote: str, text: Text, listing: Listing) -> None:
        self._root = root
        self._definitions = definitions
        self._quote = quote
        self._text = text
        self._listing = listing

    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """The format of a value; UnsupportedFeatureError at `pointer` or below it."""
        types = types_of_value(schema, self._root)
        told = {**self._definitions, "allOf": [schema]}
        found = []
        if "string" in types:
            quote = formats.ConstStringFormat(value=self._quote)
            found.append(_sequence([quote, self._text(told), quote]))
        if scalars := types - {"string"} - _CONTAINERS:
            typed = {**self._definitions, "allOf": [schema, {"type": sorted(scalars)}]}
            found.append(formats.JsonSchemaFormat(json_schema=typed))
        if types & _CONTAINERS and len(types) < 7:
            found += self._containers(schema, pointer, depth + 1)
        return _any_of(found)

    def _containers(self, schema: Any, pointer: str, depth: int) -> list[Any]:
        """The objects and arrays among the values."""
        if depth > _DEEPEST:
            raise UnsupportedFeatureError("a value that holds its own kind, in this notation", pointer=pointer)
        if not types_of_value(schema, self._root) & _CONTAINERS:
            return []
        keywords = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
        if "const" in keywords or "enum" in keywords:
            if keywords.keys() - {"const", "enum", "type"} or len(keywords.keys() & {"const", "enum"}) > 1:
                raise self._unsupported(keywords, {"const", "enum", "type"}, pointer)
            values = keywords.get("enum", [keywords.get("const")])
            written = [bare_literal(value, self._quote) for value in values if isinstance(value, dict | list)]
            return [formats.ConstStringFormat(value=text) for text in written]
        if "$ref" in keywords:
            if len(keywords) > 1:
                raise self._unsupported(keywords, {"$ref"}, pointer)
            return self._containers(target_of(keywords["$ref"], self._root), pointer, depth + 1)
        for word in _ALTERNATIVES:
            if word in keywords:
                return self._alternatives(word, keywords, pointer, depth)
        found = []
        types = types_of_value(schema, self._root)
        known = {"type"} | (_OBJECT if "object" in types else set()) | (_ARRAY if "array" in types else set())
        if keywords.keys() - known:
            raise self._unsupported(keywords, known, pointer)
        if "object" in types:
            found.append(_sequence([_const("{"), self.members(schema, pointer, depth), _const("}")]))
        if "array" in types:
            found.append(self._array(keywords, pointer, depth))
        return found

    def _alternatives(self, word: str, keywords: dict[str, Any], pointer: str, depth: int) -> list[Any]:
        if keywords.keys() - {word, "type"}:
            raise self._unsupported(keywords, {word, "type"}, pointer)
        held = [
            (f"{pointer}/{word}/{index}", part)
            for index, part in enumerate(keywords[word])
            if types_of_value(part, self._root) & _CONTAINERS
        ]
        if word == "oneOf" and len(held) > 1:
            raise UnsupportedFeatureError("oneOf between containers, in this notation", pointer=f"{pointer}/oneOf")
        return [one for place, part in held for one in self._containers(part, place, depth + 1)]

    def members(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """What stands between the braces of an object."""
        required = schema.get("required", [])
        properties = schema.get("properties", {})
        for name in required:
            if name not in properties:
                raise UnsupportedFeatureError(f"the required property {name!a} has no schema", pointer=pointer)
        listed = []
        for name, value in properties.items():
            place = f"{pointer}/properties/{name.replace('~', '~0').replace('/', '~1')}"
            if not is_bare(name):
                raise UnsupportedFeatureError(f"the name {name!a} in this notation", pointer=place)
            listed.append((_sequence([_const(f"{name}:"), self.value(value, place, depth)]), name in required))
        return self._listing(listed, ",")

    def _array(self, keywords: dict[str, Any], pointer: str, depth: int) -> Any:
        item = self.value(keywords.get("items", True), f"{pointer}/items", depth)
        least, most = keywords.get("minItems", 0), keywords.get("maxItems")
        further = _sequence([_const(","), item])
        times = formats.RepeatFormat.model_construct(
            min=max(least - 1, 0), max=-1 if most is None else max(most - 1, 0), content=further
        )
        items = _sequence([item, times])
        if most == 0:
            items = _const("")
        elif least == 0:
            items = formats.OptionalFormat.model_construct(content=items)
        return _sequence([_const("["), items, _const("]")])

    def _unsupported(self, keywords: dict[str, Any], known: set[str], pointer: str) -> UnsupportedFeatureError:
        name = min(keywords.keys() - known) if keywords.keys() - known else "const"
        return UnsupportedFeatureError(
            f"`{name}` of an object or array, in this notation", pointer=f"{pointer}/{name.replace('~', '~0')}"
        )


def is_bare(name: str) -> bool:
    """Whether a name can stand without quotes."""
    return name.isidentifier() and name.isascii()


def _const(text: str) -> Any:
    return formats.ConstStringFormat(value=text)


def _sequence(elements: list[Any]) -> Any:
    return formats.SequenceFormat.model_construct(elements=elements)


def _any_of(elements: list[Any]) -> Any:
    return elements[0] if len(elements) == 1 else formats.OrFormat.model_construct(elements=elements)

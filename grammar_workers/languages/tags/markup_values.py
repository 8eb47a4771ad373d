"""Converters of JSON Schemas to formats (nodes of structural tags), for values in the markup of Cohere and MiniMax M3.

Values are elements, and elements can be nested. In Cohere's markup, the attribute `type` shows the kind of a value:

    <cofl:value name="city" type="raw">Paris</cofl:value>
    <cofl:value name="tags" type="list"><cofl:value type="json">1</cofl:value></cofl:value>

MiniMax M3's markup has no such attribute. An element with `item` elements is an array. An element with other child
elements is an object.

    ]<]minimax[>[<city>Paris]<]minimax[>[</city>
    ]<]minimax[>[<tags>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</tags>
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grammar_workers import tag_formats as formats
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.tags.nested_values import (
    CONTAINERS,
    Kind,
    Listed,
    NestedValues,
    any_of,
    const,
    repeated,
    sequence,
)
from grammar_workers.languages.tags.texts import untold_scalars


class _MarkupValues(NestedValues):
    """Values in a markup; `space` is a regular expression for white space around elements, "" if none is allowed."""

    def __init__(self, root: Any, definitions: dict[str, Any], space: str) -> None:
        super().__init__(root, definitions, "this markup")
        self._space = [formats.RegexFormat(pattern=space)] if space else []

    def _object(self, listed: list[tuple[Any, bool]]) -> Any:
        return sequence([Listed(tuple(listed), ""), *self._space])

    def _constant(self, value: Any, pointer: str) -> Any:
        raise UnsupportedFeatureError("an object or array as a constant, in this markup", pointer=pointer)


class CohereValues(_MarkupValues):
    """Converter of JSON Schemas to formats (nodes of structural tags) of their values in Cohere's markup.

    Args:
        root: JSON document that contains the schemas. References are resolved in it.
        definitions: Definitions in the document, for references: keywords such as `$defs`, with their values.
        space: Regular expression of optional white space between elements. Empty: no white space.
    """

    _TYPES: Mapping[Kind, str] = {"string": "raw", "scalar": "json", "object": "dict", "array": "list"}
    _END = "</cofl:value>"

    def member(self, name: str, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Return the format (node of a structural tag) of a property: an element with the property's name.

        Args:
            name: The name of the property.
            schema: The JSON Schema of its value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the property.

        Raises:
            UnsupportedFeatureError: The name is empty or contains a NUL character, or the value is not supported.
        """
        if not name or "\0" in name:
            raise UnsupportedFeatureError(f"the name {name!a} in this markup", pointer=pointer)
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
            name = name.replace(character, entity)
        return sequence([*self._space, const(f'<cofl:value name="{name}"'), self.value(schema, pointer, depth)])

    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Return the format (node of a structural tag) of the rest of an element, after its attribute `name`.

        The rest consists of the attribute `type`, the value and the end tag. An unsupported schema raises
        UnsupportedFeatureError with its JSON Pointer.

        Args:
            schema: The JSON Schema of the value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the value.
        """
        return any_of([self._told_kind(*found) for found in self.kinds(schema, pointer, depth, (self._END,))])

    def _told_kind(self, kind: Kind, content: Any) -> Any:
        spaces = [] if kind == "string" else self._space
        return sequence([const(f' type="{self._TYPES[kind]}">'), *spaces, content, *spaces, const(self._END)])

    def _array(self, items: Any, pointer: str, depth: int, least: int, most: int | None) -> Any:
        item = sequence([const("<cofl:value"), self.value(items, pointer, depth)])
        return repeated(item, item, least, most)


class MinimaxM3Values(_MarkupValues):
    """Converter of JSON Schemas to formats (nodes of structural tags) of their values in MiniMax M3's markup.

    The markup does not show the type of a value. If a value may be a string or another scalar, strings that look like
    JSON are excluded, and numbers are excluded.

    Args:
        root: JSON document that contains the schemas. References are resolved in it.
        definitions: Definitions in the document, for references: keywords such as `$defs`, with their values.
        space: Regular expression of optional white space between elements. Empty: no white space.
    """

    _MARK = "]<]minimax[>["

    def member(self, name: str, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Return the format (node of a structural tag) of a property: an element with the property's name.

        Args:
            name: The name of the property.
            schema: The JSON Schema of its value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the property.

        Raises:
            UnsupportedFeatureError: The value is not supported. Or the name is empty, begins with `/`, or contains `>`
                or NUL.
        """
        if not name or name.startswith("/") or ">" in name or "\0" in name:
            raise UnsupportedFeatureError(f"the name {name!a} in this markup", pointer=pointer)
        return self._element(name, self.value(schema, pointer, depth))

    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Return the format (node of a structural tag) of the values that a schema allows.

        Args:
            schema: The JSON Schema of the value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the value.

        Raises:
            UnsupportedFeatureError: The schema allows two of object, array and string, whose markup may be equal. Or
                the schema has a keyword that is not supported.
        """
        types = self.types(schema)
        found = untold_scalars(self.told(schema), types, (self._MARK,)) if types - CONTAINERS else []
        if held := types & CONTAINERS:
            if len(held) > 1:
                raise UnsupportedFeatureError(
                    "an object or an array, which this markup does not tell apart", pointer=pointer
                )
            if "string" in types:
                raise UnsupportedFeatureError(
                    f"a string or an {min(held)}, which this markup does not tell apart when empty", pointer=pointer
                )
            found += [format_ for _, format_ in self.containers(schema, pointer, depth + 1)]
        return any_of(found)

    def _element(self, name: str, content: Any) -> Any:
        return sequence([*self._space, const(f"{self._MARK}<{name}>"), content, const(f"{self._MARK}</{name}>")])

    def _array(self, items: Any, pointer: str, depth: int, least: int, most: int | None) -> Any:
        item = self._element("item", self.value(items, pointer, depth))
        if most == 0:
            return const("")
        listed = sequence([repeated(item, item, max(least, 1), most), *self._space])
        return listed if least else formats.OptionalFormat.model_construct(content=listed)

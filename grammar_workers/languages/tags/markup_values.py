"""Values whose objects and arrays are elements within elements, as formats: Cohere's and MiniMax M3's notations.

Cohere tells kinds apart by an attribute:

    <cofl:value name="city" type="raw">Paris</cofl:value>
    <cofl:value name="tags" type="list"><cofl:value type="json">1</cofl:value></cofl:value>

MiniMax M3 does not: an element within says that its parent is an object, or an array if it is an `item`.

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
    """`space` is a regular expression for where white space may stand, "" for nowhere."""

    def __init__(self, root: Any, definitions: dict[str, Any], space: str) -> None:
        super().__init__(root, definitions, "this markup")
        self._space = [formats.RegexFormat(pattern=space)] if space else []

    def _object(self, listed: list[tuple[Any, bool]]) -> Any:
        return sequence([Listed(tuple(listed), ""), *self._space])

    def _constant(self, value: Any, pointer: str) -> Any:
        raise UnsupportedFeatureError("an object or array as a constant, in this markup", pointer=pointer)


class CohereValues(_MarkupValues):
    """The values that schemas within one document allow, in Cohere's markup."""

    _TYPES: Mapping[Kind, str] = {"string": "raw", "scalar": "json", "object": "dict", "array": "list"}
    _END = "</cofl:value>"

    def member(self, name: str, schema: Any, pointer: str, depth: int = 0) -> Any:
        """A property with its name."""
        if not name or "\0" in name:
            raise UnsupportedFeatureError(f"the name {name!a} in this markup", pointer=pointer)
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
            name = name.replace(character, entity)
        return sequence([*self._space, const(f'<cofl:value name="{name}"'), self.value(schema, pointer, depth)])

    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """What stands in an element behind its name: the kind of the value, the value, and the end."""
        return any_of([self._told_kind(*found) for found in self.kinds(schema, pointer, depth, self._END)])

    def _told_kind(self, kind: Kind, content: Any) -> Any:
        spaces = [] if kind == "string" else self._space
        return sequence([const(f' type="{self._TYPES[kind]}">'), *spaces, content, *spaces, const(self._END)])

    def _array(self, items: Any, pointer: str, depth: int, least: int, most: int | None) -> Any:
        item = sequence([const("<cofl:value"), self.value(items, pointer, depth)])
        return repeated(item, item, least, most)


class MinimaxM3Values(_MarkupValues):
    """The values that schemas within one document allow, in MiniMax M3's markup.

    Where a value may be a string or something else, no string looks like JSON and no container is empty.
    """

    _MARK = "]<]minimax[>["

    def member(self, name: str, schema: Any, pointer: str, depth: int = 0) -> Any:
        """A property with its name."""
        if not name or name.startswith("/") or ">" in name or "\0" in name:
            raise UnsupportedFeatureError(f"the name {name!a} in this markup", pointer=pointer)
        return self._element(name, self.value(schema, pointer, depth))

    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Any value; UnsupportedFeatureError at `pointer` or below it."""
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

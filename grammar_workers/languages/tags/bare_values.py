"""Converter of JSON Schemas to formats (nodes of structural tags), for values in Gemma's notation.

Names have no quotes. The same quote text, here `<escape>`, begins and ends a string. Strings have no escapes:

{city:<escape>Paris<escape>,days:3,tags:[<escape>a<escape>,<escape>b<escape>]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.tags.nested_values import Listed, NestedValues, any_of, const, repeated, sequence
from grammar_workers.notations import bare_literal


class BareValues(NestedValues):
    """Converter of JSON Schemas to formats (nodes of structural tags) of their values in Gemma's notation.

    Args:
        root: JSON document that contains the schemas. References are resolved in it.
        definitions: Definitions in the document, for references: keywords such as `$defs`, with their values.
        quote: The text on both sides of a string.
        excludes: Texts that no string and no name contains.
    """

    def __init__(self, root: Any, definitions: dict[str, Any], quote: str, excludes: Sequence[str] = ()) -> None:
        super().__init__(root, definitions, "this notation")
        self._quote = quote
        self._excludes = tuple(excludes)

    def member(self, name: str, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Return the format (node of a structural tag) of a property: `name:value`.

        Args:
            name: The name of the property.
            schema: The JSON Schema of its value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the property.

        Raises:
            UnsupportedFeatureError: The name is not an ASCII identifier or contains an excluded text, or the value is
                not supported.
        """
        if not (name.isidentifier() and name.isascii()) or any(text in name for text in self._excludes):
            raise UnsupportedFeatureError(f"the name {name!a} in this notation", pointer=pointer)
        return sequence([const(f"{name}:"), self.value(schema, pointer, depth)])

    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Return the format (node of a structural tag) of the values that a schema allows.

        An unsupported schema raises UnsupportedFeatureError with its pointer.

        Args:
            schema: The JSON Schema of the value.
            pointer: JSON Pointer of the schema, for errors.
            depth: Number of containers (objects and arrays) around the value.
        """
        quote = const(self._quote)
        found = self.kinds(schema, pointer, depth, (self._quote, *self._excludes))
        return any_of([sequence([quote, one, quote]) if kind == "string" else one for kind, one in found])

    def _object(self, listed: list[tuple[Any, bool]]) -> Any:
        return sequence([const("{"), Listed(tuple(listed), ","), const("}")])

    def _array(self, items: Any, pointer: str, depth: int, least: int, most: int | None) -> Any:
        item = self.value(items, pointer, depth)
        return sequence([const("["), repeated(item, sequence([const(","), item]), least, most), const("]")])

    def _constant(self, value: Any, pointer: str) -> Any:
        literal = bare_literal(value, self._quote)
        if any(text in literal for text in self._excludes):
            raise UnsupportedFeatureError("an excluded text in `const` or `enum`, in this notation", pointer=pointer)
        return const(literal)

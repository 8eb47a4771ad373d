"""Values with bare names, and strings as they are between two equal texts, as formats: Gemma's notation.

{city:<escape>Paris<escape>,days:3,tags:[<escape>a<escape>,<escape>b<escape>]}
"""

from __future__ import annotations

from typing import Any

from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.tags.nested_values import Listed, NestedValues, any_of, const, repeated, sequence
from grammar_workers.notations import bare_literal


class BareValues(NestedValues):
    """The values that schemas within one document allow. `quote` stands on both sides of a string."""

    def __init__(self, root: Any, definitions: dict[str, Any], quote: str) -> None:
        super().__init__(root, definitions, "this notation")
        self._quote = quote

    def member(self, name: str, schema: Any, pointer: str, depth: int = 0) -> Any:
        """A property with its name."""
        if not (name.isidentifier() and name.isascii()):
            raise UnsupportedFeatureError(f"the name {name!a} in this notation", pointer=pointer)
        return sequence([const(f"{name}:"), self.value(schema, pointer, depth)])

    def value(self, schema: Any, pointer: str, depth: int = 0) -> Any:
        """Any value; UnsupportedFeatureError at `pointer` or below it."""
        quote = const(self._quote)
        found = self.kinds(schema, pointer, depth, self._quote)
        return any_of([sequence([quote, one, quote]) if kind == "string" else one for kind, one in found])

    def _object(self, listed: list[tuple[Any, bool]]) -> Any:
        return sequence([const("{"), Listed(tuple(listed), ","), const("}")])

    def _array(self, items: Any, pointer: str, depth: int, least: int, most: int | None) -> Any:
        item = self.value(items, pointer, depth)
        return sequence([const("["), repeated(item, sequence([const(","), item]), least, most), const("]")])

    def _constant(self, value: Any, pointer: str) -> Any:
        return const(bare_literal(value, self._quote))

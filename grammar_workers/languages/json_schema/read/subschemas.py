"""Keywords that hold schemas: one of them, an array or an object of them; each read at its own pointer, one deeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.read.references import Scope


class Subschemas:
    """The schemas inside of `schema`, which stands at `scope`; `read` reads one at its scope and depth."""

    def __init__(
        self, schema: Mapping[str, Any], scope: Scope, depth: int, read: Callable[[Any, Scope, int], FormulaId]
    ) -> None:
        self._schema = schema
        self._scope = scope
        self._inside = depth + 1
        self._read = read

    def at(self, scope: Scope, contents: Any) -> FormulaId:
        """The schema `contents`, which stands at `scope`."""
        return self._read(contents, scope, self._inside)

    def one(self, keyword: str) -> FormulaId:
        """The schema that a keyword holds."""
        return self._read(self._schema[keyword], self._scope.below(keyword), self._inside)

    def listed(self, keyword: str) -> list[FormulaId]:
        """The schemas of an array that a keyword holds, at least one."""
        schemas = self._schema[keyword]
        if not isinstance(schemas, list) or not schemas:
            raise InvalidSpecificationError(
                f"{keyword} must be a non-empty array of schemas", pointer=self._scope.below(keyword).pointer
            )
        return [self._read(part, self._scope.below(keyword, i), self._inside) for i, part in enumerate(schemas)]

    def named(self, keyword: str) -> list[tuple[str, FormulaId]]:
        """The schemas of an object that a keyword holds, with their names; none where the keyword is absent."""
        if keyword not in self._schema:
            return []
        schemas = self._schema[keyword]
        if not isinstance(schemas, dict):
            raise InvalidSpecificationError(f"{keyword} must be an object", pointer=self._scope.below(keyword).pointer)
        return [
            (name, self._read(part, self._scope.below(keyword, name), self._inside)) for name, part in schemas.items()
        ]

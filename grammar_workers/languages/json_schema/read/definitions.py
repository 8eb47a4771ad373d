"""Subschemas that stand for themselves: what `$ref` names and what must be spoken of before it has been read."""

from __future__ import annotations

from typing import Any

from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.read.keywords import REFERRING
from grammar_workers.languages.json_schema.read.references import References, Scope
from grammar_workers.languages.json_schema.read.schema_keywords import SchemaKeywords
from grammar_workers.languages.json_schema.read.unenforced import Unenforced

_STEPS_OF_REFERENCE = 40
"""Steps of the budget. Dynamic references may lead to the same subschemas in very many ways."""


class Definitions:
    """The references of a document: one per subschema and scope. `pending` must still be read and defined."""

    def __init__(self, pool: FormulaPool, references: References, left_out: Unenforced) -> None:
        self._pool = pool
        self._references = references
        self._left_out = left_out
        self._known: set[str] = set()
        self.pending: list[tuple[str, Any, Scope]] = []
        """Location, contents and scope."""

    def referred(self, schema: SchemaKeywords) -> FormulaId:
        """What a schema refers to."""
        parts = []
        for keyword in REFERRING:
            if keyword in schema:
                self._pool.spend(_STEPS_OF_REFERENCE)
                with self._left_out.unless_unsupported(schema, keyword):
                    parts.append(self.refer(*self._references.resolve(schema[keyword], keyword, schema.scope)))
        return self._pool.all_of(parts)

    def refer(self, contents: Any, scope: Scope) -> FormulaId:
        """The formula that means the subschema `contents`, which stands at `scope`."""
        if isinstance(contents, bool):
            return TRUE if contents else FALSE
        location = scope.location(contents)
        if location not in self._known:
            self._known.add(location)
            self.pending.append((location, contents, scope))
        self._left_out.refer(location)
        return self._pool.reference(location)

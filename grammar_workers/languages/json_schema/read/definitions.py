"""Subschemas that stand for themselves: what `$ref` names and what must be spoken of before it has been read."""

from __future__ import annotations

from typing import Any

from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.read.references import Scope


class Definitions:
    """The references of a document: one per subschema and scope. `pending` must still be read and defined."""

    def __init__(self, pool: FormulaPool) -> None:
        self._pool = pool
        self._known: set[str] = set()
        self.pending: list[tuple[str, Any, Scope]] = []
        """Location, contents and scope."""

    def refer(self, contents: Any, scope: Scope) -> FormulaId:
        """The formula that means the subschema `contents`, which stands at `scope`."""
        if isinstance(contents, bool):
            return TRUE if contents else FALSE
        location = scope.location(contents)
        if location not in self._known:
            self._known.add(location)
            self.pending.append((location, contents, scope))
        return self._pool.reference(location)

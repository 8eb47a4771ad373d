"""Registry of the subschemas to which formulas refer: targets of `$ref`, and subschemas that are read later."""

from __future__ import annotations

import dataclasses
from typing import Any

from grammar_workers.languages.json_schema.assertions import FormulaId
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.read.keywords import REFERRING
from grammar_workers.languages.json_schema.read.references import References, Scope
from grammar_workers.languages.json_schema.read.schema_keywords import SchemaKeywords
from grammar_workers.languages.json_schema.read.unenforced import Unenforced
from grammar_workers.options import GrammarOptions, Limits

# Budget steps for each reference. Dynamic references may reach the same subschemas on many paths.
_STEPS_OF_REFERENCE = 40


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """State that the converters of all keywords share while one document is read.

    Attributes:
        pool: Table of all formulas, which creates new formulas.
        references: The documents to which schemas refer. A warning may be appended to its `notes`.
        options: Options of the grammar, such as `number_spelling` and `format`.
        limits: Limits of the compilation.
        left_out: Records the keywords that are not enforced.
        notes: Warnings are appended to this list.
        distinct: True if masks may depend on earlier items of an array and earlier names of an object.
    """

    pool: FormulaPool
    references: References
    options: GrammarOptions
    limits: Limits
    left_out: Unenforced
    notes: list[str]
    distinct: bool


class Definitions:
    """Registry of the subschemas to which formulas refer. A subschema has one entry per scope.

    A scope is the context of a subschema: its dialect, its base URI and its path.

    Args:
        reading: The shared state of the conversion. It has the documents in which subschemas are looked up.

    Attributes:
        pending: Triples (location, contents, scope) of the subschemas that must still be read and defined in the pool.
            The location is a text that identifies the subschema in its scope.
    """

    def __init__(self, reading: Reading) -> None:
        self._pool = reading.pool
        self._references = reading.references
        self._left_out = reading.left_out
        self._known: set[str] = set()
        self.pending: list[tuple[str, Any, Scope]] = []

    def referred(self, schema: SchemaKeywords) -> FormulaId:
        """Return the number of the conjunction of all schemas to which a schema refers.

        References are `$ref`, `$dynamicRef` and `$recursiveRef`. GrammarError is raised if a reference cannot be
        resolved. With `on_unsupported: report`, a reference to a document that is not available is recorded as not
        enforced instead.

        Args:
            schema: The keywords of the schema with the references.
        """
        parts = []
        for keyword in REFERRING:
            if keyword in schema:
                self._pool.spend(_STEPS_OF_REFERENCE)
                with self._left_out.unless_unsupported(schema, keyword):
                    parts.append(self.refer(*self._references.resolve(schema[keyword], keyword, schema.scope)))
        return self._pool.all_of(parts)

    def refer(self, contents: Any, scope: Scope) -> FormulaId:
        """Return the number of a formula that stands for a subschema, which is read later.

        The first reference to the subschema in this scope appends it to `pending`.

        Args:
            contents: The subschema. True and False give the constants TRUE and FALSE.
            scope: Dialect, base URI and JSON Pointer of the subschema.
        """
        if isinstance(contents, bool):
            return TRUE if contents else FALSE
        location = scope.location(contents)
        if location not in self._known:
            self._known.add(location)
            self.pending.append((location, contents, scope))
        self._left_out.refer(location)
        return self._pool.reference(location)

"""Keywords that are reported instead of enforced, if the option `on_unsupported` is `report`.

An unenforced keyword must never exclude a valid instance. In most positions, a weaker inner schema makes the schemas
around it weaker, too. But under `not` and similar keywords, it makes the outer schema stronger. Therefore these
keywords are not enforced either:

    not enforced                           if this is not enforced         what still applies
    not                                    anything inside of it           -
    if (with then, else)                   anything inside of the `if`     -
    oneOf                                  anything inside of it           `anyOf` of the same schemas
    maxContains                            anything inside of `contains`   contains, minContains
    additionalProperties                   a pattern in the same schema    -
    unevaluatedProperties,                 a keyword that would evaluate   -
    unevaluatedItems                       parts: a reference, `if` ...

The reference to an unenforced keyword may be read before the keyword itself. So the document is read again, without the
keywords that are known to be unenforced, until no more are found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from grammar_workers.dfa.reached import reached
from grammar_workers.errors import LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.json_schema.read.references import Scope
from grammar_workers.languages.json_schema.read.schema_keywords import SchemaKeywords
from grammar_workers.types import UnenforcedKeyword
from grammar_workers.validation import pointer as pointer_of

# Largest number of characters of all pointers and reasons together, because responses contain them.
MOST_CHARACTERS = 100_000
_INSIDE = "something inside of it is not enforced"
_AS_ANY_OF = f"{_INSIDE}, so it is read as anyOf"

# Identity of a schema, one of its keywords, and a name below the keyword.
#
# The name is None if the whole keyword is meant.
Site = tuple[int, str, str | None]


class Unenforced:
    """Record of the keywords of one document that are not enforced. The document may be read several times.

    Args:
        report: True to record the keywords. False if every keyword must be enforced: `leave_out` then raises an error.
    """

    def __init__(self, *, report: bool) -> None:
        self._report = report
        # Schemas are identified by `id`, which is stable because documents live as long as their compilation.
        self._left_out: dict[Site, str] = {}
        self._evaluating: dict[int, list[str]] = {}
        self._met: dict[Site, Scope] = {}
        self._open: list[Site] = []
        self._definition = ""
        self._weakened: set[str] = set()
        self._referrers: dict[str, list[tuple[str, tuple[Site, ...]]]] = {}
        self._grown = False

    def begin(self) -> None:
        """Start another reading of the document. Keywords that an earlier reading left unenforced stay unenforced."""
        self._grown = False
        self._definition = ""
        self._met.clear()
        self._weakened.clear()
        self._referrers.clear()

    def complete(self) -> bool:
        """End a reading of the document, and return whether it was the last one.

        Returns:
            True if no further reading is needed, because this reading found no new unenforced keywords.
        """

        def referring(location: str) -> Iterator[str]:
            for referrer, sites in self._referrers.get(location, ()):
                self._doom(sites)
                yield referrer

        self._weakened.update(reached(self._weakened, referring))
        return not self._grown

    def define(self, location: str) -> None:
        """Start the subschema that `location` identifies: the keywords that are read from now on belong to it."""
        self._definition = location

    def refer(self, location: str) -> None:
        """Record a reference from the current subschema to the subschema that `location` identifies."""
        if self._report:
            self._referrers.setdefault(location, []).append((self._definition, tuple(self._open)))

    @contextlib.contextmanager
    def unless_unsupported(self, schema: SchemaKeywords, keyword: str, name: str | None = None) -> Iterator[None]:
        """Return a context manager that leaves a keyword unenforced if its block raises UnsupportedFeatureError.

        If every keyword must be enforced, the context manager raises an UnsupportedFeatureError instead (see
        `leave_out`).

        Args:
            schema: The schema that has the keyword.
            keyword: Name of the keyword.
            name: Name of the part of the keyword's value that is left unenforced; None for the whole keyword.

        Yields:
            None.
        """
        try:
            yield
        except UnsupportedFeatureError as error:
            self.leave_out(error, schema, keyword, name)

    def leave_out(
        self, error: UnsupportedFeatureError, schema: SchemaKeywords, keyword: str, name: str | None = None
    ) -> None:
        """Record that a keyword is not enforced.

        Args:
            error: Reason why the keyword cannot be enforced.
            schema: The schema that has the keyword.
            keyword: Name of the keyword.
            name: Name of the part of the keyword's value that is left unenforced; None for the whole keyword.

        Raises:
            UnsupportedFeatureError: Every keyword must be enforced (`report` is False).
        """
        if not self._report:
            todo = "change the schema, or send `on_unsupported: report`: the keyword is then listed, not enforced"
            message = f"{error.message}; {todo}"
            raise UnsupportedFeatureError(message, pointer=error.pointer, position=error.position) from error
        site = (id(schema.schema), keyword, name)
        self._add(site, error.message)
        self._meet(site, schema.scope)

    def leaves_out(self, schema: SchemaKeywords, keyword: str) -> bool:
        """Return whether an earlier reading of the document left a keyword unenforced.

        If so, the keyword also counts as unenforced in the current reading.

        Args:
            schema: The schema that has the keyword.
            keyword: Name of the keyword.
        """
        site = (id(schema.schema), keyword, None)
        if site not in self._left_out:
            return False
        self._meet(site, schema.scope)
        return True

    @contextlib.contextmanager
    def strict_inside(self, schema: SchemaKeywords, keyword: str) -> Iterator[None]:
        """Return a context manager that marks a keyword as unenforced if its block reads another unenforced keyword.

        The marked keyword is dropped in the next reading of the document. Use this for keywords such as `not`: a weaker
        inner schema would make `not` stronger.

        Args:
            schema: The schema that has the marked keyword.
            keyword: Name of the marked keyword.

        Yields:
            None.
        """
        if not self._report:
            yield
            return
        self._open.append((id(schema.schema), keyword, None))
        try:
            yield
        finally:
            self._open.pop()

    def check_evaluates(self, schema: Any, scope: Scope, *, but: str | None = None) -> None:
        """Check that a schema has no unenforced keyword that evaluates items or properties.

        If an unenforced keyword evaluated some of them, `unevaluatedItems` or `unevaluatedProperties` would be too
        strict.

        Args:
            schema: The schema.
            scope: Scope of the schema, for the JSON Pointer of the error.
            but: Name of a keyword that need not be enforced; None for none.

        Raises:
            UnsupportedFeatureError: The schema has an unenforced keyword that evaluates items or properties.
        """
        for keyword in self._evaluating.get(id(schema), ()):
            if keyword != but:
                where = scope.below(keyword).pointer
                raise UnsupportedFeatureError(f"{where}, which is not enforced, may evaluate parts", pointer=where)

    def listed(self, document: Any) -> list[UnenforcedKeyword]:
        """Return the keywords that the last reading did not enforce, each with its JSON Pointer and the reason.

        Args:
            document: The document that was read. JSON Pointers are relative to its root.
        """
        places = _places(document, {identity for identity, _, _ in self._met}) if self._met else {}
        found = {}
        for site, scope in self._met.items():
            identity, keyword, name = site
            inside = (keyword,) if name is None else (keyword, name)
            pointer = places.get(identity, scope.pointer) + pointer_of(inside)
            found[pointer] = UnenforcedKeyword(pointer=pointer, reason=self._left_out[site])
        return list(found.values())

    def _meet(self, site: Site, scope: Scope) -> None:
        self._met.setdefault(site, scope)
        self._weakened.add(self._definition)
        self._doom(self._open)

    def _doom(self, sites: list[Site] | tuple[Site, ...]) -> None:
        for site in sites:
            self._add(site, _AS_ANY_OF if site[1] == "oneOf" else _INSIDE)

    def _add(self, site: Site, reason: str) -> None:
        if site not in self._left_out:
            self._left_out[site] = reason
            self._grown = True
            if site[1] in _EVALUATING:
                self._evaluating.setdefault(site[0], []).append(site[1])


_EVALUATING = frozenset(
    ["$ref", "$dynamicRef", "$recursiveRef", "patternProperties", "additionalProperties", "if"]
    + ["unevaluatedProperties", "unevaluatedItems"]
)


def joined(first: list[UnenforcedKeyword], second: list[UnenforcedKeyword]) -> list[UnenforcedKeyword]:
    """Return the concatenation of two lists of unenforced keywords.

    Args:
        first: A list; not changed.
        second: A list; not changed.

    Raises:
        LimitExceededError: The pointers and reasons together have more than MOST_CHARACTERS characters.
    """
    both = [*first, *second]
    if sum(len(one["pointer"]) + len(one["reason"]) for one in both) > MOST_CHARACTERS:
        raise LimitExceededError(
            f"{len(both)} keywords cannot be enforced, too many to name: more than {MOST_CHARACTERS} characters"
        )
    return both


def _places(document: Any, identities: set[int]) -> dict[int, str]:
    """Return the JSON Pointers of those objects of the document that have these identities."""
    found: dict[int, str] = {}
    pending = [(document, "")]
    while pending:
        value, pointer = pending.pop()
        if isinstance(value, dict):
            if id(value) in identities:
                found.setdefault(id(value), pointer)
            pending += [(inner, pointer + pointer_of((name,))) for name, inner in value.items()]
        elif isinstance(value, list):
            pending += [(inner, f"{pointer}/{index}") for index, inner in enumerate(value)]
    return found

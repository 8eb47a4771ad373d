"""Keywords that are left out of what is enforced, where the option `on_unsupported` says that they are only named.

What is left out must only ever allow more. In most places a schema that allows more makes the schemas around it allow
more, too; under `not` and its like it makes them allow less. So these are left out themselves:

    left out                               because of                      what still holds
    not                                    anything inside of it           -
    if (with then, else)                   anything inside of the `if`     -
    oneOf                                  anything inside of it           `anyOf` of the same schemas
    maxContains                            anything inside of `contains`   contains, minContains
    additionalProperties                   a pattern beside it             -
    unevaluatedProperties, -Items          a reference, pattern, `if` ...  -
                                           that would evaluate parts

What is inside may stand behind a reference that is read later. So a document is read again, with what has been left out
so far, until nothing is added.
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

MOST_CHARACTERS = 100_000
"""Of all pointers and reasons together: an answer repeats them."""
_INSIDE = "something inside of it is not enforced"
_AS_ANY_OF = f"{_INSIDE}, so it is read as anyOf"

Site = tuple[int, str, str | None]
"""The identity of a schema, a keyword of it, and the name below the keyword where only that part is meant."""


class Unenforced:
    """What is left out of one document; `report` False: nothing ever is, the error is raised."""

    def __init__(self, *, report: bool) -> None:
        self._report = report
        # Schemas are known by identity: documents live as long as they are compiled.
        self._left_out: dict[Site, str] = {}
        self._evaluating: dict[int, list[str]] = {}
        self._met: dict[Site, Scope] = {}
        self._open: list[Site] = []
        self._definition = ""
        self._weakened: set[str] = set()
        self._referrers: dict[str, list[tuple[str, tuple[Site, ...]]]] = {}
        self._grown = False

    def begin(self) -> None:
        """A reading of the document begins."""
        self._grown = False
        self._definition = ""
        self._met.clear()
        self._weakened.clear()
        self._referrers.clear()

    def complete(self) -> bool:
        """Whether the reading that ends now is the last one."""

        def referring(location: str) -> Iterator[str]:
            for referrer, sites in self._referrers.get(location, ()):
                self._doom(sites)
                yield referrer

        self._weakened.update(reached(self._weakened, referring))
        return not self._grown

    def define(self, location: str) -> None:
        """What is read from now on is the definition of this location."""
        self._definition = location

    def refer(self, location: str) -> None:
        """What is read now refers to this location."""
        if self._report:
            self._referrers.setdefault(location, []).append((self._definition, tuple(self._open)))

    @contextlib.contextmanager
    def unless_unsupported(self, schema: SchemaKeywords, keyword: str, name: str | None = None) -> Iterator[None]:
        """Leave a keyword of `schema`, or the part of it with this name, out where what runs inside cannot read it."""
        try:
            yield
        except UnsupportedFeatureError as error:
            self.leave_out(error, schema, keyword, name)

    def leave_out(
        self, error: UnsupportedFeatureError, schema: SchemaKeywords, keyword: str, name: str | None = None
    ) -> None:
        """Leave a keyword of `schema` out because of `error`, or raise that; with `name` only this part of it."""
        if not self._report:
            todo = "change the schema, or leave this out and have it named: `on_unsupported: report`"
            message = f"{error.message}; {todo}"
            raise UnsupportedFeatureError(message, pointer=error.pointer, position=error.position) from error
        site = (id(schema.schema), keyword, name)
        self._add(site, error.message)
        self._meet(site, schema.scope)

    def leaves_out(self, schema: SchemaKeywords, keyword: str) -> bool:
        """Whether an earlier reading has found that this keyword of `schema` must be left out: it is then named."""
        site = (id(schema.schema), keyword, None)
        if site not in self._left_out:
            return False
        self._meet(site, schema.scope)
        return True

    @contextlib.contextmanager
    def strict_inside(self, schema: SchemaKeywords, keyword: str) -> Iterator[None]:
        """What is read inside must not be weakened, else this keyword of `schema` must be left out."""
        if not self._report:
            yield
            return
        self._open.append((id(schema.schema), keyword, None))
        try:
            yield
        finally:
            self._open.pop()

    def check_evaluates(self, schema: Any, scope: Scope, *, but: str | None = None) -> None:
        """Raises UnsupportedFeatureError where something other than `but` is left out that would evaluate parts."""
        for keyword in self._evaluating.get(id(schema), ()):
            if keyword != but:
                where = scope.below(keyword).pointer
                raise UnsupportedFeatureError(f"{where}, which is not enforced, may evaluate parts", pointer=where)

    def listed(self, document: Any) -> list[UnenforcedKeyword]:
        """What the last reading has left out, with JSON Pointers into the document."""
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
    """Both lists; raises LimitExceededError where that is too long for an answer."""
    both = [*first, *second]
    if sum(len(one["pointer"]) + len(one["reason"]) for one in both) > MOST_CHARACTERS:
        raise LimitExceededError(
            f"{len(both)} keywords cannot be enforced, too many to name: more than {MOST_CHARACTERS} characters"
        )
    return both


def _places(document: Any, identities: set[int]) -> dict[int, str]:
    """The JSON Pointers of those objects of the document that have these identities."""
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

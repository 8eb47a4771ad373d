"""Grammars that one router has passed on: what each is, which tenant sent it, and the newest refusals."""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cachetools import LRUCache

from grammar_workers.errors import shortened
from grammar_workers.specification import GrammarSpecification

MOST_REMEMBERED = 4096
"""Pairs of tenant and grammar key; those used last."""
MOST_TENANTS = 1024
"""Tenants whose refusals are kept."""
MOST_REFUSALS = 10
"""Of each tenant."""
MOST_TITLE, MOST_REASON = 60, 300
"""Characters that are kept."""
FIGURES = ("compile_seconds", "automaton_states", "artifact_bytes")


@dataclasses.dataclass(frozen=True)
class Seen:
    """A grammar as its specification describes it, with the compiler's figures about it."""

    kind: str = ""
    title: str = ""
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Refusal = tuple[datetime, Seen, str]
"""When, what, and the message that the client got."""


def described(specification: GrammarSpecification) -> Seen:
    """The specification by its type, and by its title or the beginning of its content."""
    contents = (value for name, value in specification if name != "type")
    content = next((value for value in contents if isinstance(value, str | list | dict)), "")
    if isinstance(content, dict):
        title, properties = content.get("title"), content.get("properties")
        content = title if isinstance(title, str) else properties if isinstance(properties, dict) else content
    # A specification may have megabytes, of which only the beginning is read.
    first = [content] if isinstance(content, str) else itertools.islice(content, 8)
    return Seen(specification.type, shortened(" ".join(", ".join(map(_word, first)).split()), MOST_TITLE))


def _word(part: Any) -> str:
    """A part of a specification: a text, a tag by its beginning, another specification by its type, or plain data."""
    text: str | None = part if isinstance(part, str) else getattr(part, "begin", None) or getattr(part, "type", None)
    return (reprlib.repr(part) if text is None else text)[: 4 * MOST_TITLE]


class SeenGrammars:
    """Of one router, since its start. For one event loop."""

    def __init__(self) -> None:
        self._seen: LRUCache[tuple[str, str], Seen] = LRUCache(MOST_REMEMBERED)
        self._refusals: LRUCache[str, deque[Refusal]] = LRUCache(MOST_TENANTS)

    def ready(self, key: str, seen: Seen, tenant: str, answer: Mapping[str, Any]) -> None:
        """A compiler has answered the tenant that the grammar is ready. `seen` is empty if the key alone was sent."""
        known = seen if seen.kind else self._seen.get((tenant, key), seen)
        figures = {name: answer[name] for name in FIGURES if isinstance(answer.get(name), int | float)}
        figures = figures if len(figures) == len(FIGURES) else {}  # of a store that nobody trusts
        self._seen[tenant, key] = dataclasses.replace(known, figures=figures)

    def refused(self, seen: Seen, tenant: str, reason: str) -> None:
        """A compiler has refused the specification."""
        refusals = self._refusals.setdefault(tenant, deque(maxlen=MOST_REFUSALS))
        refusals.append((datetime.now(UTC), seen, shortened(reason, MOST_REASON)))

    def grammars(self, tenant: str | None) -> dict[str, Seen]:
        """Grammars of the tenant by key; None: of all tenants."""
        return {key: seen for (owner, key), seen in self._seen.items() if tenant in (None, owner)}

    def refusals(self, tenant: str | None) -> list[Refusal]:
        """The newest refusals of the tenant, newest first; None: of all tenants."""
        found = [one for owner, all_ in self._refusals.items() if tenant in (None, owner) for one in all_]
        return sorted(found, key=lambda one: one[0], reverse=True)[:MOST_REFUSALS]

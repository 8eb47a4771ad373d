"""Grammars (constraints) that one router has requested from compilers, for the status page.

For each tenant, the types and titles of its grammars and its latest rejections are stored.
"""

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

# Maximum number of pairs of tenant and grammar key. The least recently used pair is dropped.
MOST_REMEMBERED = 4096
# Maximum number of tenants whose rejections are kept.
MOST_TENANTS = 1024
# Maximum number of rejections that are kept for each tenant.
MOST_REFUSALS = 10
# Maximum number of characters of a title and of a reason.
MOST_TITLE, MOST_REASON = 60, 300
# Figures of a compiled grammar in the response of the compiler.
FIGURES = ("compile_seconds", "automaton_states", "artifact_bytes")


@dataclasses.dataclass(frozen=True)
class Seen:
    """Description of a grammar (constraint) for the status page.

    Attributes:
        kind: Type of the constraint, such as `json_schema`. Empty if the request had only the key of a compiled
            grammar.
        title: Title, property names or beginning of the constraint, at most 60 characters (`MOST_TITLE`).
        figures: Figures of the compiled grammar: `compile_seconds`, `automaton_states` and `artifact_bytes`. Empty if
            unknown.
    """

    kind: str = ""
    title: str = ""
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Time of a rejection, the rejected specification, and the message that the client has received.
Refusal = tuple[datetime, Seen, str]


def described(specification: GrammarSpecification) -> Seen:
    """Return the description of a constraint for the status page: its type, and its title or beginning.

    Args:
        specification: The validated constraint. If it is long, only its beginning is read.
    """
    contents = (value for name, value in specification if name != "type")
    content = next((value for value in contents if isinstance(value, str | list | dict)), "")
    if isinstance(content, dict):
        title, properties = content.get("title"), content.get("properties")
        content = title if isinstance(title, str) else properties if isinstance(properties, dict) else content
    # A specification may have megabytes, of which only the beginning is read.
    first = [content] if isinstance(content, str) else itertools.islice(content, 8)
    return Seen(specification.type, shortened(" ".join(", ".join(map(_word, first)).split()), MOST_TITLE))


def _word(part: Any) -> str:
    """Return a short text for a part of a specification: a text, a tag's `begin`, a specification's type, or data."""
    text: str | None = part if isinstance(part, str) else getattr(part, "begin", None) or getattr(part, "type", None)
    return (reprlib.repr(part) if text is None else text)[: 4 * MOST_TITLE]


class SeenGrammars:
    """Record of the grammars (constraints) and rejections of one router, for the status page.

    The record has at most 4096 pairs of tenant (client) and grammar, and the last 10 rejections of each of 1024
    tenants. When it is full, the least recently used pair or tenant is dropped. An object must be used in one event
    loop only.
    """

    def __init__(self) -> None:
        self._seen: LRUCache[tuple[str, str], Seen] = LRUCache(MOST_REMEMBERED)
        self._refusals: LRUCache[str, deque[Refusal]] = LRUCache(MOST_TENANTS)

    def ready(self, key: str, seen: Seen, tenant: str, answer: Mapping[str, Any]) -> None:
        """Record that a grammar has been compiled or found for a request.

        Args:
            key: Grammar key.
            seen: Type and title of the constraint. If `seen.kind` is empty (the request had only a key), the recorded
                type and title of this grammar are kept.
            tenant: Name of the tenant (client) that has sent the request.
            answer: Response of the compiler (`GrammarCompiler.compile`). Its figures (fields in `FIGURES`) are
                recorded.
        """
        known = seen if seen.kind else self._seen.get((tenant, key), seen)
        figures = {name: answer[name] for name in FIGURES if isinstance(answer.get(name), int | float)}
        figures = figures if len(figures) == len(FIGURES) else {}  # an untrusted store may omit some
        self._seen[tenant, key] = dataclasses.replace(known, figures=figures)

    def refused(self, seen: Seen, tenant: str, reason: str) -> None:
        """Record that a compiler has rejected the constraint of a request.

        Args:
            seen: Type and title of the constraint.
            tenant: Name of the tenant (client) that has sent the request.
            reason: Error message that the client has received. At most 300 characters (`MOST_REASON`) are kept.
        """
        refusals = self._refusals.setdefault(tenant, deque(maxlen=MOST_REFUSALS))
        refusals.append((datetime.now(UTC), seen, shortened(reason, MOST_REASON)))

    def grammars(self, tenant: str | None) -> dict[str, Seen]:
        """Return the descriptions of the recorded grammars.

        Args:
            tenant: Name of the tenant (client) whose grammars are returned. None: the grammars of all tenants.

        Returns:
            Grammar key -> description, in a new dictionary. If several tenants have used a grammar, the value is the
            description for one of them.
        """
        return {key: seen for (owner, key), seen in self._seen.items() if tenant in (None, owner)}

    def refusals(self, tenant: str | None) -> list[Refusal]:
        """Return the latest rejections, newest first, at most 10.

        Args:
            tenant: Name of the tenant (client) whose rejections are returned. None: the rejections of all tenants.

        Returns:
            Triples (time in UTC, description of the constraint, error message).
        """
        found = [one for owner, all_ in self._refusals.items() if tenant in (None, owner) for one in all_]
        return sorted(found, key=lambda one: one[0], reverse=True)[:MOST_REFUSALS]

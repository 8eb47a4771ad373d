"""Statistics about the grammars of one compiler: the slowest to compile, and the most requested."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

# Number of grammars whose requests are counted: those requested last.
#
# A grammar with many requests stays among them.
MOST_REMEMBERED = 4096
# Number of grammars in each list.
SHOWN = 10


class GrammarLedger:
    """Statistics about the grammars of one `GrammarCompiler` since its start. Not thread-safe."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, int] = OrderedDict()
        self._slowest: dict[str, Mapping[str, Any]] = {}

    def answered(self, ready: Mapping[str, Any]) -> None:
        """Count a request for a grammar that is ready, and record its compilation if this request caused it.

        Args:
            ready: Result of `GrammarCompiler.compile`. The keys `key`, `source`, `compile_seconds`, `automaton_states`
                and `artifact_bytes` are used.
        """
        key = ready["key"]
        self._calls[key] = self._calls.pop(key, 0) + 1
        if len(self._calls) > MOST_REMEMBERED:
            self._calls.popitem(last=False)
        if ready["source"] == "compiled":
            self._slowest[key] = ready
            if len(self._slowest) > SHOWN:
                del self._slowest[min(self._slowest, key=lambda key: self._slowest[key]["compile_seconds"])]

    def most_used(self) -> list[dict[str, Any]]:
        """Return the grammars with the most requests, in descending order of the number of requests.

        Returns:
            At most 10 dictionaries (`SHOWN`) with `key` (grammar key) and `calls` (number of requests).
        """
        return [
            {"key": key, "calls": calls}
            for key, calls in heapq.nlargest(SHOWN, self._calls.items(), key=lambda item: item[1])
        ]

    def slowest(self) -> list[dict[str, Any]]:
        """Return the grammars whose compilation by this replica took longest, slowest first.

        Returns:
            At most 10 dictionaries (`SHOWN`) with `key` (grammar key), `calls` (number of requests), `compile_seconds`,
            `automaton_states` and `artifact_bytes` (size of the compiled grammar).
        """
        fields = ("key", "compile_seconds", "automaton_states", "artifact_bytes")
        found = [
            {"calls": self._calls.get(key, 0), **{name: ready[name] for name in fields}}
            for key, ready in self._slowest.items()
        ]
        return sorted(found, key=lambda one: -one["compile_seconds"])

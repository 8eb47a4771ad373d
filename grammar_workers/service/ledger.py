"""What people ask about the grammars of one compiler: which took longest to compile, and which are asked for most."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

MOST_REMEMBERED = 4096
"""Grammars whose calls are counted: those asked for last. One that is asked for often never leaves them."""
SHOWN = 10


class GrammarLedger:
    """Of what `GrammarCompiler.compile` has answered since the start. For one event loop."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, int] = OrderedDict()
        self._slowest: dict[str, Mapping[str, Any]] = {}

    def answered(self, ready: Mapping[str, Any]) -> None:
        """One more answer about a grammar that is ready, as `compile` gives it."""
        key = ready["key"]
        self._calls[key] = self._calls.pop(key, 0) + 1
        if len(self._calls) > MOST_REMEMBERED:
            self._calls.popitem(last=False)
        if ready["source"] == "compiled":
            self._slowest[key] = ready
            if len(self._slowest) > SHOWN:
                del self._slowest[min(self._slowest, key=lambda key: self._slowest[key]["compile_seconds"])]

    def most_used(self) -> list[dict[str, Any]]:
        """`{"key", "calls"}`, the most first."""
        return [
            {"key": key, "calls": calls}
            for key, calls in heapq.nlargest(SHOWN, self._calls.items(), key=lambda item: item[1])
        ]

    def slowest(self) -> list[dict[str, Any]]:
        """`{"key", "calls", "compile_seconds", "automaton_states", "artifact_bytes"}`, the slowest first."""
        fields = ("key", "compile_seconds", "automaton_states", "artifact_bytes")
        found = [
            {"calls": self._calls.get(key, 0), **{name: ready[name] for name in fields}}
            for key, ready in self._slowest.items()
        ]
        return sorted(found, key=lambda one: -one["compile_seconds"])

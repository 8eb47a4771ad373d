"""What the replicas of both tiers report, put together for the page."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

REMEMBER_S = 2.0
"""Everybody who asks within that time gets the same reports: each asks every replica."""

Report = dict[str, Any]
"""Of one replica: `GrammarCompiler.report` or `Replica.report`."""
KINDS = {
    "automata": "memory of the model replicas, loaded",
    "process": "memory of the processes, as stored",
    "file": "files of the nodes",
    "redis": "Redis",
}
"""The tiers that keep grammars, nearest first."""


@dataclasses.dataclass(frozen=True)
class Reports:
    """Of every replica that was there; None where a tier did not answer in time."""

    compilers: list[Report] | None
    replicas: list[Report] | None

    @property
    def complete(self) -> bool:
        """Whether both tiers have replicas, and all have answered."""
        return bool(self.compilers) and bool(self.replicas)

    def stores(self) -> dict[str, Counter[str]]:
        """Tier -> sums of what all processes count of it."""
        sums: dict[str, Counter[str]] = {}
        for report in (*(self.compilers or ()), *(self.replicas or ())):
            for tier, stats in report["store"].items():
                numbers = {name: value for name, value in stats.items() if isinstance(value, int)}
                sums.setdefault(tier, Counter()).update(numbers)
        return {tier: sums[tier] for tier in KINDS if tier in sums}

    def slowest(self) -> list[dict[str, Any]]:
        """Grammars whose compilation took longest, in this order."""
        found = [grammar for report in self.compilers or () for grammar in report["slowest"]]
        return sorted(found, key=lambda grammar: -float(grammar["compile_seconds"]))

    def calls(self) -> Counter[str]:
        """Requests for each of the grammars that were requested most, or that took longest to compile."""
        calls: Counter[str] = Counter()
        for report in self.compilers or ():
            shown = (*report["slowest"], *report["most_used"])
            calls.update({grammar["key"]: grammar.get("calls", 0) for grammar in shown})
        return calls


class RecentReports:
    """Reports that are at most `REMEMBER_S` old; who asks meanwhile waits for the same ones. For one event loop."""

    def __init__(self, ask: Callable[[], Awaitable[Sequence[list[Report] | None]]]) -> None:
        self._ask = ask
        self._asking = asyncio.Lock()
        self._reports = Reports(None, None)
        self._asked_at = -REMEMBER_S

    async def get(self) -> Reports:
        async with self._asking:
            if time.monotonic() - self._asked_at >= REMEMBER_S:
                self._reports = Reports(*await self._ask())
                self._asked_at = time.monotonic()
            return self._reports

"""Reports of all compiler replicas and model replicas, combined and cached for the status page.

A *report* is a dictionary of figures of one replica. `GrammarCompiler.report` and `ModelReplica.report` return reports.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

# Seconds for which reports are cached, because new reports need a call to every replica.
REMEMBER_S = 2.0

# Report of one replica, as `GrammarCompiler.report` or `Replica.report` returns it.
Report = dict[str, Any]
# Tier of the grammar store -> its description, nearest tier first.
KINDS = {
    "automata": "memory of the model replicas, loaded",
    "process": "memory of the processes, as stored",
    "file": "files of the nodes",
    "redis": "Redis",
}


@dataclasses.dataclass(frozen=True)
class Reports:
    """Reports (dictionaries of figures) of all compiler replicas and model replicas, taken at about the same time.

    Attributes:
        compilers: One report per compiler replica. Empty: no compiler has sent a report. None: a compiler did not
            respond in time.
        replicas: One report per model replica. Empty: no replica has sent a report. None: a replica did not respond in
            time.
    """

    compilers: list[Report] | None
    replicas: list[Report] | None

    @property
    def complete(self) -> bool:
        """True if there is a report of at least one compiler and of at least one model replica."""
        return bool(self.compilers) and bool(self.replicas)

    def stores(self) -> dict[str, Counter[str]]:
        """Return the counters of each cache level of compiled grammars, summed over all replicas.

        Returns:
            Cache level -> counters, such as `hits` and `misses`. The levels are, in this order: `automata` (grammars
            that a model replica has loaded), `process` (memory of a process), `file` and `redis`. A level that no
            replica reports is missing.
        """
        sums: dict[str, Counter[str]] = {}
        for report in (*(self.compilers or ()), *(self.replicas or ())):
            for tier, stats in report["store"].items():
                numbers = {name: value for name, value in stats.items() if isinstance(value, int)}
                sums.setdefault(tier, Counter()).update(numbers)
        return {tier: sums[tier] for tier in KINDS if tier in sums}

    def slowest(self) -> list[dict[str, Any]]:
        """Return the grammars (constraints) that took longest to compile, slowest first.

        Returns:
            One dictionary per grammar, as from `GrammarLedger.slowest`: `key`, `compile_seconds` and more. There are up
            to ten from each compiler. Empty if there is no report of a compiler.
        """
        found = [grammar for report in self.compilers or () for grammar in report["slowest"]]
        return sorted(found, key=lambda grammar: -float(grammar["compile_seconds"]))

    def calls(self) -> Counter[str]:
        """Return the number of compiler calls per grammar key (hash of a constraint), summed over all compilers.

        Each compiler reports only its most used grammars and its slowest grammars. All other grammars are missing.
        """
        calls: Counter[str] = Counter()
        for report in self.compilers or ():
            shown = (*report["slowest"], *report["most_used"])
            calls.update({grammar["key"]: grammar.get("calls", 0) for grammar in shown})
        return calls


class RecentReports:
    """Cache of the reports (dictionaries of figures) of all replicas.

    `get` requests new reports if the cached reports are older than 2 seconds (`REMEMBER_S`). Concurrent callers share
    one request. An object must be used in one event loop only.

    Args:
        ask: Function that calls all replicas. It returns two items: the list of the reports of the compilers, and the
            list of the reports of the model replicas. If a replica does not respond in time, the item of its deployment
            is None.
    """

    def __init__(self, ask: Callable[[], Awaitable[Sequence[list[Report] | None]]]) -> None:
        self._ask = ask
        self._asking = asyncio.Lock()
        self._reports = Reports(None, None)
        self._asked_at = -REMEMBER_S

    async def get(self) -> Reports:
        """Return the cached reports, or new reports if the cached reports are older than 2 seconds (`REMEMBER_S`).

        An exception of the constructor's function `ask` is raised to the caller.
        """
        async with self._asking:
            if time.monotonic() - self._asked_at >= REMEMBER_S:
                self._reports = Reports(*await self._ask())
                self._asked_at = time.monotonic()
            return self._reports

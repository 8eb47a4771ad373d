"""A discrete-event simulation: processes are generators that yield seconds to pass, or what they wait for."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import Any

Process = Generator["float | Signal", Any, Any]


class Signal:
    """Something that happens once; processes that yield it go on then, with its value."""

    def __init__(self) -> None:
        self.happened = False
        self.value: Any = None
        self.waiting: list[Process] = []


class Simulation:
    """`now` is in seconds; what is due at the same time happens in the order in which it was planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Process, Any]] = []
        self._planned = 0

    def clock(self) -> float:
        return self.now

    def start(self, process: Process, after_s: float = 0.0) -> None:
        self._plan(process, None, after_s)

    def happen(self, signal: Signal, value: Any = None) -> None:
        """Tells those who wait for it; a second time changes nothing."""
        if signal.happened:
            return
        signal.happened, signal.value = True, value
        for process in signal.waiting:
            self._plan(process, value, 0.0)
        signal.waiting.clear()

    def run(self, until: float) -> None:
        """Everything that is due before `until`."""
        while self._due and self._due[0][0] < until:
            self.now, _, process, value = heapq.heappop(self._due)
            try:
                wanted = process.send(value)
            except StopIteration:
                continue
            if not isinstance(wanted, Signal):
                self._plan(process, None, wanted)
            elif wanted.happened:
                self._plan(process, wanted.value, 0.0)
            else:
                wanted.waiting.append(process)
        self.now = until

    def _plan(self, process: Process, value: Any, after_s: float) -> None:
        self._planned += 1
        heapq.heappush(self._due, (self.now + after_s, self._planned, process, value))

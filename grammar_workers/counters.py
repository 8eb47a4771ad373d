"""Thread-safe counters of events, such as the hits of a cache."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """Counts of events by name, such as `hits`. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, event: str) -> int:
        """Count one event.

        Args:
            event: Name of the event.

        Returns:
            The number of times that this event has been counted, at least 1.
        """
        with self._lock:
            self._counts[event] += 1
            return self._counts[event]

    def snapshot(self) -> dict[str, int]:
        """Return a copy of the counts by name of the event. Events that have not occurred are missing."""
        with self._lock:
            return dict(self._counts)

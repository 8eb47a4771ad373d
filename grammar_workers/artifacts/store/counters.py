"""Event counters of one tier."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """Counts named events from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, event: str) -> int:
        """Count one `event`; returns how many there have been."""
        with self._lock:
            self._counts[event] += 1
            return self._counts[event]

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

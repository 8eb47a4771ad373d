"""A circuit breaker: stop asking a server that keeps failing, and look now and then whether it is back.

closed --failures in a row--> open --after a delay--> half-open --probe succeeds--> closed
                               ^------------- probe fails -------------'
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half_open"]


class CircuitBreaker:
    """Thread-safe. Ask `allows()` before a call and report its outcome with `succeeded()` or `failed()`."""

    def __init__(
        self, failures_to_open: int = 3, retry_after_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures_to_open = failures_to_open
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._failures = 0
        self._state: State = "closed"
        self._probe_at = 0.0
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        return self._state

    def allows(self) -> bool:
        """Whether to make the call. While not closed, one caller per delay is let through as the probe."""
        with self._lock:
            if self._state == "closed":
                return True
            if self._clock() < self._probe_at:
                return False
            # The next probe is due one delay later even if this one's caller never reports back.
            self._state = "half_open"
            self._probe_at = self._clock() + self._retry_after_s
            return True

    def succeeded(self) -> None:
        with self._lock:
            self._failures = 0
            self._state = "closed"

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            if self._state == "half_open" or self._failures >= self._failures_to_open:
                self._state = "open"
                self._probe_at = self._clock() + self._retry_after_s

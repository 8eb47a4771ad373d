"""Circuit breaker: stops calls to a server that keeps failing, and tries one call (probe) at intervals.

closed --failures in a row--> open --after a delay--> half-open --probe succeeds--> closed
                               ^------------- probe fails -------------'
"""

from __future__ import annotations

import threading
import time
from typing import Literal

State = Literal["closed", "open", "half_open"]
# Number of failures in a row that opens the breaker.
FAILURES_TO_OPEN = 3
# Seconds from the opening to the first probe, and between two probes.
#
# A probe is a single call that is allowed while the breaker is not closed.
RETRY_AFTER_S = 5.0


class RedisUnavailableError(Exception):
    """A call to Redis was not made, has failed or took too long. The caller must continue without Redis."""


class CircuitBreaker:
    """Switch that stops the calls to one server while the server fails. Thread-safe.

    Call `allows()` before each call to the server, and report the outcome by `succeeded()` or `failed()`. The breaker
    is closed at first: calls are allowed.

    Attributes:
        state: Current state: `closed` (calls are allowed), `open` (no calls), or `half_open` (a probe was allowed).
    """

    def __init__(self) -> None:
        self.state: State = "closed"
        self._failures = 0
        self._probe_at = 0.0
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Return whether a call to the server may be made now.

        While the breaker is not closed, one call per delay (`RETRY_AFTER_S`) is allowed as a probe.
        """
        with self._lock:
            if self.state == "closed":
                return True
            if time.monotonic() < self._probe_at:
                return False
            # The next probe is due one delay later even if this one's caller never reports back.
            self.state = "half_open"
            self._probe_at = time.monotonic() + RETRY_AFTER_S
            return True

    def succeeded(self) -> None:
        """Report that a call to the server has succeeded. The breaker closes, and the count of failures is reset."""
        with self._lock:
            self._failures = 0
            self.state = "closed"

    def failed(self) -> None:
        """Report that a call to the server has failed.

        The breaker opens after a failed probe, or after `FAILURES_TO_OPEN` failures in a row.
        """
        with self._lock:
            self._failures += 1
            if self.state == "half_open" or self._failures >= FAILURES_TO_OPEN:
                self.state = "open"
                self._probe_at = time.monotonic() + RETRY_AFTER_S

"""An autoscaling policy for Ray Serve that counts compilations in place of requests.

Serve's own policy counts requests in flight. In this tier most of them are lookups of known grammars, or wait for the
same compilation. Another replica helps with compilations only: those that wait or run in a compiler, and those that
the routers hold back, because each tenant may have a limited number in the compilers at a time.
"""

from __future__ import annotations

import math
import time
from typing import Any

POLICY = "grammar_workers.service.autoscaling:by_backlog"
COMPILATION_BACKLOG = "compilation_backlog"
"""Metric of each compiler replica: its compilations that wait or run."""
HELD_BACK = "held_back_grammars"
"""Metric of each compiler replica: new grammars that all routers together hold back, as far as the replica knows."""
VALID_S = 10.0
"""Seconds for which a router's number is valid. Routers repeat it with each health check (2 s)."""


class HeldBack:
    """The numbers of new grammars that the routers hold back, as the routers reported them last."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[float, int]] = {}

    def report(self, router: str, waiting: int) -> None:
        """Store the number of one router."""
        self._reported[router] = (time.monotonic(), waiting)

    def total(self) -> int:
        """Return the sum over the routers. A router that has not reported for `VALID_S` seconds is removed."""
        oldest = time.monotonic() - VALID_S
        self._reported = {router: report for router, report in self._reported.items() if report[0] > oldest}
        return sum(waiting for _, waiting in self._reported.values())


def by_backlog(context: Any) -> tuple[int, dict[str, Any]]:
    """Return the wanted number of compiler replicas, and no policy state. Serve applies its bounds and delays.

    Each router reports to every compiler. So the backlogs of the compilers are added, and of their `HELD_BACK`
    numbers the largest counts: a compiler that has just started has not heard of all routers.

    Args:
        context: Serve's `AutoscalingContext`. The `target_ongoing_requests` of its configuration is a number of
            compilations per replica.
    """
    metrics = context.aggregated_metrics
    backlog = sum(metrics.get(COMPILATION_BACKLOG, {}).values())
    held_back = max(metrics.get(HELD_BACK, {}).values(), default=0)
    return math.ceil((backlog + held_back) / context.config.target_ongoing_requests), {}

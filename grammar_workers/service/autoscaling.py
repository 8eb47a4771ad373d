"""Autoscaling policy for Ray Serve that counts compilations instead of requests.

Serve's own policy counts requests in flight. Most requests to this deployment are lookups of cached grammars, or wait
for a compilation that another request has started. More replicas do not help these requests. So this policy counts only
the compilations that wait or run in the compilers, and those that wait in the routers. A router holds back a
compilation if its tenant already has the maximum number of compilations in the compilers.
"""

from __future__ import annotations

import math
import time
from typing import Any

POLICY = "grammar_workers.service.autoscaling:by_backlog"
# Metric of each compiler replica: number of its compilations that wait or run.
COMPILATION_BACKLOG = "compilation_backlog"
# Metric of each compiler replica: number of uncached grammars that all routers hold back, as reported to it.
HELD_BACK = "held_back_grammars"
# Seconds for which a router's number is valid. Routers repeat it with each health check (2 s).
VALID_S = 10.0


class HeldBack:
    """The last report of each router: the number of uncached grammars that it does not send to a compiler yet."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[float, int]] = {}

    def report(self, router: str, waiting: int) -> None:
        """Store the report of one router. It replaces the last report of this router.

        Args:
            router: Name of the router.
            waiting: Number of uncached grammars that the router holds back now.
        """
        self._reported[router] = (time.monotonic(), waiting)

    def total(self) -> int:
        """Return the sum of the reports of all routers. Reports that are older than `VALID_S` seconds are dropped."""
        oldest = time.monotonic() - VALID_S
        self._reported = {router: report for router, report in self._reported.items() if report[0] > oldest}
        return sum(waiting for _, waiting in self._reported.values())


def by_backlog(context: Any) -> tuple[int, dict[str, Any]]:
    """Return the number of compiler replicas that the waiting and running compilations need.

    Each compiler publishes two metrics. COMPILATION_BACKLOG is the number of its own compilations. This function adds
    up these numbers. HELD_BACK is the number of grammars that all routers hold back. Compilers that have just started
    report less than the others. So this function uses the largest number.

    Args:
        context: Serve's `AutoscalingContext`. `target_ongoing_requests` in its configuration is the number of
            compilations per replica.

    Returns:
        The number of replicas, before Serve applies its bounds and delays, and the state of the policy (always {}).
    """
    metrics = context.aggregated_metrics
    backlog = sum(metrics.get(COMPILATION_BACKLOG, {}).values())
    held_back = max(metrics.get(HELD_BACK, {}).values(), default=0)
    return math.ceil((backlog + held_back) / context.config.target_ongoing_requests), {}

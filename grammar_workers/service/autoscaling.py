"""How many compiler replicas there should be: an autoscaling policy for Ray Serve, by compilations, not by requests.

Serve's own policy counts requests in flight. In this tier those are mostly lookups of known grammars, and the many who
wait for one compilation; what another replica would help with is the compilations that wait or run.
"""

from __future__ import annotations

import math
from typing import Any

POLICY = "grammar_workers.service.autoscaling:by_backlog"
COMPILATION_BACKLOG = "compilation_backlog"
"""The number that each replica reports under this name (`GrammarCompiler.record_autoscaling_stats`)."""


def by_backlog(context: Any) -> tuple[int, dict[str, Any]]:
    """The wanted number of replicas, and no state; Serve applies its bounds and delays to it.

    `context` is Serve's `AutoscalingContext`; the `target_ongoing_requests` of its configuration means compilations per
    replica here.
    """
    backlog = sum(context.aggregated_metrics.get(COMPILATION_BACKLOG, {}).values())
    return math.ceil(backlog / context.config.target_ongoing_requests), {}

"""Metrics of masks in vLLM's `GET /metrics`: numbers and durations of mask computations and grammar state updates.

Engine cores compute the masks. They are other processes than the server of `/metrics`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.vllm.wrapping import wraps
from gpu_workers.vllm.timings import read_totals

_ROUTE = "vllm.entrypoints.serve.instrumentator.metrics"
_SAYS = {
    "fill": ("mask_fill", "computation of one mask"),
    "accept": ("token_accept", "update of one grammar state after a step"),
}


class MaskMetrics(Collector):
    """Prometheus collector of the mask metrics of all engine cores of this server.

    Each request for metrics reads the current totals of the engine cores.
    """

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of two operations: computation of a mask, and update of a grammar state after a step.

        Yields:
            For each operation: the number of operations, their total duration in seconds, and the longest duration in
            seconds.
        """
        for name, totals in read_totals().items():
            operation, what = _SAYS[name]
            prefix = f"turnstile_{operation}"
            yield CounterMetricFamily(f"{prefix}s", f"Number of operations: {what}.", totals.many)
            yield CounterMetricFamily(f"{prefix}_seconds", f"Total seconds: {what}.", totals.seconds)
            yield GaugeMetricFamily(
                f"{prefix}_slowest_seconds", f"Longest duration in seconds since the start: {what}.", totals.slowest_s
            )


def export() -> None:
    """Add the mask metrics to vLLM's `GET /metrics` in this process.

    The function wraps vLLM's function that returns the Prometheus registry, and adds the collector once to each
    registry that vLLM's function returns. A second call of `export` has no effect.
    """
    from vllm.v1.metrics import prometheus

    metrics = MaskMetrics()
    shown_in: list[CollectorRegistry] = []

    @wraps(prometheus, "get_prometheus_registry")
    def get_prometheus_registry(original: Any) -> Any:
        registry = original()
        if registry not in shown_in:
            registry.register(metrics)
            shown_in.append(registry)
        return registry

    if (route := sys.modules.get(_ROUTE)) is not None:
        route.get_prometheus_registry = prometheus.get_prometheus_registry  # type: ignore[attr-defined]

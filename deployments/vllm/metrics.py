"""What vLLM's `GET /metrics` says about masks, which are made in other processes."""

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
    "fill": ("mask_fill", "a row of the token bitmask written"),
    "accept": ("token_accept", "a grammar taken over the tokens of a step"),
}


class MaskMetrics(Collector):
    """The figures of all engine cores of this server, read when they are asked for."""

    def collect(self) -> Iterator[Metric]:
        for name, totals in read_totals().items():
            operation, what = _SAYS[name]
            prefix = f"turnstile_{operation}"
            yield CounterMetricFamily(f"{prefix}s", f"How often: {what}.", totals.many)
            yield CounterMetricFamily(f"{prefix}_seconds", f"Seconds in all: {what}.", totals.seconds)
            yield GaugeMetricFamily(f"{prefix}_slowest_seconds", f"Slowest since the start: {what}.", totals.slowest_s)


def export() -> None:
    """Adds the figures to whatever registry vLLM shows in this process: it has one, or one for each route."""
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

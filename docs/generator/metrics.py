"""Page of the metrics, generated from the constructor calls in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from deployments.shipped import REPOSITORY
from deployments.vllm.metrics import MaskMetrics
from docs.generator.schema_tables import table
from grammar_workers.service import metrics as shared

INTRODUCTION = """\
# Metrics

Ray exports these Prometheus metrics on the [metrics port](../monitoring.md#metrics) of each node, with the prefix
`ray_` before each name. In addition to the labels in the table, metrics of compilers and of model replicas have Serve's
labels `application`, `deployment` and `replica`. All metrics have Ray's labels (`NodeAddress`, `WorkerId`, ...).
[Monitor](../monitoring.md#metrics) lists the metrics to watch. `make reference` generates this page from the code.

The metrics port also has the metrics of Ray Serve (`ray_serve_*`):

- **Latency of requests**: `ray_serve_http_request_latency_ms`, a histogram by `application`, `method`, `route` and
  `status_code`. HAProxy measures the time from the first byte of the request to the last byte of the response, so
  streams count with their whole duration. The histogram includes requests that HAProxy answers itself.
- **Time to first token (TTFT)**: `ray_vllm_time_to_first_token_seconds`, with vLLM as the engine. With
  the native engine, the span `first event` of a [trace](../monitoring.md#traces) has this time."""
_IN_VLLM = """\
## In vLLM

The [plugin](../vllm.md) adds these metrics to `GET /metrics` of vLLM. Each value is the total of all engine cores of
the server. The metrics have neither a prefix nor labels."""
_PLACES = {"deployments": "router", "grammar_workers": "compilers", "gpu_workers": "model replicas"}
_BOTH_TIERS = "compilers, model replicas"
_KINDS = ("counter", "gauge", "histogram")


def metrics() -> str:
    """Return the page as Markdown."""
    columns = ["metric", "kind", "process", "labels", "meaning"]
    own = table(columns, sorted(_all_metrics()))
    return f"{INTRODUCTION}\n\n{own}\n\n{_IN_VLLM}\n\n{table(['metric', 'kind', 'meaning'], _in_vllm())}\n"


def _in_vllm() -> list[tuple[str, ...]]:
    """Return the rows of the metrics of the vLLM plugin."""
    found = MaskMetrics().collect()
    return sorted((f"`{metric.samples[0].name}`", metric.type, metric.documentation) for metric in found)


def _all_metrics() -> Iterator[tuple[str, ...]]:
    """Yield the rows of all metrics of the three packages."""
    for package, tier in _PLACES.items():
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            place = _BOTH_TIERS if path == Path(shared.__file__) else tier
            calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            yield from (found for call in calls if (found := _metric(call, place)) is not None)


def _metric(call: ast.Call, place: str) -> tuple[str, ...] | None:
    """Return the row of the metric that a call makes, or None for another call. `place`: the processes that have it."""
    if not isinstance(call.func, ast.Name) or call.func.id.lower() not in _KINDS:
        return None
    kind = call.func.id.lower()
    given = dict(zip(("name", "description", "tag_keys"), call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    if "description" not in given:  # collections.Counter
        return None
    name, description = ast.literal_eval(given["name"]), ast.literal_eval(given["description"])
    tags = ast.literal_eval(given["tag_keys"]) if "tag_keys" in given else ()
    return f"`{name}`", kind, place, ", ".join(f"`{tag}`" for tag in tags), description

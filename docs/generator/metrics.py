"""The metrics, from the places in the source that make them."""

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

Made by `make reference` from the source. Ray exports them for Prometheus on each node's metrics port (`--metrics-port`
of `turnstile serve`), with `ray_` before the name. Metrics of the grammar tier and of model replicas have Serve's
labels `application`, `deployment` and `replica` beside those of the table; metrics of the router have those of the
table alone. All have Ray's own (`NodeAddress`, `WorkerId`, ...). [operations.md](../operations.md) says what to look
at.

The same port has Ray Serve's metrics (`ray_serve_*`):

- **Latency of requests**: `ray_serve_http_request_latency_ms`, a histogram by `application`, `method`, `route` and
  `status_code`. It is measured by HAProxy, from the request's first byte to the response's last one, so a stream counts
  with all of its time, and requests that HAProxy answers itself are in it.
- **Time to first token**: no metric of the native engine has it. A [trace](../operations.md#what-to-watch) has it for
  each request (`first event`). With vLLM as the engine, `ray_vllm_time_to_first_token_seconds` has it."""
_IN_VLLM = """\
## In vLLM

What the [plugin](../engines.md#vllm) adds to `GET /metrics` of vLLM, over all engine cores of the server, without a
prefix or labels."""
_PLACES = {"deployments": "router", "grammar_workers": "grammar tier", "gpu_workers": "model replicas"}
_BOTH_TIERS = "grammar tier, model replicas"
_KINDS = ("counter", "gauge", "histogram")


def metrics() -> str:
    """The document as Markdown."""
    columns = ["metric", "kind", "of", "labels", "what it counts"]
    own = table(columns, sorted(_all_metrics()))
    return f"{INTRODUCTION}\n\n{own}\n\n{_IN_VLLM}\n\n{table(['metric', 'kind', 'what it counts'], _in_vllm())}\n"


def _in_vllm() -> list[tuple[str, ...]]:
    """What the plugin's collector says of a server that has done nothing."""
    found = MaskMetrics().collect()
    return sorted((f"`{metric.samples[0].name}`", metric.type, metric.documentation) for metric in found)


def _all_metrics() -> Iterator[tuple[str, ...]]:
    """Every call of a metric's constructor in the three packages."""
    for package, tier in _PLACES.items():
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            place = _BOTH_TIERS if path == Path(shared.__file__) else tier
            calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            yield from (found for call in calls if (found := _metric(call, place)) is not None)


def _metric(call: ast.Call, place: str) -> tuple[str, ...] | None:
    """The row of the metric that a call makes; None for any other call. `place`: the part of the system that has it."""
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

"""Load generator for an OpenAI-compatible server.

Each client sends one streaming chat completion after another for a given time. The report has the throughput, the time
to the first text, and the times between pieces of text.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from deployments.cli.server import chunk_in
from deployments.http.examples import PROMPT

WARM_SCHEMAS = 8


@dataclass(frozen=True)
class Load:
    """Parameters of one run of the load generator.

    Attributes:
        clients: Number of concurrent clients. Each client sends one request after another.
        structured: Share of the requests that have a JSON Schema, 0 to 1.
        unique: True: each request with a schema has a new schema, which the server must compile. False: the requests
            share at most 8 schemas (`WARM_SCHEMAS`).
        seconds: Time in seconds after which clients send no further request.
        max_tokens: Maximum number of output tokens of a response.
        model: Name from `/v1/models`. None: requests name no model, so the server uses its default.
    """

    clients: int
    structured: float = 0.0
    unique: bool = False
    seconds: float = 5.0
    max_tokens: int = 32
    model: str | None = None

    def bodies(self, salt: str) -> Iterator[dict[str, Any]]:
        """Generate request bodies of streaming chat completions.

        Args:
            salt: Text that is part of each schema if `unique` is set. With a new salt, the server has none of these
                schemas in its cache. Without `unique`, the salt has no effect.

        Yields:
            An endless sequence of bodies, each a new dictionary. The bodies with a JSON Schema are evenly distributed
            among the bodies without one.
        """
        for number in itertools.count():
            body: dict[str, Any] = {
                "messages": [{"role": "user", "content": PROMPT}],
                "max_tokens": self.max_tokens,
                "temperature": 1,
                "seed": number,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            if self.model is not None:
                body["model"] = self.model
            if int((number + 1) * self.structured) > int(number * self.structured):
                schema = _schema(f"{salt}{number}" if self.unique else f"_{number % WARM_SCHEMAS}")
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            yield body


@dataclass
class Report:
    """Measurements of one run of the load generator.

    Attributes:
        seconds: Duration of the run, in seconds.
        requests: Number of requests that succeeded.
        tokens: Number of output tokens of all requests that succeeded.
        first: Seconds from the request to the first text, one value for each response with text.
        gaps: Seconds between consecutive pieces of text of a response. The list has the values of all responses.
        failures: Reason of a failure -> number of failed requests. The reason is the HTTP status (such as `429`), the
            name of an exception of httpx, or `error in a stream`.
        COLUMNS: Column headers, with units, for the texts that `cells` returns.
    """

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    COLUMNS = ("requests/s", "tokens/s", "first p50 ms", "first p99 ms", "gap p50 ms", "gap p99 ms", "failed")

    def cells(self) -> list[str]:
        """Return the measurements as texts for one table row, in the order of `COLUMNS`.

        Returns:
            Seven texts: requests per second, tokens per second, two times of `first`, two times of `gaps`, and the
            number of failed requests. The times are the median and the 99th percentile in milliseconds, or `-` without
            values.
        """
        rates = [f"{many / self.seconds:,.1f}" for many in (self.requests, self.tokens)]
        times = [_milliseconds(times, q) for times in (self.first, self.gaps) for q in (50, 99)]
        return [*rates, *times, str(self.failures.total())]


async def run(url: str, load: Load, *, headers: dict[str, str] | None = None, tick: Callable[[], Any]) -> Report:
    """Send requests with concurrent clients for `load.seconds`, then wait for the requests that are still open.

    Failed requests raise no error. `Report.failures` counts them.

    Args:
        url: Base URL of the server, such as `http://127.0.0.1:8000`.
        load: Number of clients and kind of requests.
        headers: HTTP headers of every request, such as the API key. None: no additional headers.
        tick: Function that is called after each request, to refresh a display.

    Returns:
        The measurements of all clients together.
    """
    report = Report()
    bodies = load.bodies(f"_{time.time_ns()}_")
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600, limits=limits, trust_env=False) as http:
        started = time.perf_counter()

        async def client() -> None:
            while time.perf_counter() - started < load.seconds:
                await _ask(http, next(bodies), report)
                tick()

        await asyncio.gather(*(client() for _ in range(load.clients)))
        report.seconds = time.perf_counter() - started
    return report


async def _ask(http: httpx.AsyncClient, body: dict[str, Any], report: Report) -> None:
    begun = last = time.perf_counter()
    first = None
    gaps = []
    tokens = 0
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                report.failures[str(response.status_code)] += 1
                return
            async for line in response.aiter_lines():
                if (chunk := chunk_in(line)) is None:
                    continue
                if "error" in chunk:
                    report.failures["error in a stream"] += 1
                    return
                tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
                if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                    now = time.perf_counter()
                    if first is None:
                        first = now - begun
                    else:
                        gaps.append(now - last)
                    last = now
    except (httpx.HTTPError, ValueError) as error:  # a chunk that is not JSON
        report.failures[type(error).__name__] += 1
        return
    report.requests += 1
    report.tokens += tokens
    report.first += [] if first is None else [first]
    report.gaps += gaps


def _schema(name: str) -> dict[str, Any]:
    """Return a schema of a person with one choice that no other schema has.

    Outputs have the same length for every `name`.
    """
    properties = {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tag": {"enum": ["a", "b", None, f"tag{name}"]},
    }
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _milliseconds(seconds: list[float], quantile: float) -> str:
    return f"{1e3 * float(np.percentile(seconds, quantile)):,.1f}" if seconds else "-"

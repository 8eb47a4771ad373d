"""Load on an OpenAI-compatible server: clients that ask one request after the other for a while, and what they saw."""

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
    """`clients` ask for `seconds`; of their requests the share `structured` has a schema.

    `unique`: each schema is a new one; else they are a few, the same ones again and again.
    """

    clients: int
    structured: float = 0.0
    unique: bool = False
    seconds: float = 5.0
    max_tokens: int = 32
    model: str | None = None

    def bodies(self, salt: str) -> Iterator[dict[str, Any]]:
        """Chat completions without end, those with schemas evenly among the others; `salt` makes schemas new."""
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
    """What was seen: seconds to the first text, seconds between pieces of text, statuses of requests that failed."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    COLUMNS = ("requests/s", "tokens/s", "first p50 ms", "first p99 ms", "gap p50 ms", "gap p99 ms", "failed")

    def cells(self) -> list[str]:
        """The figures of `COLUMNS`."""
        rates = [f"{many / self.seconds:,.1f}" for many in (self.requests, self.tokens)]
        times = [_milliseconds(times, q) for times in (self.first, self.gaps) for q in (50, 99)]
        return [*rates, *times, str(self.failures.total())]


async def run(url: str, load: Load, *, headers: dict[str, str] | None = None, tick: Callable[[], Any]) -> Report:
    """Puts `load` on the server; `tick` is called after each request. What is running at the end is finished."""
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
    except httpx.HTTPError as error:
        report.failures[type(error).__name__] += 1
        return
    report.requests += 1
    report.tokens += tokens
    report.first += [] if first is None else [first]
    report.gaps += gaps


def _schema(name: str) -> dict[str, Any]:
    """A person, and a choice that no other schema has: answers are as long whatever the schema is called."""
    properties = {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tag": {"enum": ["a", "b", None, f"tag{name}"]},
    }
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _milliseconds(seconds: list[float], quantile: float) -> str:
    return f"{1e3 * float(np.percentile(seconds, quantile)):,.1f}" if seconds else "-"

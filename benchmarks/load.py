"""Clients that put load on a running server and measure it: steady streams, and requests at a fixed rate."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from tests.integration.server import Server

# Gap in seconds that a reader notices.
STALL_S = 0.5
# Seconds for a server's start. It is long, because a busy machine must not end a long run.
START_DEADLINE_S = 600
ANSWER_TOKENS = 4
CHAT = "/v1/chat/completions"

_PROMPT = [{"role": "user", "content": "Tell me about the harbour of Lisbon."}]
_WORDS = {"regex": "([a-z]+ )+"}


@dataclass
class Measurements:
    """Measurements of streams and requests. All times are in seconds.

    Attributes:
        seconds: Total length of the recordings of streams.
        gaps: Times between two events of one stream. At the end of a recording, the time since the last event of each
            stream is a gap, too.
        stream_starts: Times from the request of a stream to its first event.
        broken_streams: Number of streams that have failed.
        sent: Number of requests sent.
        first_tokens: Times from a request to its first text.
        answers: Times from a request to the end of its response.
        statuses: Number of failed requests by HTTP status. Status 0 is a broken connection.
    """

    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)
    stream_starts: list[float] = field(default_factory=list)
    broken_streams: int = 0
    sent: int = 0
    first_tokens: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def refused(self) -> str:
        """Failed requests by HTTP status as text, such as `3 x 429`; `0` if there are none."""
        return ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items())) or "0"

    @property
    def stalls(self) -> int:
        """Number of gaps longer than `STALL_S`."""
        return sum(gap > STALL_S for gap in self.gaps)

    @property
    def events_per_second(self) -> float:
        """Number of events of all streams per second of the recordings; 0 without a recording."""
        return len(self.gaps) / self.seconds if self.seconds else 0.0


def quantile_ms(seconds: list[float], q: float) -> float:
    """Return a quantile in milliseconds.

    Args:
        seconds: Times in seconds.
        q: Quantile, from 0 to 1.

    Returns:
        The quantile; NaN if there are no times.
    """
    return float(np.quantile(seconds, q)) * 1000 if seconds else float("nan")


class Streams:
    """Several streams of words under a regular expression. A stream that ends is started again, until `close`.

    Args:
        http: Client of the server.
        count: Number of streams.
        max_tokens: Number of tokens of a stream.
    """

    def __init__(self, http: aiohttp.ClientSession, count: int, max_tokens: int = 1500) -> None:
        self._http = http
        self._max_tokens = max_tokens
        self._recording: Measurements | None = None
        self._last = [0.0] * count
        self._count = count
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the streams, and wait until each of them has sent an event.

        If a stream fails before its first event, all streams are cancelled and its error is raised.
        """
        begun = [asyncio.Event() for _ in range(self._count)]
        self._tasks = [asyncio.create_task(self._stream(i, event)) for i, event in enumerate(begun)]
        all_begun = asyncio.gather(*(event.wait() for event in begun))
        await asyncio.wait([all_begun, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        if not all_begun.done():
            all_begun.cancel()
            broken = next(task for task in self._tasks if task.done())
            await self.close()
            broken.result()

    async def close(self) -> None:
        """Cancel all streams."""
        await cancelled(self._tasks)

    @contextlib.contextmanager
    def recording(self, measurements: Measurements) -> Iterator[None]:
        """Return a context manager that records the events of the streams inside its block.

        Args:
            measurements: Measurements to which the events are added. At the end of the block, the time since the last
                event of each stream is added as a gap.
        """
        started = time.monotonic()
        self._recording = measurements
        try:
            yield
        finally:
            now = time.monotonic()
            measurements.gaps += [now - max(last, started) for last in self._last]
            measurements.seconds += now - started
            self._recording = None

    async def _stream(self, index: int, begun: asyncio.Event) -> None:
        draw = random.Random(index)
        # Different lengths at first, so that they do not all end together ever after.
        length = draw.randrange(self._max_tokens // 3, self._max_tokens)
        while True:
            body = {
                "messages": _PROMPT,
                "structured_outputs": _WORDS,
                "max_tokens": length,
                "ignore_eos": True,
                "seed": draw.randrange(1 << 30),
                "stream": True,
            }
            started = self._last[index] = time.monotonic()
            first = True
            try:
                async with self._http.post(CHAT, json=body) as response:
                    if response.status != 200:
                        raise aiohttp.ClientError(await response.text())
                    async for line in response.content:
                        if not line.startswith(b"data: {"):
                            continue
                        if b'"error"' in line:
                            raise aiohttp.ClientError(line.decode())
                        now = time.monotonic()
                        if self._recording is not None:
                            (self._recording.stream_starts if first else self._recording.gaps).append(
                                now - (started if first else self._last[index])
                            )
                        first = False
                        self._last[index] = now
                        begun.set()
            except (aiohttp.ClientError, OSError):
                if not begun.is_set():
                    raise
                if self._recording is not None:
                    self._recording.broken_streams += 1
                await asyncio.sleep(0.1)
            length = self._max_tokens


def one_of_each(store: str, **engine: Any) -> Server:
    """Return a server with one replica of each deployment, one compile worker, and one thread for the model.

    Args:
        store: URL of the store of compiled grammars.
        **engine: Further fields of `EngineConfig`.

    Returns:
        The server, as a context manager that starts and stops it.
    """
    arguments = {
        "store": store,
        "compiler": {"num_cpus": 0.1, "processes": 1},
        "replica": {"num_cpus": 0.1, "engine": {"threads": 1, **engine}},
    }
    return Server(arguments, deadline_s=START_DEADLINE_S)


class Requests:
    """Requests for short responses under JSON Schemas, at a fixed rate that does not depend on earlier responses.

    Args:
        http: Client of the server.
        tenant: Tenant of the requests.
    """

    def __init__(self, http: aiohttp.ClientSession, tenant: str) -> None:
        self._http = http
        self._headers = {"x-turnstile-tenant": tenant}

    async def answer(self, schema: Any, measurements: Measurements) -> None:
        """Send one request, and wait for its response.

        Args:
            schema: JSON Schema of the response.
            measurements: Measurements to which the times to the first text and to the end, or the error status, are
                added.
        """
        started = time.monotonic()
        measurements.sent += 1
        body = {
            "messages": _PROMPT,
            "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
            "max_tokens": ANSWER_TOKENS,
            "stream": True,
        }
        try:
            async with self._http.post(CHAT, json=body, headers=self._headers) as response:
                if response.status != 200:
                    await response.read()
                    measurements.statuses[response.status] += 1
                    return
                seen = False
                async for line in response.content:
                    if not seen and line.startswith(b"data: {") and _has_text(line):
                        seen = True
                        measurements.first_tokens.append(time.monotonic() - started)
                measurements.answers.append(time.monotonic() - started)
        except (aiohttp.ClientError, OSError):
            measurements.statuses[0] += 1

    async def at_rate(
        self,
        rate: float,
        schemas: Iterator[Any],
        measurements: Measurements,
        count: int | None = None,
    ) -> None:
        """Send requests at a fixed rate, and wait for all responses. If the call is cancelled, open requests end.

        Args:
            rate: Requests per second.
            schemas: JSON Schema of each request.
            measurements: Measurements to which the requests are added.
            count: Number of requests; None: no limit, until the call is cancelled.
        """
        started = time.monotonic()
        under_way: set[asyncio.Task[None]] = set()
        try:
            for number in itertools.count() if count is None else range(count):
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
                task = asyncio.create_task(self.answer(next(schemas), measurements))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.gather(*under_way)
        finally:
            await cancelled(list(under_way))


def connect(url: str) -> aiohttp.ClientSession:
    """Return an HTTP client without limits on the number of connections or the total time of a request.

    Args:
        url: Base URL of the server.
    """
    return aiohttp.ClientSession(
        url, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=60)
    )


async def cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended. Their errors are ignored.

    Args:
        tasks: The tasks.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _has_text(line: bytes) -> bool:
    choices = json.loads(line.removeprefix(b"data: ")).get("choices")
    return bool(choices and choices[0]["delta"].get("content"))

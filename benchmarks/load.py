"""Load on a running server, and what its clients notice: steady streams, and requests at a fixed rate."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

STALL_S = 0.5
"""A reader notices it."""
START_DEADLINE_S = 600
"""For a server; generous, because a busy machine is no reason to lose a long run."""
CHAT = "/v1/chat/completions"

_PROMPT = [{"role": "user", "content": "Tell me about the harbour of Lisbon."}]
_WORDS = {"regex": "([a-z]+ )+"}


@dataclass
class Measurements:
    """What streams and requests met while this was being recorded; all times in seconds."""

    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between two events of one stream, or from the last event to the end of the recording."""
    stream_starts: list[float] = field(default_factory=list)
    broken_streams: int = 0
    sent: int = 0
    first_tokens: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    """Whole ones."""
    statuses: dict[int, int] = field(default_factory=dict)
    """Answers that were no success, by status; 0: the connection broke."""

    def add(self, other: Measurements) -> None:
        self.seconds += other.seconds
        self.gaps += other.gaps
        self.stream_starts += other.stream_starts
        self.broken_streams += other.broken_streams
        self.sent += other.sent
        self.first_tokens += other.first_tokens
        self.answers += other.answers
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count

    @property
    def stalls(self) -> int:
        return sum(gap > STALL_S for gap in self.gaps)

    @property
    def events_per_second(self) -> float:
        return len(self.gaps) / self.seconds if self.seconds else 0.0


def quantile_ms(seconds: list[float], q: float) -> float:
    """NaN where there is nothing."""
    return float(np.quantile(seconds, q)) * 1000 if seconds else float("nan")


class Streams:
    """`count` streams of constrained words that go on until `close`; one that ends is begun anew at once."""

    def __init__(self, http: aiohttp.ClientSession, count: int, max_tokens: int = 1500) -> None:
        self._http = http
        self._max_tokens = max_tokens
        self._recording: Measurements | None = None
        self._last = [0.0] * count
        self._count = count
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when every stream has sent something; raises what ends one before."""
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
        await cancelled(self._tasks)

    @contextlib.contextmanager
    def recording(self, measurements: Measurements) -> Iterator[None]:
        """Notes what happens meanwhile; a stream that is silent at the end has a gap, too."""
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


class Requests:
    """Short answers asked for at a fixed rate, whether the ones before are answered or not."""

    def __init__(self, http: aiohttp.ClientSession, tenant: str) -> None:
        self._http = http
        self._headers = {"x-turnstile-tenant": tenant}

    async def answer(self, schema: Any, measurements: Measurements, max_tokens: int = 4) -> None:
        """One of them; notes the time to its first token, or the status it got instead."""
        started = time.monotonic()
        measurements.sent += 1
        body = {
            "messages": _PROMPT,
            "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
            "max_tokens": max_tokens,
            "stream": True,
        }
        try:
            async with self._http.post(CHAT, json=body, headers=self._headers) as response:
                if response.status != 200:
                    await response.read()
                    measurements.statuses[response.status] = measurements.statuses.get(response.status, 0) + 1
                    return
                seen = False
                async for line in response.content:
                    if not seen and line.startswith(b"data: {") and _has_text(line):
                        seen = True
                        measurements.first_tokens.append(time.monotonic() - started)
                measurements.answers.append(time.monotonic() - started)
        except (aiohttp.ClientError, OSError):
            measurements.statuses[0] = measurements.statuses.get(0, 0) + 1

    async def at_rate(
        self,
        rate: float,
        next_schema: Callable[[], Any],
        measurements: Measurements,
        *,
        count: int | None = None,
        max_tokens: int = 4,
    ) -> None:
        """`rate` requests a second, `count` of them or until cancelled; those under way are given up then."""
        started = time.monotonic()
        under_way: set[asyncio.Task[None]] = set()
        try:
            for number in itertools.count() if count is None else range(count):
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
                task = asyncio.create_task(self.answer(next_schema(), measurements, max_tokens))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.gather(*under_way)
        finally:
            await cancelled(list(under_way))


def connect(url: str) -> aiohttp.ClientSession:
    """A client for as many connections as needed, without a deadline of its own."""
    return aiohttp.ClientSession(
        url, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=60)
    )


async def cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _has_text(line: bytes) -> bool:
    choices = json.loads(line.removeprefix(b"data: ")).get("choices")
    return bool(choices and choices[0]["delta"].get("content"))

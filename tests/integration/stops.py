"""How a server stops while it is asked: what its clients get, and when it is gone.

    python -m tests.integration.stops

Prints a table; exit status 1 when anything is not as it should be. Each case starts a server.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import psutil

from deployments.local.stop import DEADLINE_S
from tests.integration.server import Server, still_runs
from tests.integration.traffic import PROMPT

CLIENTS = 32
BEFORE_S = 5.0
NO_ANSWER = "no answer"
LONG = {"messages": PROMPT, "max_tokens": 2000, "ignore_eos": True, "stream": True}
SLOW = {"anyOf": [{"type": "object", "properties": {f"a{n}": {"type": "string"}}} for n in range(2000)]}


@dataclasses.dataclass
class Stop:
    """`answers`: how many of each kind: `whole`, `cut`, `503`, and `refused` when nothing listened any more.

    `last_words`: the last line of the server, which says what it had to cut or to kill.
    """

    answers: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    code: int | None = None
    began: float = math.inf
    seconds: float = 0.0
    left: list[psutil.Process] = dataclasses.field(default_factory=list)
    last_words: str = ""

    def wrong(self, *, code: int = 0, graceful_shutdown_timeout_s: float = 10.0, late_s: float = 30.0) -> list[str]:
        """Return the faults of this stop. The server may end up to `late_s` seconds after the deadlines."""
        allowed = {"whole", "503", "refused"} | ({"cut"} if code else set())
        found = [f"{count} answers: {kind}" for kind, count in self.answers.items() if kind not in allowed]
        found += [f"exit code {self.code}: {self.last_words}"] * (self.code != code)
        found += [f"{self.seconds:.1f} s"] * (self.seconds > graceful_shutdown_timeout_s + DEADLINE_S + late_s)
        return found + [f"left over: {process}" for process in self.left]


@dataclasses.dataclass
class Signal:
    """One to the launcher, `after_s` after the one before; or to all processes of a terminal, as Ctrl-C is."""

    number: signal.Signals = signal.SIGINT
    after_s: float = 0.0
    to_group: bool = False


class Clients:
    """`CLIENTS` of them, each asking again and again, half of them for streams, until nothing listens any more."""

    def __init__(self, url: str, stop: Stop, tokens: int = 150) -> None:
        self._url = url
        self._stop = stop
        self._body = {"messages": PROMPT, "max_tokens": tokens, "ignore_eos": True}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._ask(number))
            yield

    async def _ask(self, number: int) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=60, trust_env=False) as http:
            while True:
                sent = time.monotonic()
                kind = await exchange(http, {**self._body, "stream": number % 2 == 0})
                if kind.startswith(NO_ANSWER) and sent > self._stop.began:
                    kind = "refused"
                self._stop.answers[kind] += 1
                if kind == "refused":
                    return
                if kind != "whole":
                    await asyncio.sleep(0.05)


async def exchange(http: httpx.AsyncClient, body: dict[str, Any], started: asyncio.Event | None = None) -> str:
    """How a request ended: `whole`, `cut`, `refused`, or with the status and what is wrong with it."""
    answered = False
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            answered = response.status_code == 200
            text = ""
            async for part in response.aiter_text():
                text += part
                if started is not None:
                    started.set()
    except httpx.ConnectError:
        return "refused"
    except httpx.TransportError as error:
        return "cut" if answered else f"{NO_ANSWER} ({type(error).__name__})"
    if response.status_code == 503 and '"shutting_down"' in text and response.headers.get("retry-after", "").isdigit():
        return "503"
    if not answered:
        return f"{response.status_code} {text[:100]}"
    return "whole" if not body.get("stream") or "data: [DONE]" in text else "cut"


async def _ended(server: Server, stop: Stop, *signals: Signal) -> None:
    """Send the signals and wait for the end."""
    started = psutil.Process(server.process.pid).children(recursive=True)
    stop.began = time.monotonic()
    for one in signals:
        await asyncio.sleep(one.after_s)
        (os.killpg if one.to_group else os.kill)(server.process.pid, one.number)
    stop.code = await asyncio.to_thread(server.process.wait, timeout=120)
    stop.seconds = time.monotonic() - stop.began
    stop.last_words = server.log.rstrip().rpartition("\n")[2]
    stop.left = [process for process in started if still_runs(process)]


async def under_load(server: Server, *signals: Signal) -> Stop:
    """With clients that ask all the time, one that is silent on an open connection, and a compilation under way."""
    stop = Stop()
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as silent:
        await silent.get("/health")
        async with Clients(server.url, stop).running():
            await asyncio.sleep(BEFORE_S)
            slow = {"specification": {"type": "json_schema", "schema": SLOW}, "wait": False}
            await silent.post("/v1/grammars", json=slow)
            await _ended(server, stop, *signals)
    return stop


async def with_a_long_stream(server: Server, *signals: Signal) -> Stop:
    """The stream goes on for longer than the server may wait."""
    stop = Stop()
    started = asyncio.Event()
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as http:
        stream = asyncio.create_task(exchange(http, LONG, started))
        await started.wait()
        await _ended(server, stop, *signals)
        stop.answers[await stream] += 1
    return stop


SHORT_DRAIN_S = 2.0
SIGTERM_UNDER_LOAD = f"SIGTERM, {CLIENTS} clients"
CASES: dict[str, tuple[Callable[..., Awaitable[Stop]], list[Signal], float, int]] = {
    f"SIGINT, {CLIENTS} clients": (under_load, [Signal()], 10.0, 0),
    SIGTERM_UNDER_LOAD: (under_load, [Signal(signal.SIGTERM)], 10.0, 0),
    f"Ctrl-C, {CLIENTS} clients": (under_load, [Signal(to_group=True)], 10.0, 0),
    "SIGTERM twice at once": (under_load, [Signal(signal.SIGTERM)] * 2, 10.0, 0),
    "a stream past graceful_shutdown_timeout_s": (with_a_long_stream, [Signal()], SHORT_DRAIN_S, 1),
    "a second SIGINT": (with_a_long_stream, [Signal(), Signal(after_s=1.5)], 10.0, 1),
}
"""By name: what goes on, the signals, `graceful_shutdown_timeout_s` and the exit code."""


async def run(name: str, *, late_s: float = 2.0) -> tuple[Stop, list[str]]:
    """What happened, and what of it should not have."""
    scenario, signals, graceful_shutdown_timeout_s, code = CASES[name]
    with Server(
        {"store": "memory://", "router": {"graceful_shutdown_timeout_s": graceful_shutdown_timeout_s}}
    ) as server:
        stop = await scenario(server, *signals)
        return stop, stop.wrong(code=code, graceful_shutdown_timeout_s=graceful_shutdown_timeout_s, late_s=late_s)


def main() -> int:
    troubles = 0
    print(f"{'stop':<26}{'exit':>5}{'after':>9}  answers", flush=True)
    for name in CASES:
        stop, wrong = asyncio.run(run(name))
        answers = ", ".join(f"{count:,} {kind}" for kind, count in sorted(stop.answers.items()))
        print(
            f"{name:<26}{stop.code:>5}{stop.seconds:>7.1f} s  {answers}{'  WRONG: ' * bool(wrong)}{wrong or ''}",
            flush=True,
        )
        troubles += len(wrong)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())

"""Handles to tiers that are not there: each call follows a script, and what was asked of it is written down."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

Event = dict[str, Any]

FINGERPRINT = "f" * 64
ARTIFACT = b"an artifact"


async def settled() -> None:
    """Returns when everything that was ready to run has run."""
    for _ in range(10):
        await asyncio.sleep(0)


def skip(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make it so much later for the timers of this event loop."""
    loop = asyncio.get_running_loop()
    now = loop.time
    patch.setattr(loop, "time", lambda: now() + seconds)


class FakeHandle:
    """`handle.options(...).method.remote(...)` over methods of `target`; a generator method gives a `FakeStream`."""

    def __init__(self, target: Any, options: dict[str, Any] | None = None) -> None:
        self._target = target
        self._options = options or {}

    def options(self, **options: Any) -> FakeHandle:
        return FakeHandle(self._target, {**self._options, **options})

    def broadcast(self, method: str, *arguments: Any) -> FakeBroadcast:
        return FakeBroadcast(functools.partial(getattr(self._target, method), *arguments))

    def __getattr__(self, method: str) -> Any:
        return FakeMethod(getattr(self._target, method), self._options)


class FakeBroadcast:
    """A call to every replica: the target's method answers for all of them."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    async def results_async(self, *, timeout_s: float, return_exceptions: bool) -> list[Any]:
        assert return_exceptions and timeout_s > 0
        return list(await self._method())


class FakeMethod:
    def __init__(self, method: Callable[..., Any], options: dict[str, Any]) -> None:
        self._method = method
        self._options = options

    def remote(self, *arguments: Any) -> Any:
        result = self._method(*arguments, options=self._options)
        return FakeStream(result) if self._options.get("stream") else result


class FakeStream:
    """What a streaming call returns; like Serve's, it has begun before it is first awaited."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    def cancel(self) -> None:
        self._closing = asyncio.ensure_future(self._events.aclose())


class FakeCompiler:
    """Answers `compile` with `answers` in turn (an exception is raised), the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any] | Exception] = [{"status": "ready", "source": "compiled", "notes": []}]
        self.calls: list[tuple[str, dict[str, Any] | None, dict[str, Any]]] = []
        self.tenants: list[str] = []
        self.traceparents: list[str] = []
        self.only_own: list[bool] = []
        self.asked: list[tuple[str, bool]] = []
        self.known: dict[str, Any] = {"status": "unknown"}
        self.reports: list[Any] = []
        self.held_back: list[tuple[str, int]] = []
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    @property
    def handle(self) -> Any:
        return FakeHandle(self)

    async def info(self, *, options: dict[str, Any]) -> dict[str, Any]:
        return {"vocabulary_fingerprint": FINGERPRINT, "options": {}}

    async def report(self) -> list[Any]:
        return self.reports

    async def report_held_back(self, router: str, waiting: int) -> list[Any]:
        self.held_back.append((router, waiting))
        return [None]

    async def status(self, key: str, tenant: str, administrator: bool, *, options: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((tenant, administrator))
        return {"key": key, **self.known}

    async def discard(self, key: str, tenant: str, administrator: bool, *, options: dict[str, Any]) -> dict[str, Any]:
        if not administrator and self.known.get("owner", tenant) != tenant:
            return {"key": key, "status": "forbidden"}
        return {"key": key, **self.known}

    async def compile(
        self,
        key: str,
        specification: dict[str, Any] | None,
        tenant: str,
        traceparent: str,
        with_artifact: bool,
        only_own: bool,
        *,
        options: dict[str, Any],
    ) -> dict[str, Any]:
        self.calls.append((key, specification, options))
        self.tenants.append(tenant)
        self.traceparents.append(traceparent)
        self.only_own.append(only_own)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.started.set()
        await self.release.wait()
        if isinstance(answer, Exception):
            raise answer
        return {"key": key, **answer, **({"artifact": ARTIFACT} if with_artifact else {})}


class FakeReplica:
    """Generates the tokens 0, 1, ... `length - 1`, one event each, from where the request resumes.

    Their texts are `0 `, `1 `, ... unless `say` gave others.
    `faults[i]` is raised by the i-th call after that many events; a dict fault is yielded as an error instead.
    """

    def __init__(self) -> None:
        self.length = 5
        self.texts: list[str] = []
        self.chat_template: str | None = None
        self.generation_prompt = ""
        self.end: dict[str, Any] = {}
        self.finish_reason = "stop"
        self.faults: list[tuple[int, Exception | dict[str, Any]] | None] = []
        self.requests: list[dict[str, Any]] = []
        self.reports: list[Any] | Exception = []
        self.running = 0
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    @property
    def handle(self) -> Any:
        return FakeHandle(self)

    async def info(self, template_arguments: Any, *, options: dict[str, Any]) -> dict[str, Any]:
        prompts = [self.generation_prompt for _ in template_arguments]
        return {"max_model_len": 2048, "chat_template": self.chat_template, "generation_prompts": prompts}

    async def report(self) -> list[Any]:
        if isinstance(self.reports, Exception):
            raise self.reports
        return self.reports

    def say(self, *texts: str, stop_string: str | None = None) -> None:
        """Generate these texts, a token each; `stop_string` ends them."""
        self.texts, self.length = list(texts), len(texts)
        self.end = {} if stop_string is None else {"stop_string": stop_string}

    async def generate(self, request: dict[str, Any], *, options: dict[str, Any]) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        fault = self.faults.pop(0) if self.faults else None
        self.running += 1
        self.started.set()
        try:
            for sent, token in enumerate(range(len(request["emitted_token_ids"]), self.length + 1)):
                if fault is not None and fault[0] == sent:
                    if isinstance(fault[1], dict):
                        yield {"error": fault[1]}
                        return
                    raise fault[1]
                await self.release.wait()
                last = token == self.length
                yield {
                    "text": "" if last else self.texts[token] if self.texts else f"{token} ",
                    "token_ids": [] if last else [token],
                    "finish_reason": self.finish_reason if last else None,
                    "prompt_tokens": 3,
                    **(self.end if last else {}),
                }
        finally:
            self.running -= 1

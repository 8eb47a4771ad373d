"""Nothing that hangs behind the router holds an answer for longer than its deadline, on any path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.deployments.applications import application
from tests.deployments.fakes import FakeCompiler, FakeReplica, skip

pytestmark = pytest.mark.anyio

TIMEOUT_S, LONG_S = 0.2, 60.0
MESSAGES = [{"role": "user", "content": "hi"}]
REGEX = {"type": "regex", "pattern": "[a-z]+"}
KEY = "0" * 64
CHAT = {"messages": MESSAGES}
UNDER_A_GRAMMAR = {**CHAT, "response_format": REGEX}
PATHS: list[tuple[str, str, dict[str, Any] | None, str]] = [
    ("GET", "/v1/models", None, "replica"),
    ("GET", "/v1/models/tiny", None, "replica"),
    ("POST", "/tokenize", {"prompt": "x"}, "replica"),
    ("POST", "/tokenize", CHAT, "replica"),
    ("POST", "/detokenize", {"tokens": [1]}, "replica"),
    ("POST", "/v1/messages/count_tokens", {"model": "tiny", **CHAT}, "replica"),
    ("POST", "/v1/grammars", {"specification": REGEX}, "compiler"),
    ("POST", "/v1/grammars", {"specification": REGEX, "wait": False}, "compiler"),
    ("GET", f"/v1/grammars/{KEY}", None, "compiler"),
    ("DELETE", f"/v1/grammars/{KEY}", None, "compiler"),
    ("POST", "/v1/completions", {"prompt": "x"}, "replica"),
    ("POST", "/v1/chat/completions", CHAT, "replica"),
    ("POST", "/v1/chat/completions", {**CHAT, "stream": True}, "replica"),
    ("POST", "/v1/chat/completions", UNDER_A_GRAMMAR, "replica"),
    ("POST", "/v1/chat/completions", UNDER_A_GRAMMAR, "compiler"),
    ("POST", "/v1/chat/completions", {**CHAT, "structured_outputs": {"key": KEY}}, "compiler"),
    ("POST", "/v1/responses", {"input": "hi"}, "replica"),
    ("POST", "/v1/messages", {"model": "tiny", "max_tokens": 9, **CHAT}, "replica"),
]


class Client(httpx.AsyncClient):
    """A client of an application whose `router.timeout_s` is long, until `hurry` is called."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://turnstile")
        self._app = app

    def hurry(self) -> None:
        self._app.state.timeout_s = TIMEOUT_S


@pytest.fixture
async def quick(compiler: FakeCompiler, replica: FakeReplica) -> AsyncIterator[Client]:
    async with Client(application(compiler, replica, timeout_s=LONG_S)) as client:
        yield client


class Hanging:
    """In a tier's place: every call of it has no end, like that of a process which was stopped."""

    def __getattr__(self, name: str) -> Any:
        if name == "generate":
            return self._no_event
        return self._no_answer

    async def _no_answer(self, *_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    async def _no_event(self, *_: Any, **__: Any) -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.Event().wait()
        yield {}


def stop(client: Client, tier: FakeCompiler | FakeReplica) -> None:
    """From now on the tier hangs, and the router has little patience."""
    client.hurry()
    for name in ("info", "compile", "status", "discard", "generate", "tokenize", "detokenize"):
        setattr(tier, name, getattr(Hanging(), name))


@pytest.mark.parametrize("seen", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(("method", "path", "body", "hangs"), PATHS)
async def test_a_tier_that_was_stopped(
    quick: Client,
    compiler: FakeCompiler,
    replica: FakeReplica,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    hangs: str,
    seen: bool,
) -> None:
    if seen:  # the router has asked both tiers about themselves
        assert (
            await quick.post("/v1/chat/completions", json={**CHAT, "response_format": {"type": "json_object"}})
        ).is_success
        assert (await quick.get("/v1/models")).is_success
    stop(quick, replica if hangs == "replica" else compiler)
    async with asyncio.timeout(200):
        answer = await quick.request(method, path, json=body)
    if seen and path.startswith("/v1/models"):
        assert answer.status_code == 200  # what never changes is asked for once
        return
    assert answer.status_code == 408
    error = answer.json()["error"]
    assert (error["code"], error.get("param")) == ("deadline_exceeded", None)
    assert answer.headers["x-should-retry"] == "false"
    assert "0.2 s" in error["message"] and "router.timeout_s" in error["message"]


async def test_a_requests_own_deadline_comes_before_the_servers(quick: Client, replica: FakeReplica) -> None:
    stop(quick, replica)
    answer = await quick.post("/v1/completions", json={"prompt": "x", "timeout_s": 0.05})
    assert (answer.status_code, answer.json()["error"]["param"]) == (408, "timeout_s")
    assert "0.05 s" in answer.json()["error"]["message"]


async def test_a_request_may_ask_for_more_than_the_servers(
    quick: Client, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    replica.release.clear()
    quick.hurry()
    answer = asyncio.create_task(quick.post("/v1/completions", json={"prompt": "x", "timeout_s": LONG_S}))
    await asyncio.sleep(2 * TIMEOUT_S)
    replica.release.set()
    assert (await answer).status_code == 200
    assert TIMEOUT_S < replica.requests[0]["timeout_s"] <= LONG_S


async def test_a_replica_that_stops_in_the_middle_ends_its_stream(
    quick: Client, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = replica.generate

    async def two_tokens(request: dict[str, Any], *, options: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async for event in generate(request, options=options):
            if event["token_ids"] == [2]:
                skip(monkeypatch, LONG_S)
                await asyncio.Event().wait()
            yield event

    replica.generate = two_tokens  # type: ignore[method-assign]
    async with asyncio.timeout(200):
        answer = await quick.post("/v1/completions", json={"prompt": "x", "stream": True})
    assert answer.status_code == 200 and "1 " in answer.text and "deadline_exceeded" in answer.text


async def test_what_a_grammar_needs_that_was_ready_before_is_no_compiler(quick: Client, compiler: FakeCompiler) -> None:
    noted = {"param": "response_format", "pointer": "/not", "reason": "no"}
    compiler.answers = [{"status": "ready", "source": "compiled", "notes": ["ignored"], "unenforced": [noted]}]
    first = (await quick.post("/v1/chat/completions", json=UNDER_A_GRAMMAR)).json()
    stop(quick, compiler)
    for body in (UNDER_A_GRAMMAR, {**CHAT, "structured_outputs": {"key": first["grammar"]["key"]}}):
        again = await quick.post("/v1/chat/completions", json=body)
        assert again.status_code == 200
        assert again.json()["grammar"]["notes"] == ["ignored"]
        assert again.json()["grammar"]["unenforced"][0]["pointer"] == "/not"


@pytest.mark.parametrize("error", ["full", "dead"])
async def test_nor_one_that_is_full_or_dead(quick: Client, compiler: FakeCompiler, error: str) -> None:
    from ray.exceptions import ActorDiedError
    from ray.serve.exceptions import BackPressureError

    assert (await quick.post("/v1/chat/completions", json=UNDER_A_GRAMMAR)).is_success
    compiler.answers = [BackPressureError(1, 1, 429, 1.0) if error == "full" else ActorDiedError()]
    assert (await quick.post("/v1/chat/completions", json=UNDER_A_GRAMMAR)).is_success


async def test_a_grammar_that_was_discarded_is_new_again(quick: Client, compiler: FakeCompiler) -> None:
    key = (await quick.post("/v1/chat/completions", json=UNDER_A_GRAMMAR)).json()["grammar"]["key"]
    compiler.known = {"status": "ready"}
    assert (await quick.delete(f"/v1/grammars/{key}")).is_success
    stop(quick, compiler)
    assert (await quick.post("/v1/chat/completions", json=UNDER_A_GRAMMAR)).status_code == 408

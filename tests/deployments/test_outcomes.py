"""Requests are counted by outcome, each once: a client's error is no fault of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from deployments.http import outcomes
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica

pytestmark = pytest.mark.anyio

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"response_format": {"type": "json_schema", "schema": {"type": "object"}}}


class Counted:
    """Stands in for Ray's counter."""

    def __init__(self, *_: Any) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        FOUND[:] = [self]

    def inc(self, value: int = 1, tags: dict[str, str] | None = None) -> None:
        key = (tags or {})["outcome"], (tags or {})["code"]
        self.counts[key] = self.counts.get(key, 0) + value

    def _record(self, value: int, tags: dict[str, str]) -> None:
        assert value == 0 and tags["outcome"] == "server_error"


FOUND: list[Counted] = []


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    monkeypatch.setattr(outcomes, "Counter", Counted)
    return FOUND


def http_of(compiler: FakeCompiler, replica: FakeReplica, **router: Any) -> httpx.AsyncClient:
    return client_of(application(compiler, replica, **router))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_and_a_refusal(counted: list[Counted], stream: bool) -> None:
    async with http_of(FakeCompiler(), FakeReplica()) as http:
        assert (await http.post("/v1/chat/completions", json={**CHAT, "stream": stream})).status_code == 200
        assert (await http.post("/v1/chat/completions", json={**CHAT, "max_tokenz": 3})).status_code == 400
        assert (await http.get("/v1/nothing")).status_code == 404
        await http.get("/health")
    assert counted[0].counts == {("ok", ""): 1, ("client_error", "unknown_field"): 1, ("client_error", "404"): 1}


async def test_a_refused_schema_is_a_client_error_by_its_code(counted: list[Counted]) -> None:
    refused = {"code": "grammar_limit_exceeded", "message": "too large"}
    compiler = FakeCompiler()
    compiler.answers = [{"status": "refused", "error": refused}]
    async with http_of(compiler, FakeReplica()) as http:
        assert (await http.post("/v1/chat/completions", json={**CHAT, **SCHEMA})).status_code == 400
    assert counted[0].counts == {("client_error", "grammar_limit_exceeded"): 1}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_an_error_in_a_stream_counts_as_what_it_is(counted: list[Counted], path: str) -> None:
    error = {"status": 500, "code": "not_finite", "message": "the model overflowed", "param": None}
    body: dict[str, Any] = {**CHAT, "max_tokens": 9} if path != "/v1/responses" else {"input": "Hi"}
    replica = FakeReplica()
    replica.faults = [(2, error)]
    async with http_of(FakeCompiler(), replica) as http:
        answer = await http.post(path, json={"model": "tiny", **body, "stream": True})
        assert answer.status_code == 200 and "overflowed" in answer.text
    assert counted[0].counts == {("server_error", "not_finite"): 1}


async def test_a_fault_of_ours_and_a_client_that_goes(counted: list[Counted]) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a fault")

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "path": "/v1/models"}
    middleware = outcomes.Outcomes(fails)
    with pytest.raises(RuntimeError):
        await middleware(scope, send, send)
    assert counted[0].counts == {("server_error", "internal_error"): 1}
    middleware = outcomes.Outcomes(waits)
    request = asyncio.ensure_future(middleware(scope, send, send))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert counted[0].counts == {("cancelled", ""): 1}

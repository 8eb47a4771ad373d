"""A client that leaves a stream stops the replicas, wherever the answer stands."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from deployments.generation import Generation
from deployments.routing.tiers import Tiers
from tests.deployments.applications import application
from tests.deployments.fakes import FakeCompiler, FakeReplica, settled

pytestmark = pytest.mark.anyio

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "n": 2},
    "/v1/completions": {"prompt": "hello", "n": 2},
    "/v1/responses": {"input": "hello"},
}


@pytest.mark.parametrize("messages", [1, 2, 3, 5], ids=["head", "first block", "second block", "middle"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "broken pipe"])
async def test_leaving(
    compiler: FakeCompiler,
    replica: FakeReplica,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    messages: int,
    cancelled: bool,
) -> None:
    # Kept here, so that nothing is closed for being forgotten.
    generations: list[Generation] = []
    start = Tiers.start_generation

    async def start_and_keep(*arguments: Any, **options: Any) -> Generation:
        generations.append(await start(*arguments, **options))
        return generations[-1]

    monkeypatch.setattr(Tiers, "start_generation", start_and_keep)
    body = json.dumps({**BODIES[path], "stream": True}).encode()
    sent: list[dict[str, Any]] = []
    reached = asyncio.Event()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == messages:
            reached.set()
            if not cancelled:
                raise OSError("the client has gone")
            await asyncio.Event().wait()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    connection = asyncio.create_task(application(compiler, replica)(scope, receive, send))
    await asyncio.wait_for(reached.wait(), 200)
    if cancelled:
        connection.cancel()  # what Serve does when the client disconnects
    await asyncio.gather(connection, return_exceptions=True)
    await settled()
    assert len(generations) == 1 and replica.running == 0


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_takes_nothing(compiler: FakeCompiler, replica: FakeReplica, path: str) -> None:
    """Its stream ends; one that waits for the model is not such a client."""
    body = json.dumps({**BODIES[path], "stream": True}).encode()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if sent:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 1:
            replica.release.clear()  # the model takes its time
            asyncio.get_running_loop().call_later(0.3, replica.release.set)
        if len(sent) == 3:
            await asyncio.Event().wait()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    replica.length = 1000
    app = application(compiler, replica, stream_timeout_s=0.1)
    async with asyncio.timeout(200):
        with contextlib.suppress(Exception):
            await app(scope, receive, send)
    await settled()
    assert len(sent) == 3 and replica.running == 0

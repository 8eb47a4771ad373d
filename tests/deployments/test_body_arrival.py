"""Bodies that arrive slowly, or never, beside others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from deployments.http.body_arrival import FREE_BYTES
from deployments.routes import BODIES
from tests.deployments.applications import BODY_TIMEOUT_S, MAX_BODY_BYTES, application
from tests.deployments.fakes import FakeCompiler, FakeReplica, settled, skip

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
REQUEST = b'{"prompt": "x"}'


@pytest.fixture
def app(compiler: FakeCompiler, replica: FakeReplica) -> FastAPI:
    return application(compiler, replica)


async def post(
    app: FastAPI,
    *parts: bytes,
    pause_s: float = 0.0,
    path: str = "/v1/completions",
    arrived: asyncio.Event | None = None,
) -> httpx.Response:
    """`arrived` is set when the first part has."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
            if arrived is not None:
                arrived.set()
            await asyncio.sleep(pause_s)

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://turnstile") as http:
        return await http.post(path, content=body(), headers=JSON)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/grammars"])
@pytest.mark.parametrize("part", [b" ", b""])
async def test_a_body_bit_by_bit(path: str, part: bytes) -> None:
    app = application(FakeCompiler(), FakeReplica(), body_timeout_s=0.5)
    answer = await post(app, *[part] * 100, pause_s=0.025, path=path)
    assert answer.status_code == 408 and answer.headers["connection"] == "close"
    assert answer.json()["error"]["message"] == "the body did not arrive in time"


async def test_the_deadline_is_for_the_body_alone(
    app: FastAPI, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.release.clear()
    answer = asyncio.create_task(post(app, REQUEST[:5], REQUEST[5:]))
    await replica.started.wait()
    skip(monkeypatch, 2 * BODY_TIMEOUT_S)
    await settled()
    assert not answer.done()
    replica.release.set()
    assert (await answer).status_code == 200


async def test_many_large_bodies_that_never_end(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory for them has an end; small requests, and whoever comes when they are gone, do not notice."""
    large = b" " * (MAX_BODY_BYTES - 1)
    many = BODIES * MAX_BODY_BYTES // (len(large) - FREE_BYTES)
    arrived = [asyncio.Event() for _ in range(many)]
    slow = [asyncio.create_task(post(app, large, b"", pause_s=1e9, arrived=one)) for one in arrived]
    await asyncio.gather(*(one.wait() for one in arrived))
    refused = await post(app, large, REQUEST)
    assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
    assert (await post(app, REQUEST)).status_code == 200
    skip(monkeypatch, 2 * BODY_TIMEOUT_S)
    assert {answer.status_code for answer in await asyncio.gather(*slow)} == {408}
    assert (await post(app, large[: MAX_BODY_BYTES // 2], b"", REQUEST)).status_code == 200

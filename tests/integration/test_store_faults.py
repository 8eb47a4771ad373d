"""Redis misbehaves behind a running server: answers stay right, and the operator sees it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from grammar_workers.artifacts.store.redis_tier import PREFIX
from tests.chaos.load import mixed_load
from tests.chaos.single_flight import distinct_compilations
from tests.grammar_workers.test_store import rubbish
from tests.integration.server import METRICS_DEADLINE_S, Server
from tests.redis_relay import RedisRelay
from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio

SAY_IT: dict[str, Any] = {"messages": [{"role": "user", "content": "Say it."}]}
EVENTS = "turnstile_grammar_store_events"


async def test_64_clients_with_one_schema_make_one_compilation(server: Server) -> None:
    assert await distinct_compilations(server.url, secrets.token_hex(4)) == 1


async def test_garbage_is_counted_and_compiled_over(
    server: Server, http: httpx.AsyncClient, server_redis: RedisServer, tmp_path: Path
) -> None:
    kinds = [kind for kind in rubbish("0" * 64, tmp_path) if kind != "empty"]  # Redis has no empty values
    words = {kind: f"{kind} {secrets.token_hex(4)}" for kind in kinds}
    specifications = {kind: {"type": "choice", "choices": [word]} for kind, word in words.items()}
    counted = server.series(EVENTS, tier="redis", event="corrupt")
    redis: Any = server_redis.client()

    async def plant(kind: str) -> tuple[str, bytes]:
        answer = await http.post("/v1/grammars", json={"specification": specifications[kind]})
        key = answer.json()["key"]
        # It leaves the memory of its compiler and the files, so that Redis is asked.
        assert (await http.delete(f"/v1/grammars/{key}")).status_code == 200
        planted = rubbish(key, tmp_path / "trace")[kind]
        redis.set(PREFIX + key, planted)
        return PREFIX + key, planted

    async def ask(kind: str) -> str:
        constraint = {"structured_outputs": {"choice": [words[kind]]}}
        response = await http.post("/v1/chat/completions", json={**SAY_IT, **constraint})
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    left = kinds
    for _ in range(20):  # a compiler that is held up does without Redis for a while
        places = [await plant(kind) for kind in left]
        assert await asyncio.gather(*map(ask, left)) == [words[kind] for kind in left]
        left = [kind for kind, (key, planted) in zip(left, places, strict=True) if redis.get(key) == planted]
        if not left:
            break
    assert not left and not (tmp_path / "trace").exists()
    deadline = time.monotonic() + METRICS_DEADLINE_S
    # A value that could not be read in time is written over uncounted; tests/grammar_workers counts each kind.
    while not server.increase(counted, EVENTS, tier="redis", event="corrupt"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def unharmed_load(http: httpx.AsyncClient) -> AsyncIterator[None]:
    """The block runs under load; no answer may be lost or wrong."""
    async with mixed_load(http, secrets.token_hex(4)) as load:
        await load.wait(4)
        yield
        await load.wait(16)
    assert load.lost == []


async def test_full(server: Server, http: httpx.AsyncClient, server_redis: RedisServer) -> None:
    redis = server_redis.client()
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", "1")
    async with unharmed_load(http):
        pass
    redis.config_set("maxmemory", "0")
    server.wait_metric(EVENTS, tier="redis", event="refused")


async def test_slow(server: Server, http: httpx.AsyncClient, server_relay: RedisRelay) -> None:
    async with unharmed_load(http):
        server_relay.delay_s = 0.3  # more than anybody waits for
    server.wait_metric("turnstile_grammar_store_breaker_open")
    server_relay.delay_s = 0.0

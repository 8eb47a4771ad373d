"""One tenant sends many distinct schemas: every tier keeps to its bounds, and another tenant is served as before."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from typing import Any

import httpx
import pytest

from tests.integration.conftest import AUTOMATA_MB, FILES_MB
from tests.integration.server import METRICS_DEADLINE_S, Server
from tests.integration.traffic import PERSON, check, complete, structured
from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio

FLOOD = 600
WORD_LENGTH = 2000
"""Random letters, which no compression makes much smaller: the flood is twice as large as the files may be."""
AT_A_TIME = 16
REDIS_BYTES = 1 << 20
BYTES, EVENTS = "turnstile_grammar_store_bytes", "turnstile_grammar_store_events"


async def test_a_flood_of_schemas_leaves_memory_bounded_and_others_alone(
    server: Server, http: httpx.AsyncClient, server_redis: RedisServer
) -> None:
    redis: Any = server_redis.client()
    before = {tier: server.series(EVENTS, tier=tier, event="evicted") for tier in ("automata", "file")}
    used = redis.info("memory")["used_memory"]
    redis.config_set("maxmemory-policy", "allkeys-lru")
    redis.config_set("maxmemory", used + REDIS_BYTES)
    evicted = redis.info("stats")["evicted_keys"]
    draw = random.Random(secrets.token_bytes(8))
    over = asyncio.Event()
    others = asyncio.create_task(_others(http, over))
    room = asyncio.Semaphore(AT_A_TIME)

    async def ask() -> int:
        word = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=WORD_LENGTH))
        body = {"messages": [{"role": "user", "content": "Say it."}], "structured_outputs": {"choice": [word]}}
        async with room:
            headers = {"x-turnstile-tenant": "flood"}
            return (
                await http.post("/v1/chat/completions", json={**body, "max_tokens": 1}, headers=headers)
            ).status_code

    try:
        statuses = await asyncio.gather(*(ask() for _ in range(FLOOD)))
        over.set()
        assert await others > 0
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) > FLOOD / 2
        assert redis.info("stats")["evicted_keys"] > evicted
    finally:
        others.cancel()
        redis.config_set("maxmemory", 0)
    for tier, capacity in (("automata", AUTOMATA_MB << 20), ("file", FILES_MB << 20)):
        deadline = time.monotonic() + METRICS_DEADLINE_S
        while not server.increase(before[tier], EVENTS, tier=tier, event="evicted"):
            assert time.monotonic() < deadline, f"nothing has made room in the tier {tier}"
            await asyncio.sleep(0.5)
        assert max(server.metric(BYTES, tier=tier)) <= capacity


async def _others(http: httpx.AsyncClient, over: asyncio.Event) -> int:
    """Another tenant's answers until it is over, under a known schema and a new one in turn: how many."""
    answers = 0
    while not over.is_set():
        title = {"const": f"title {secrets.token_hex(4)}"}
        new = {**PERSON, "properties": {**PERSON["properties"], "title": title}} if answers % 2 else PERSON
        assert check(await complete(http, structured(new)), new)
        answers += 1
    return answers

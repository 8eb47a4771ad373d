"""Parts of the cluster die under load, and no request notices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.server import Server
from tests.integration.traffic import PERSON, check, complete, stream, structured
from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio


def fresh(schema: dict[str, Any], salt: str) -> dict[str, Any]:
    """The same properties under a grammar nobody has compiled yet."""
    return {**schema, "properties": {**schema["properties"], f"code_{salt}": {"const": salt}}}


@contextlib.asynccontextmanager
async def load(http: httpx.AsyncClient, name: str) -> AsyncIterator[list[bool]]:
    """Eight clients, one request after the other, old and new grammars, whole and streamed, until the block ends.

    The list receives whether each answer finished; a request that fails fails the test.
    """
    finished: list[bool] = []
    over = asyncio.Event()

    async def work(worker: int) -> None:
        turn = 0
        while not over.is_set():
            schema = fresh(PERSON, f"{name}-{worker}-{turn}") if turn % 2 else PERSON
            body = structured(schema, temperature=1, seed=turn)
            send = stream if worker % 2 else complete
            finished.append(check(await send(http, body), schema))
            turn += 1

    async with asyncio.TaskGroup() as workers:
        for worker in range(8):
            workers.create_task(work(worker))
        try:
            yield finished
        finally:
            over.set()


async def answered(finished: list[bool], more: int) -> None:
    """Returns after that many more answers."""
    goal = len(finished) + more
    while len(finished) < goal:
        await asyncio.sleep(0.01)


def kill_one(server: Server, deployment: str) -> psutil.Process:
    victim = server.replicas(deployment)[0]
    victim.kill()  # SIGKILL
    return victim


async def test_streams_go_on_where_they_were_cut(server: Server, http: httpx.AsyncClient) -> None:
    bodies = [
        {
            "messages": [{"role": "user", "content": "Write."}],
            "response_format": {"type": "regex", "pattern": "[a-z ]{900}"},
            "seed": seed,
        }
        for seed in range(6)
    ]
    undisturbed = await asyncio.gather(*(complete(http, body) for body in bodies))
    # A replica may have finished its part before it dies: what was cut shows in the metric.
    for _ in range(4):
        started = [asyncio.Event() for _ in bodies]
        sent = zip(bodies, started, strict=True)
        streams = asyncio.gather(*(stream(http, body, started=event) for body, event in sent))
        await asyncio.wait([asyncio.ensure_future(event.wait()) for event in started], return_when="FIRST_COMPLETED")
        kill_one(server, "ModelReplica")
        assert await streams == undisturbed
        if server.shows_metric("turnstile_retries", within_s=40, deployment="ModelReplica"):
            return
    pytest.fail("no stream was cut")


@pytest.mark.parametrize("deployment", ["ModelReplica", "GrammarCompiler"])
async def test_a_killed_replica_costs_no_request(server: Server, http: httpx.AsyncClient, deployment: str) -> None:
    async with load(http, deployment) as finished:
        await answered(finished, 8)
        kill_one(server, deployment)
        await answered(finished, 40)
    assert any(finished)


async def test_redis_stops_in_the_middle_of_load(http: httpx.AsyncClient, server_redis: RedisServer) -> None:
    async with load(http, "redis") as finished:
        await answered(finished, 8)
        server_redis.stop()
        try:
            await answered(finished, 30)
        finally:
            server_redis.start()
        await answered(finished, 8)
    assert any(finished)

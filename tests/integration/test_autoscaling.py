"""Both tiers get replicas under load and lose them after it, for one tenant as for many."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.integration.server import Server
from tests.integration.traffic import structured

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(900)]

CLIENTS = 24
DEADLINE_S = 240
"""Serve averages demand over 30 s, and a busy machine takes a while to start a replica."""
PACE = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 1, "downscale_delay_s": 5}
# The compilers' target is above what the routers let one tenant bring at a time (four grammars): as in the manifests,
# the compilers alone cannot see that one tenant needs another of them.
ARGUMENTS: dict[str, Any] = {
    "compiler": {"num_cpus": 0.1, "processes": 1, "autoscaling": {**PACE, "target_ongoing_requests": 6}},
    "replica": {
        "num_cpus": 0.1,
        "autoscaling": {**PACE, "target_ongoing_requests": 2},
        "engine": {"threads": 1, "max_model_len": 1024, "grammar_timeout_s": 600},
    },
}


@pytest.fixture(scope="module")
def scaling_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server({**ARGUMENTS, "store": f"file://{tmp_path_factory.mktemp('grammars')}"}) as server:
        yield server


def unseen() -> dict[str, Any]:
    """A schema whose compilation takes a while."""
    names = [f"f{secrets.token_hex(5)}" for _ in range(60)]
    return {
        "type": "object",
        "properties": {name: {"type": "string", "maxLength": 100, "pattern": "^[a-z]+[0-9]*$"} for name in names},
        "required": names[:2],
        "additionalProperties": False,
    }


async def ask(http: httpx.AsyncClient, tenant: str) -> None:
    while True:
        body = structured(unseen(), max_tokens=4)
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-turnstile-tenant": tenant})
        assert answer.status_code in (200, 429), answer.text


@contextlib.asynccontextmanager
async def load(server: Server, tenants: int) -> AsyncIterator[list[asyncio.Task[None]]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False) as http:
        clients = [asyncio.create_task(ask(http, f"tenant-{number % tenants}")) for number in range(CLIENTS)]
        try:
            yield clients
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


def replicas(server: Server) -> tuple[int, int]:
    return len(server.replicas("GrammarCompiler")), len(server.replicas("ModelReplica"))


async def become(server: Server, wanted: tuple[int, int], clients: list[asyncio.Task[None]]) -> None:
    """Return when both tiers have had the wanted number of replicas; a client that fails fails the test."""
    reached = [False, False]
    async with asyncio.timeout(DEADLINE_S):
        while not all(reached):
            found = replicas(server)
            reached = [before or now == number for before, now, number in zip(reached, found, wanted, strict=True)]
            for client in clients:
                if client.done():
                    client.result()
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("tenants", [1, CLIENTS])
async def test_both_tiers_grow_under_load_and_shrink_after_it(scaling_server: Server, tenants: int) -> None:
    await become(scaling_server, (1, 1), [])
    async with load(scaling_server, tenants) as clients:
        await become(scaling_server, (2, 2), clients)
    await become(scaling_server, (1, 1), [])

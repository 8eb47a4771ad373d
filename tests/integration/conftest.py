"""One real server for the whole session, two of each deployment, with a Redis of its own."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.server import START_DEADLINE_S, Server
from tests.redis_relay import RedisRelay
from tests.redis_server import RedisServer

PRECOMPILED = {"type": "choice", "choices": ["known beforehand"]}

FILES_MB, AUTOMATA_MB = 1, 8
"""Little room, so that a flood of schemas meets the bounds."""

TWO_OF_EACH = {
    "router": {"replicas": 2, "num_cpus": 0.1},
    # On a busy machine work at the lowest priority takes its time.
    "compiler": {
        "replicas": 2,
        "num_cpus": 0.1,
        "compile_timeout_s": 120,
        "queue_timeout_s": 600,
        "precompile": [PRECOMPILED],
    },
    # In this type no rounding makes answers depend on who else is in the batch.
    "replica": {
        "replicas": 2,
        "num_cpus": 0.1,
        "engine": {
            "threads": 1,
            "max_model_len": 1024,
            "dtype": "float64",
            "grammar_timeout_s": 600,
            "automaton_cache_mb": AUTOMATA_MB,
        },
    },
    "thinking": {"start": "<think>", "end": "</think>", "by_default": False},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The start of a server counts as a part of the first test, and takes minutes on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_DEADLINE_S + 300))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server_redis() -> Iterator[RedisServer]:
    with RedisServer() as redis:
        yield redis


@pytest.fixture(scope="session")
def server_relay(server_redis: RedisServer) -> Iterator[RedisRelay]:
    """The server's way to its Redis."""
    with RedisRelay(server_redis.port) as relay:
        yield relay


@pytest.fixture(scope="session")
def server(server_relay: RedisRelay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    files = tmp_path_factory.mktemp("grammars")
    with Server({**TWO_OF_EACH, "store": f"{server_relay.url}?file={files}&file_mb={FILES_MB}"}) as server:
        yield server


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits, trust_env=False) as client:
        yield client


@pytest.fixture
async def client(server: Server, http: httpx.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1", http_client=http, max_retries=0)


@pytest.fixture(scope="session")
def schemas() -> list[Any]:
    """Forty ordinary JSON Schemas."""
    path = Path(__file__).parents[1] / "data" / "ordinary_schemas.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def two_of_each(request: pytest.FixtureRequest) -> None:
    """Tests kill replicas: the next one begins when Serve has replaced them."""
    if "server" not in request.fixturenames:
        return
    server: Server = request.getfixturevalue("server")
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        counts = [len(server.replicas(name)) for name in ("Router", "GrammarCompiler", "ModelReplica")]
        with contextlib.suppress(httpx.TransportError):
            if counts == [2, 2, 2] and httpx.get(f"{server.url}/health", trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    pytest.fail(f"replicas are missing: {counts}\n{server.log}")

"""Parts of the cluster die under load, and no request notices."""

from __future__ import annotations

import asyncio
import math
import secrets

import httpx
import pytest

from tests.chaos.faults import FAULTS, Target
from tests.chaos.run import run
from tests.integration.server import Server
from tests.integration.traffic import complete, stream
from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio


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
        server.replicas("ModelReplica")[0].kill()
        assert await streams == undisturbed
        if server.shows_metric("turnstile_retries", within_s=40, deployment="ModelReplica"):
            return
    pytest.fail("no stream was cut")


LONG = ("model-replica", "compiler", "compile-processes", "controller")
"""Faults in `make test-long`. `test_streams_go_on_where_they_were_cut` kills model replicas, too."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in FAULTS])
async def test_a_fault_costs_no_request(server: Server, server_redis: RedisServer, name: str) -> None:
    """`make chaos` does the same, and more, on several nodes."""
    outcome = await run(FAULTS[name], Target(server, server_redis), f"{name[:2]}{secrets.token_hex(4)}", requests=8)
    assert (outcome.lost, outcome.differing) == ([], [])
    assert not math.isinf(outcome.recovered_s)
    assert outcome.refused_s == 0 or FAULTS[name].breaks

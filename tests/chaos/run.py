"""One fault under load, measured."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time

import httpx

from tests.chaos.client import client_of
from tests.chaos.faults import Fault, Recovered, Target
from tests.chaos.load import Load, mixed_load
from tests.integration.server import Server

RECOVERY_DEADLINE_S = 600.0
"""For a rolling redeploy on a busy machine."""

PROBE = {"messages": [{"role": "user", "content": "Say it."}], "structured_outputs": {"choice": ["yes"]}}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a fault did to the load."""

    sent: int
    broken: int
    """Connections that died with their proxy or router."""
    lost: list[str]
    """Requests that got something else than their answer, and why."""
    differing: list[str]
    """Requests whose answer is another one when they are repeated with their id: tokens repeated or missing."""
    refused_s: float
    """How long after the fault the last new request failed; 0 if none did."""
    slowest_s: float
    """The longest that a new request on a new connection took, failed ones repeated."""
    recovered_s: float
    """Until everything that was there before is there again; infinite if that took longer than the deadline."""


async def run(fault: Fault, target: Target, name: str, requests: int) -> Outcome:
    """At least `requests` before the fault and after the recovery each, and as many meanwhile as there is time for."""
    async with client_of(target.server) as http:
        async with mixed_load(http, name, may_break=fault.breaks) as load:
            await load.wait(requests)
            over = asyncio.Event()
            prober = asyncio.create_task(_probe(target.server, over))
            struck = time.monotonic()
            recovered = await fault.strike(target)
            whole = await _whole(recovered, http)
            recovered_s = time.monotonic() - struck if whole else math.inf
            await load.wait(requests)
            over.set()
            refused_s, slowest_s = await prober
        return await _outcome(load, refused_s, slowest_s, recovered_s)


async def _outcome(load: Load, refused_s: float, slowest_s: float, recovered_s: float) -> Outcome:
    differing = [one.request_id for one in await load.differing()]
    sent = len(load.answered) + len(load.lost)
    return Outcome(sent, load.broken, load.lost, differing, refused_s, slowest_s, recovered_s)


async def _whole(recovered: Recovered, http: httpx.AsyncClient) -> bool:
    """Whether the server recovers within the deadline; returns when it has."""
    deadline = time.monotonic() + RECOVERY_DEADLINE_S
    while not (await asyncio.to_thread(recovered) and await _healthy(http)):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


async def _healthy(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def _probe(server: Server, over: asyncio.Event) -> tuple[float, float]:
    """Small requests one after the other, each on a connection of its own: `refused_s` and `slowest_s`."""
    began = time.monotonic()
    refused_s = slowest_s = 0.0
    waiting_since = began
    while not over.is_set():
        try:
            async with client_of(server) as http:
                succeeded = (await http.post("/v1/chat/completions", json=PROBE)).status_code == 200
        except httpx.TransportError:
            succeeded = False
        now = time.monotonic()
        if succeeded:
            slowest_s = max(slowest_s, now - waiting_since)
        else:
            refused_s = now - began
        await asyncio.sleep(0.05)
        if succeeded:
            waiting_since = time.monotonic()
    return refused_s, slowest_s

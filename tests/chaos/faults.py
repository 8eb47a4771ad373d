"""What is done to a running server, and how to see that it has recovered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil

from tests.chaos.client import client_of
from tests.chaos.cluster import ClusterServer
from tests.chaos.load import slow_to_compile
from tests.integration.server import Server
from tests.integration.traffic import structured
from tests.redis_server import RedisServer

DEPLOYMENTS = ("Router", "GrammarCompiler", "ModelReplica")
COMPILE_PROCESS = "grammar_workers.service.fork_server"
CONTROLLER = "ray::ServeController"

Recovered = Callable[[], bool]
"""Blocking; looks at the processes of the machine."""

Strike = Callable[["Target"], Awaitable[Recovered]]
"""Does the damage, and returns what tells whether the server is whole again."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A server under load and the Redis that it uses."""

    server: Server
    redis: RedisServer


@dataclasses.dataclass(frozen=True)
class Fault:
    """`breaks`: it takes connections of clients with it."""

    strike: Strike
    breaks: bool = False


def kill(words: str) -> Strike:
    """SIGKILL to one process; recovered when there are as many as before."""

    async def strike(target: Target) -> Recovered:
        before = await asyncio.to_thread(target.server.processes, words)
        before[0].kill()
        return lambda: len(_others(target.server, words, before[:1])) == len(before)

    return strike


def kill_replica(deployment: str) -> Strike:
    return kill(f"ServeReplica:turnstile:{deployment}")


async def kill_compile_processes(target: Target) -> Recovered:
    """SIGKILL to every compile process, while at least one compiles; recovered when each compiler has one."""
    before = await asyncio.to_thread(_compiling, target.server)
    spent = {one: one.cpu_times().user for one in before}
    async with client_of(target.server) as http:
        body = structured(slow_to_compile(f"killed{time.monotonic_ns()}", 11), max_tokens=2)
        answer = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        # Those of a compiler that has just been started are forked in the meantime.
        while not any(_has_spent(one, spent.get(one, 0) + 0.1) for one in _compiling(target.server)):
            assert not answer.done(), answer.result().text
            await asyncio.sleep(0.02)
        # One whose job made room for others has been replaced.
        many = len(await asyncio.to_thread(_fork_servers, target.server))
        for process in await asyncio.to_thread(target.server.processes, COMPILE_PROCESS):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert (response := await answer).status_code == 200, response.text
    return lambda: len(_fork_servers(target.server)) == many


def _fork_servers(server: Server) -> set[int]:
    """The ids of fork servers that have a process that compiles."""
    return set(_compiling(server).values())


def _compiling(server: Server) -> dict[psutil.Process, int]:
    """The processes that compile, which are children of fork servers, each with the id of its fork server."""
    found = server.processes(COMPILE_PROCESS)
    servers = {one.pid for one in found}
    children = {}
    for one in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            if (parent := one.ppid()) in servers:
                children[one] = parent
    return children


def _has_spent(process: psutil.Process, seconds: float) -> bool:
    """Whether the process, if it is still there, has had so much CPU time."""
    try:
        return process.cpu_times().user >= seconds
    except psutil.NoSuchProcess:
        return False


async def restart_redis(target: Target) -> Recovered:
    """SIGKILL to Redis, and an empty one in its place a little later; recovered when that one is used."""
    target.redis.stop()
    await asyncio.sleep(3)
    await asyncio.to_thread(target.redis.start)
    return lambda: bool(target.redis.client().dbsize())


def lose_node(name: str) -> Strike:
    """A machine that is gone, and another in its place 5 s later; recovered when that carries what the old one had."""

    async def strike(target: Target) -> Recovered:
        server = target.server
        assert isinstance(server, ClusterServer)
        before = {deployment: len(server.replicas(deployment)) for deployment in DEPLOYMENTS}
        await asyncio.to_thread(server.lose_node, name)
        assert sum(len(server.replicas(deployment)) for deployment in DEPLOYMENTS) < sum(before.values())
        await asyncio.sleep(5)
        server.reconcile()
        return lambda: all(len(server.replicas(deployment)) == many for deployment, many in before.items())

    return strike


def redeploy(changes: dict[str, dict[str, Any]]) -> Strike:
    """A changed config, by sections; recovered when every replica is another one."""

    async def strike(target: Target) -> Recovered:
        assert isinstance(target.server, ClusterServer)
        before = {deployment: target.server.replicas(deployment) for deployment in DEPLOYMENTS}
        target.server.redeploy(changes)

        def recovered() -> bool:
            now = {deployment: target.server.replicas(deployment) for deployment in DEPLOYMENTS}
            return all(
                len(now[deployment]) == len(old) and not set(now[deployment]) & set(old)
                for deployment, old in before.items()
            )

        return recovered

    return strike


FAULTS = {
    "model-replica": Fault(kill_replica("ModelReplica")),
    "compiler": Fault(kill_replica("GrammarCompiler")),
    "compile-processes": Fault(kill_compile_processes),
    "controller": Fault(kill(CONTROLLER)),
    "redis": Fault(restart_redis),
    "router": Fault(kill_replica("Router"), breaks=True),
}
"""What can befall a server on one node, too."""


def _others(server: Server, words: str, than: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in server.processes(words) if process not in than]

"""What clients get while a process of the server is stopped, or its Redis hangs or lies, and while all is well again.

    python -m tests.integration.hangs [--only WORDS]

Prints a table; exit status 1 when a request has no answer within its deadline and a second, the server's memory grows,
or it does not recover. A stopped router answers nothing itself: what its clients get is shown, and not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import psutil

from tests.integration.server import Server
from tests.integration.traffic import PROMPT
from tests.lying_redis import HONEST, WAYS, LyingRedis

TIMEOUT_S = 6.0
"""`router.timeout_s`: no request names its own."""
MARGIN_S = 1.0
BREAKER_S = 6.0
"""After so long a circuit breaker tries again."""
AT_ONCE = 3
MOST_GROWN = 200 << 20
RECOVERY_S = 120.0
GIVE_UP_S = 30.0
PARTS = ("Router", "GrammarCompiler", "ModelReplica")
CHAT: dict[str, Any] = {"messages": PROMPT, "max_tokens": 8}
KNOWN = {**CHAT, "response_format": {"type": "regex", "pattern": "[a-z]{1,4}"}}

Answers = list[tuple[str, float]]
"""Status, or what broke, and the seconds."""


def _new() -> dict[str, Any]:
    return {**CHAT, "response_format": {"type": "regex", "pattern": f"[a-z]{{1,4}}|{secrets.token_hex(4)}"}}


KINDS: dict[str, Callable[[], tuple[str, str, dict[str, Any] | None]]] = {
    "known": lambda: ("POST", "/v1/chat/completions", KNOWN),
    "new": lambda: ("POST", "/v1/chat/completions", _new()),
    "free": lambda: ("POST", "/v1/chat/completions", CHAT),
    "models": lambda: ("GET", "/v1/models", None),
    "tokens": lambda: ("POST", "/tokenize", {"prompt": "some words"}),
}


async def _ask(http: httpx.AsyncClient, kind: str) -> tuple[str, float]:
    method, path, body = KINDS[kind]()
    began = time.monotonic()
    try:
        answer = await http.request(method, path, json=body)
        said = str(answer.status_code)
    except httpx.TimeoutException:
        said = "nothing"
    except httpx.TransportError as error:
        said = type(error).__name__
    return said, time.monotonic() - began


async def _ask_all(http: httpx.AsyncClient) -> dict[str, Answers]:
    asked = {kind: [asyncio.create_task(_ask(http, kind)) for _ in range(AT_ONCE)] for kind in KINDS}
    return {kind: [await one for one in answers] for kind, answers in asked.items()}


def _memory(server: Server) -> int:
    return sum(process.memory_info().rss for name in PARTS for process in server.replicas(name))


@contextlib.contextmanager
def _stopped(processes: list[psutil.Process]) -> Iterator[None]:
    assert processes
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def _lying(redis: LyingRedis, way: str) -> Iterator[None]:
    redis.way = way
    try:
        yield
    finally:
        redis.way = HONEST


def _processes(server: Server) -> dict[str, Callable[[], list[psutil.Process]]]:
    """What may be stopped, by name, as it is when its turn comes."""
    compilers = [process for one in server.replicas("GrammarCompiler") for process in one.children(recursive=True)]
    found: dict[str, Callable[[], list[psutil.Process]]] = {
        name: (lambda name=name: server.replicas(name)) for name in ("GrammarCompiler", "ModelReplica")
    }
    found["compile processes"] = lambda: [process for process in compilers if process.is_running()]
    found["ServeController"] = lambda: server.processes("ServeController")
    found["gcs_server"] = lambda: server.processes("gcs_server")
    found["raylet"] = lambda: server.processes("raylet/raylet")
    found["Router"] = lambda: server.replicas("Router")
    return found


async def _recovered(http: httpx.AsyncClient) -> float:
    began = time.monotonic()
    while time.monotonic() < began + RECOVERY_S:
        if all(said == "200" for answers in (await _ask_all(http)).values() for said, _ in answers):
            return time.monotonic() - began
    return float("inf")


def _wrong(name: str, answers: dict[str, Answers], grown: int, recovery: float) -> list[str]:
    found = [f"{grown >> 20} MiB more"] * (grown > MOST_GROWN) + ["not well again"] * (recovery > RECOVERY_S)
    if name == "Router":
        return found
    for kind, ones in answers.items():
        late = [one for one in ones if one[0] not in ("200", "408") or one[1] > TIMEOUT_S + MARGIN_S]
        found += [f"{kind}: {said} after {seconds:.1f} s" for said, seconds in late[:1]]
    # Nobody needs a Redis, and a grammar that was ready needs no compiler.
    well = {"GrammarCompiler": {"known", "free", "models", "tokens"}, "ModelReplica": {"models"}}
    for kind in well.get(name, set(KINDS) if name in WAYS else set()):
        found += [f"{kind}: {said}" for said, _ in answers[kind] if said != "200"][:1]
    return found


def _cell(answers: Answers) -> str:
    said = "/".join(sorted({said for said, _ in answers}))
    return f"{said} {max(seconds for _, seconds in answers):.1f} s"


@contextlib.asynccontextmanager
async def _running() -> AsyncIterator[tuple[Server, LyingRedis, httpx.AsyncClient]]:
    with LyingRedis(HONEST) as redis, tempfile.TemporaryDirectory() as files:
        arguments = {"store": f"{redis.url}?file={files}", "router": {"timeout_s": TIMEOUT_S, "num_cpus": 0.1}}
        with Server(arguments) as server:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(
                base_url=server.url, timeout=GIVE_UP_S, limits=limits, trust_env=False
            ) as http:
                yield server, redis, http


async def run(only: str) -> int:
    troubles = 0
    async with _running() as (server, redis, http):
        await _recovered(http)
        print("| " + " | ".join(["what", *KINDS, "memory", "well again"]) + " |", flush=True)
        print("|---" * (len(KINDS) + 3) + "|", flush=True)
        stops = _processes(server)
        for name in [name for name in (*stops, *WAYS) if only in name]:
            before = _memory(server)
            case = _lying(redis, name) if name in WAYS else _stopped(stops[name]())
            with case:
                answers = await _ask_all(http)
                for kind, ones in (await _ask_all(http)).items():
                    answers[kind] += ones
            grown = _memory(server) - before
            if name in WAYS:
                await asyncio.sleep(BREAKER_S)
            recovery = await _recovered(http)
            wrong = _wrong(name, answers, grown, recovery)
            cells = [name, *(_cell(answers[kind]) for kind in KINDS), f"{grown / (1 << 20):+.0f} MiB"]
            print("| " + " | ".join([*cells, f"{recovery:.1f} s"]) + " |" + " WRONG: " * bool(wrong) + "; ".join(wrong))
            sys.stdout.flush()
            troubles += len(wrong)
    return troubles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases with these words in their name")
    return 1 if asyncio.run(run(parser.parse_args().only)) else 0


if __name__ == "__main__":
    sys.exit(main())

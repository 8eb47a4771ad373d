"""`python -m tests.chaos.upgrade`: two versions of the compiler and of the artifact format, side by side on one Redis.

As RayService upgrades: a Ray cluster of the new version starts beside the old one, requests move over, the old one
drains and stops. Then the way back. The new version is a copy of the packages with both numbers raised; each server has
files of its own in front of Redis, as on other nodes. A table says for each phase what was sent and lost, and how many
schemas each version met and compiled by its end: nothing may be lost, no schema compiled twice by a version, and none
at all on the way back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from deployments.shipped import REPOSITORY
from tests.chaos.client import client_of
from tests.chaos.load import ConnectionBrokenError, Exchange, LostError, exchange, unseen
from tests.integration.server import Server
from tests.integration.traffic import structured
from tests.redis_server import RedisServer

CLIENTS = 4
SCHEMAS = 24
NUMBERS = (("grammar_workers/keys.py", "COMPILER_VERSION"), ("grammar_workers/artifacts/artifact.py", "FORMAT_VERSION"))
"""What an upgrade raises."""
COMPILATIONS = "turnstile_grammar_compilations"
COLLECTED_S = 12.0
"""Longer than Ray takes to collect a metric anew."""
SHOWN_S = 60.0
"""Longer than it takes until a new replica's first metrics are collected."""
OMITTED = shutil.ignore_patterns(".*", "build", "dist", "docs", "benchmarks")
COLUMNS = ("phase", "sent", "lost", "schemas met by old", "by new", "compiled by old", "by new")


@dataclasses.dataclass
class Version:
    """A running server of one version, and the schemas that it was asked for."""

    server: Server
    met: set[int] = dataclasses.field(default_factory=set)

    def compilations(self) -> int:
        """How often it has compiled since it began, when Ray has collected that: some seconds later."""
        self.server.shows_metric(COMPILATIONS, within_s=SHOWN_S, component="grammar_compiler")
        seen = -1
        while (now := round(sum(self.server.metric(COMPILATIONS, component="grammar_compiler")))) != seen:
            seen = now
            time.sleep(COLLECTED_S)
        return now


@dataclasses.dataclass(frozen=True)
class Phase:
    """What was sent, why some of it was lost, and what either version has met and compiled by its end."""

    name: str
    sent: int
    lost: list[str]
    met: tuple[int, int]
    compiled: tuple[int, int]


def upgraded(folder: Path) -> Path:
    """A copy of the packages in `folder` whose compiler and artifact format are each one version later."""
    code = folder / "upgraded"
    shutil.copytree(REPOSITORY, code, ignore=OMITTED, symlinks=True)
    for name, number in NUMBERS:
        path = code / name
        before, sign, after = path.read_text().partition(f"\n{number} = ")
        assert sign, f"{number} is not in {name}"
        value, end, rest = after.partition("\n")
        path.write_text(f"{before}{sign}{int(value) + 1}{end}{rest}")
    return code


async def load(name: str, requests: int, *versions: Version) -> list[str]:
    """Sends `requests`, each to one of the versions by chance, half of them as streams. Why some were lost."""
    draw = random.Random(name)
    waiting = iter(range(requests))
    lost: list[str] = []

    async def work() -> None:
        for number in waiting:
            version, schema = draw.choice(versions), draw.randrange(SCHEMAS)
            version.met.add(schema)
            body = structured(unseen(f"u{schema}"), temperature=1, stream=bool(number % 2))
            lost.extend(await lost_of(version.server, Exchange(f"{name}-{number}", body)))

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return lost


async def lost_of(server: Server, one: Exchange) -> list[str]:
    """Why a request got no whole and valid answer; nothing if it did."""
    try:
        async with client_of(server) as http:
            await exchange(http, one)
        one.check()
    except (LostError, ConnectionBrokenError, AssertionError, jsonschema.ValidationError) as error:
        return [f"{one.request_id}: {type(error).__name__} {error}"]
    return []


async def drained(server: Server) -> list[str]:
    """Stops a server under open streams, which nothing new follows. Why some of them were lost."""
    body = {"prompt": "To be, or not", "max_tokens": 200, "ignore_eos": True}
    async with client_of(server) as http:
        streams = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(CLIENTS)]
        await asyncio.sleep(1)
        code, left = await asyncio.to_thread(server.interrupt)
        answers = await asyncio.gather(*streams, return_exceptions=True)
    lost = [repr(answer) for answer in answers if not isinstance(answer, httpx.Response) or answer.status_code != 200]
    return lost if code == 0 and not left else [*lost, f"the server ended with {code} and left {left}"]


def phases(requests: int) -> Iterator[Phase]:
    """The upgrade and the way back, phase by phase."""

    def phase(name: str, sent: int, lost: list[str], old: Version | None, new: Version | None) -> Phase:
        pair = (old, new)
        met = [len(version.met) if version else 0 for version in pair]
        compiled = [version.compilations() if version else 0 for version in pair]
        return Phase(name, sent, lost, (met[0], met[1]), (compiled[0], compiled[1]))

    with RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        code = upgraded(Path(folder))

        def store(node: str) -> str:
            return f"{redis.url}?file={folder}/{node}"

        with started(store("old")) as old:
            yield phase("old alone", requests, asyncio.run(load("alone", requests, old)), old, None)
            with started(store("new"), code) as new:
                yield phase("side by side", requests, asyncio.run(load("both", requests, old, new)), old, new)
                yield phase("old drains", CLIENTS, asyncio.run(drained(old.server)), None, new)
                yield phase("new alone", requests, asyncio.run(load("new", requests, new)), None, new)
        with started(store("again")) as again:
            yield phase("back", requests, asyncio.run(load("back", requests, again)), again, None)


def faults(phase: Phase) -> list[str]:
    """What should not have been: a loss, or another number of compilations than one for each schema and version."""
    wanted = (0, phase.met[1]) if phase.name == "back" else phase.met
    found = list(phase.lost)
    for version, compiled, once in zip(("old", "new"), phase.compiled, wanted, strict=True):
        if compiled != once:
            found.append(f"{phase.name}: the {version} version compiled {compiled} times instead of {once}")
    return found


@contextlib.contextmanager
def started(store: str, code: Path = REPOSITORY) -> Iterator[Version]:
    """A server of the packages in `code`, one of each deployment."""
    engine = {"threads": 1, "max_model_len": 1024, "grammar_timeout_s": 600}
    deployments: dict[str, Any] = {
        "store": store,
        "router": {"num_cpus": 0.1, "graceful_shutdown_timeout_s": 60},
        "compiler": {"num_cpus": 0.1, "compile_timeout_s": 120, "queue_timeout_s": 600},
        "replica": {"num_cpus": 0.1, "graceful_shutdown_timeout_s": 60, "engine": engine},
    }
    with Server(deployments, code=code) as server:
        yield Version(server)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.upgrade", description=__doc__)
    parser.add_argument("--requests", type=int, default=120, help="in each phase (default 120)")
    options = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    found = []
    for phase in phases(options.requests):
        cells = (phase.name, phase.sent, len(phase.lost), *phase.met, *phase.compiled)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        found += faults(phase)
    print(*found, sep="\n", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

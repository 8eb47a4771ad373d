"""One tenant floods the server with distinct schemas: does memory stay bounded, and does another tenant notice?

    python -m benchmarks.flood [--schemas 20000] [--rate 60]

A real server with one of each tier and a Redis of its own. The tenant `flood` asks for an answer under a new schema
`--rate` times a second; the tenant `other` five times a second, first alone, then beside the flood, half of its schemas
known and half new. The flood comes from a process of its own, whose thousand waiting requests would make a common event
loop late. Every tier is given little room (`LIMITS`), so that its bounds are met. Memory is that of each
process as the kernel counts it (RSS; of compile processes PSS, for most of theirs is shared), Redis' own figure, and
the files on disk.

Exit status 1 when the other tenant's p99 beside the flood is more than twice that of the quiet time before, or when one
of its requests fails.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.load import START_DEADLINE_S, Measurements, Requests, connect, quantile_ms
from grammar_workers.gc_control import skip_what_exists
from tests.integration.server import Server
from tests.redis_server import RedisServer

TARGET = 2.0
OTHER_RATE = 5.0
LIMITS = {"files": "16 MiB", "Redis": "16 MiB", "automata of a replica": "64 MiB"}
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def small_schema(owner: str, number: int) -> dict[str, Any]:
    """A schema as clients send them, different for each number."""
    return {
        "type": "object",
        "properties": {
            "id": {"const": f"{owner} {number}"},
            "name": {"type": "string", "maxLength": 30},
            "count": {"type": "integer", "minimum": 0, "maximum": 1000 + number},
            "kind": {"enum": ["first", "second", "third"]},
        },
        "required": ["id", "name", "count", "kind"],
        "additionalProperties": False,
    }


def memory(server: Server, redis: RedisServer, files: Path) -> dict[str, float]:
    """MiB of each part, and how many files there are."""
    found: dict[str, float] = {}
    for name in ("Router", "GrammarCompiler", "ModelReplica"):
        processes = server.replicas(name)
        found[name] = sum(process.memory_info().rss for process in processes) / 2**20
        if name == "GrammarCompiler":
            children = [child for process in processes for child in process.children(recursive=True)]
            found["compile processes"] = sum(child.memory_full_info().pss for child in children) / 2**20
    used: Any = redis.client().info("memory")
    found["Redis"] = used["used_memory"] / 2**20
    sizes = [file.stat().st_blocks * 512 for file in files.glob("*/*.tfsm") if file.exists()]
    return {**found, "files on disk": sum(sizes) / 2**20, "number of files": len(sizes)}


def others_schemas() -> Callable[[], Any]:
    """A known schema and a new one, in turn."""
    numbers = itertools.count()

    def choose() -> Any:
        number = next(numbers)
        return small_schema("other", 0 if number % 2 else number)

    return choose


def pour(url: str, rate: float, schemas: int) -> Measurements:
    """The flood."""

    async def send() -> Measurements:
        flood, numbers = Measurements(), itertools.count()
        async with connect(url) as http:
            flooding = Requests(http, "flood")
            await flooding.at_rate(rate, lambda: small_schema("flood", next(numbers)), flood, count=schemas)
        return flood

    return asyncio.run(send())


async def measure(
    server: Server, redis: RedisServer, files: Path, options: argparse.Namespace
) -> tuple[Measurements, Measurements, Measurements, list[dict[str, float]]]:
    """The other tenant in quiet and beside the flood, the flood, and the memory at the quarters of it."""
    quiet, beside = Measurements(), Measurements()
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        await loop.run_in_executor(process, os.getpid)  # it has started
        skip_what_exists()
        async with connect(server.url) as http:
            other, choose = Requests(http, "other"), others_schemas()
            await other.at_rate(OTHER_RATE, choose, Measurements(), count=10)
            await other.at_rate(OTHER_RATE, choose, quiet, count=round(OTHER_RATE * options.quiet_seconds))
            noticing = asyncio.create_task(other.at_rate(OTHER_RATE, choose, beside))
            pouring = loop.run_in_executor(process, pour, server.url, options.rate, options.schemas)
            began = loop.time()
            seen: list[dict[str, float]] = []
            with tqdm(total=options.schemas, desc="schemas", disable=None) as progress:
                while not pouring.done():
                    sent = min(options.schemas, int(options.rate * (loop.time() - began)))
                    progress.update(sent - progress.n)
                    if sent >= QUARTERS[len(seen)] * options.schemas and len(seen) < len(QUARTERS) - 1:
                        seen.append(await asyncio.to_thread(memory, server, redis, files))
                    await asyncio.sleep(0.5)
            flood = await pouring
            noticing.cancel()
            await asyncio.gather(noticing, return_exceptions=True)
            seen.append(await asyncio.to_thread(memory, server, redis, files))
    return quiet, beside, flood, seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=20_000, help="distinct schemas of the flood (default 20000)")
    parser.add_argument("--rate", type=float, default=60, help="of these in a second (default 60)")
    parser.add_argument(
        "--quiet-seconds", type=float, default=120, help="how long the other tenant is alone (default 120)"
    )
    options = parser.parse_args()
    with (
        RedisServer("--maxmemory", "16mb", "--maxmemory-policy", "allkeys-lru") as redis,
        tempfile.TemporaryDirectory() as folder,
    ):
        files = Path(folder) / "grammars"
        arguments = {
            "store": f"{redis.url}?file={files}&file_mb=16",
            "compiler": {"num_cpus": 0.1, "processes": 1},
            "replica": {"num_cpus": 0.1, "engine": {"threads": 1, "automaton_cache_mb": 64, "max_length": 1024}},
        }
        with Server(arguments, deadline_s=START_DEADLINE_S) as server:
            quiet, beside, flood, seen = asyncio.run(measure(server, redis, files, options))
    print("| MiB | " + " | ".join(f"{quarter:.0%}" for quarter in QUARTERS) + " |\n|---" + "|---" * len(QUARTERS) + "|")
    for name in seen[0]:
        print(f"| {name} | " + " | ".join(f"{found[name]:.0f}" for found in seen) + " |")
    print("\n| tenant | sent | answered | others, by status | first token p50 ms | p99 ms |\n|---|---|---|---|---|---|")
    for name, found in (("other, alone", quiet), ("other, beside the flood", beside), ("flood", flood)):
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(found.statuses.items())) or "0"
        times = " | ".join(f"{quantile_ms(found.first_tokens, q):.0f}" for q in (0.5, 0.99))
        print(f"| {name} | {found.sent} | {len(found.first_tokens)} | {statuses} | {times} |")
    ratio = quantile_ms(beside.first_tokens, 0.99) / quantile_ms(quiet.first_tokens, 0.99)
    print(f"\nThe other tenant's p99 beside the flood over that alone: {ratio:.2f}, at most {TARGET}")
    return int(ratio > TARGET or bool(beside.statuses))


if __name__ == "__main__":
    sys.exit(main())

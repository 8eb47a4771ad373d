"""Measure memory and another tenant's latency while one tenant floods the server with distinct schemas.

    python -m benchmarks.flood [--schemas 20000] [--rate 60]

A real server runs with one replica of each deployment and its own Redis. The tenant `flood` sends `--rate` requests per
second, each with a new schema. The tenant `other` sends five requests per second, first alone, then during the flood.
Half of its schemas are cached. The flood runs in a separate process, because its thousand open requests would delay a
shared event loop. All caches are small (16 MiB of files and of Redis, 64 MiB of automata), so that they become full.
Memory is the RSS of each process (PSS for compile workers, which share most memory), the figure that Redis reports, and
the size of the files on disk.

The exit status is 1 if the other tenant's p99 (time to the first text) during the flood is more than twice the p99
before the flood, or if one of its requests fails.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.frame import Table, new_parser
from benchmarks.load import Measurements, Requests, connect, one_of_each, quantile_ms
from grammar_workers.gc_control import skip_what_exists
from tests.integration.server import Server
from tests.redis_server import RedisServer

TARGET = 2.0
OTHER_RATE = 5.0
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def small_schema(owner: str, number: int) -> dict[str, Any]:
    """Return a typical small JSON Schema, which differs for each owner and number.

    Args:
        owner: Text in the schema, such as the tenant.
        number: Number in the schema, 0 or more.
    """
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
    """Measure the memory of the server.

    Args:
        server: The running server.
        redis: Its Redis.
        files: Folder of stored grammars.

    Returns:
        MiB by part of the server, and "number of files" (stored grammars).
    """
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


def others_schemas() -> Iterator[Any]:
    """Yield schemas without end: an uncached schema and a cached schema, alternately."""
    for number in itertools.count():
        yield small_schema("other", 0 if number % 2 else number)


def pour(url: str, rate: float, schemas: int) -> Measurements:
    """Send the flood of requests, each with a new schema. Blocks until all responses have arrived.

    Args:
        url: Base URL of the server.
        rate: Requests per second.
        schemas: Number of requests.

    Returns:
        The measurements of the requests.
    """

    async def send() -> Measurements:
        flood = Measurements()
        distinct = (small_schema("flood", number) for number in itertools.count())
        async with connect(url) as http:
            await Requests(http, "flood").at_rate(rate, distinct, flood, count=schemas)
        return flood

    return asyncio.run(send())


async def measure(
    server: Server, redis: RedisServer, files: Path, options: argparse.Namespace
) -> tuple[Measurements, Measurements, Measurements, list[dict[str, float]]]:
    """Run the experiment: the other tenant alone, then the flood.

    Args:
        server: The running server.
        redis: Its Redis.
        files: Folder of stored grammars.
        options: Command line.

    Returns:
        Measurements of the other tenant before the flood, its measurements during the flood, the measurements of the
        flood, and the result of `memory` at 0, 25, 50, 75 and 100 % of the flood.
    """
    quiet, beside = Measurements(), Measurements()
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        await loop.run_in_executor(process, os.getpid)  # it has started
        skip_what_exists()
        async with connect(server.url) as http:
            other, schemas = Requests(http, "other"), others_schemas()
            await other.at_rate(OTHER_RATE, schemas, Measurements(), count=10)
            await other.at_rate(OTHER_RATE, schemas, quiet, count=round(OTHER_RATE * options.quiet_seconds))
            noticing = asyncio.create_task(other.at_rate(OTHER_RATE, schemas, beside))
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
    """Run the flood and print the tables. Return 1 if the p99 ratio exceeds `TARGET` or a request has failed."""
    parser = new_parser(__doc__)
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
        store = f"{redis.url}?file={files}&file_mb=16"
        with one_of_each(store, automaton_cache_mb=64, max_model_len=1024) as server:
            quiet, beside, flood, seen = asyncio.run(measure(server, redis, files, options))
    table = Table("MiB", *(f"{quarter:.0%}" for quarter in QUARTERS))
    for name in seen[0]:
        table.row(name, *(round(found[name]) for found in seen))
    print()
    table = Table("tenant", "sent", "answered", "others, by status", "first token p50 ms", "p99 ms")
    for name, found in (("other, alone", quiet), ("other, beside the flood", beside), ("flood", flood)):
        times = (f"{quantile_ms(found.first_tokens, q):.0f}" for q in (0.5, 0.99))
        table.row(name, found.sent, len(found.first_tokens), found.refused, *times)
    ratio = quantile_ms(beside.first_tokens, 0.99) / quantile_ms(quiet.first_tokens, 0.99)
    print(f"\nThe other tenant's p99 beside the flood over that alone: {ratio:.2f}, at most {TARGET}")
    return int(ratio > TARGET or bool(beside.statuses))


if __name__ == "__main__":
    sys.exit(main())

"""How long do new schemas take beside known ones, and what do these notice?

    python -m benchmarks.new_beside_known [--clients 64] [--seconds 30] [--rates 10:4,20:8]

A real server with one of each tier and one compile process, one tenant. First `--clients` clients who each send their
next request when the last one is answered, a third of them under a new schema each time, the others under known ones.
Then requests at fixed rates, so many under known and so many under new schemas a second, whatever the server does: the
same load for every server, where clients who wait send less.

Exit status 1 when the first token of a new schema takes more than 3 times as long as that of a known one (p50, with
clients), or when a request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from benchmarks.flood import small_schema
from benchmarks.load import START_DEADLINE_S, Measurements, Requests, cancelled, connect, quantile_ms
from tests.integration.server import Server

TARGET = 3.0
KNOWN_SCHEMAS = 12
MAX_TOKENS = 48
SETTLE_S = 5.0
"""The clients begin together; this long nothing is recorded."""

KNOWN, NEW = "known", "new"
Found = dict[str, Measurements]
"""By the kind of schema."""


def server_arguments(folder: str) -> dict[str, Any]:
    return {
        "store": f"file://{folder}/grammars",
        "compiler": {"num_cpus": 0.1, "processes": 1},
        "replica": {"num_cpus": 0.1, "engine": {"threads": 1, "max_length": 1024}},
    }


class Schemas:
    """Schemas of both kinds."""

    def __init__(self) -> None:
        numbers = itertools.count()
        self.known = [small_schema("known", number) for number in range(KNOWN_SCHEMAS)]
        endless = itertools.cycle(self.known)
        self.next: dict[str, Callable[[], Any]] = {
            KNOWN: lambda: next(endless),
            NEW: lambda: small_schema("new", next(numbers)),
        }


async def with_clients(requests: Requests, schemas: Schemas, clients: int, seconds: float) -> Found:
    """Of the answers that ended within the time."""
    found = {KNOWN: Measurements(), NEW: Measurements()}
    recording_from = time.monotonic() + SETTLE_S

    async def client(kind: str) -> None:
        while True:
            one = Measurements()
            await requests.answer(schemas.next[kind](), one, MAX_TOKENS)
            if time.monotonic() > recording_from:
                found[kind].add(one)

    tasks = [asyncio.create_task(client(KNOWN if number % 3 else NEW)) for number in range(clients)]
    await asyncio.sleep(SETTLE_S + seconds)
    await cancelled(tasks)
    return found


async def at_rates(requests: Requests, schemas: Schemas, rates: dict[str, float], seconds: float) -> Found:
    found = {kind: Measurements() for kind in rates}
    await asyncio.gather(
        *(
            requests.at_rate(rate, schemas.next[kind], found[kind], count=round(rate * seconds), max_tokens=MAX_TOKENS)
            for kind, rate in rates.items()
        )
    )
    return found


async def measure(url: str, options: argparse.Namespace) -> dict[str, Found]:
    schemas = Schemas()
    results = {}
    async with connect(url) as http:
        requests = Requests(http, "one")
        await asyncio.gather(*(requests.answer(schema, Measurements()) for schema in schemas.known))
        phases = [pair.split(":") for pair in options.rates.split(",")]
        with tqdm(total=1 + len(phases), desc="phases", disable=None) as progress:
            results[f"{options.clients} clients"] = await with_clients(
                requests, schemas, options.clients, options.seconds
            )
            progress.update()
            for known, new in phases:
                rates = {KNOWN: float(known), NEW: float(new)}
                results[f"{known} + {new} a second"] = await at_rates(requests, schemas, rates, options.seconds)
                progress.update()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64, help="default 64")
    parser.add_argument("--seconds", type=float, default=30, help="length of each part (default 30)")
    parser.add_argument("--rates", default="10:4,20:8", help="known:new requests a second (default 10:4,20:8)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(server_arguments(folder), deadline_s=START_DEADLINE_S) as server,
    ):
        results = asyncio.run(measure(server.url, options))
    print("| load | schemas | answers | failed | first token p50 ms | p99 ms | whole answer p50 ms | p99 ms |")
    print("|---|---|---|---|---|---|---|---|")
    for load, found in results.items():
        for kind, measurements in found.items():
            times = " | ".join(
                f"{quantile_ms(seconds, q):.0f}"
                for seconds in (measurements.first_tokens, measurements.answers)
                for q in (0.5, 0.99)
            )
            failed = sum(measurements.statuses.values())
            print(f"| {load} | {kind} | {len(measurements.answers)} | {failed} | {times} |")
    clients, *_ = results.values()
    ratio = quantile_ms(clients[NEW].first_tokens, 0.5) / quantile_ms(clients[KNOWN].first_tokens, 0.5)
    failed = sum(sum(one.statuses.values()) for found in results.values() for one in found.values())
    print(
        f"\nFirst token of new schemas over that of known ones, p50: {ratio:.2f}, at most {TARGET:g}; {failed} failed"
    )
    return int(ratio > TARGET or failed > 0)


if __name__ == "__main__":
    sys.exit(main())

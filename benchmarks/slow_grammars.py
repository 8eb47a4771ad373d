"""Does an ordinary new schema wait behind another tenant's slow ones?

    python -m benchmarks.slow_grammars [--rate 2]

A real server with one of each tier and one compile process. The tenant `slow` sends one specification, or several at
once, that take long to compile; the tenant `other` asks for an answer under an ordinary schema, a new one each time,
`--rate` times a second, from the first slow one on until a while after the last of them has been answered or refused.
`made slow` are compilations that keep their process busy for so long on purpose (`benchmarks.slow_compiler`); at the
limit of 30 s their process is killed.

Exit status 1 when a first token of the other tenant takes more than 2 s, or when one of its requests fails.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from typing import Any

from tqdm import tqdm

from benchmarks.flood import small_schema
from benchmarks.load import START_DEADLINE_S, Measurements, Requests, cancelled, connect, quantile_ms
from benchmarks.slow_compilation import slow_choice
from tests.integration.server import Server

TARGET_S = 2.0
AFTERWARDS_S = 10.0
"""So long after the last slow specification: a process that was killed has to be replaced."""

ALTERNATIVES = 2000


def server_arguments(folder: str) -> dict[str, Any]:
    return {
        "store": f"file://{folder}/grammars",
        "compiler": {"num_cpus": 0.1, "processes": 1},
        "replica": {"num_cpus": 0.1, "engine": {"threads": 1, "max_length": 1024, "grammar_timeout_s": 600}},
    }


def many_objects() -> dict[str, Any]:
    kinds = [
        {
            "type": "object",
            "properties": {f"name_{number}": {"type": "string"}, "count": {"type": "integer"}},
            "required": [f"name_{number}"],
            "additionalProperties": False,
        }
        for number in range(ALTERNATIVES)
    ]
    return {"type": "json_schema", "schema": {"anyOf": kinds}}


def made_slow(seconds: float, number: int = 0) -> dict[str, Any]:
    return {"type": "choice", "choices": [slow_choice(seconds, number)]}


SLOW: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    f"anyOf of {ALTERNATIVES} objects": [many_objects()],
    "one made slow, 29 s": [made_slow(29)],
    "one made slow, 60 s": [made_slow(60)],
    "eight made slow, 10 s each": [made_slow(10, number) for number in range(8)],
}


async def compile_slowly(http: Any, specification: dict[str, Any]) -> str:
    """What became of a slow specification, and after how long."""
    started = time.monotonic()
    async with http.post(
        "/v1/grammars", json={"specification": specification}, headers={"x-turnstile-tenant": "slow"}
    ) as response:
        await response.read()
        return f"{response.status} after {time.monotonic() - started:.0f} s"


async def measure(url: str, rate: float) -> dict[str, tuple[Measurements, list[str]]]:
    """For each row of `SLOW` the other tenant's requests, and what became of the slow ones."""
    found = {}
    numbers = itertools.count()
    async with connect(url) as http:
        other = Requests(http, "other")
        await other.at_rate(rate, lambda: small_schema("other", next(numbers)), Measurements(), count=10)
        for name, slow in tqdm(SLOW.items(), desc="rows", disable=None):
            measurements = Measurements()
            held_up = [asyncio.create_task(compile_slowly(http, specification)) for specification in slow]
            await asyncio.sleep(0.5)
            sending = asyncio.create_task(
                other.at_rate(rate, lambda: small_schema("other", next(numbers)), measurements)
            )
            outcomes = await asyncio.gather(*held_up)
            await asyncio.sleep(AFTERWARDS_S)
            # Who waits still is waited for: it would be missing among the times.
            while len(measurements.first_tokens) + sum(measurements.statuses.values()) < measurements.sent:
                await asyncio.sleep(0.01)
            await cancelled([sending])
            found[name] = measurements, outcomes
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=2, help="requests of the other tenant in a second (default 2)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(server_arguments(folder), module="benchmarks.slow_compiler", deadline_s=START_DEADLINE_S) as server,
    ):
        found = asyncio.run(measure(server.url, options.rate))
    print("| meanwhile | slow ones | new schemas | failed | first token p50 ms | p99 ms | slowest ms |")
    print("|---|---|---|---|---|---|---|")
    for name, (measurements, outcomes) in found.items():
        times = " | ".join(f"{quantile_ms(measurements.first_tokens, q):.0f}" for q in (0.5, 0.99, 1))
        failed = sum(measurements.statuses.values())
        print(f"| {name} | {', '.join(outcomes)} | {measurements.sent} | {failed} | {times} |")
    slowest = max(max(measurements.first_tokens) for measurements, _ in found.values())
    failed = sum(sum(measurements.statuses.values()) for measurements, _ in found.values())
    print(f"\nSlowest first token: {slowest:.1f} s, at most {TARGET_S:g} s; {failed} failed")
    return int(slowest > TARGET_S or failed > 0)


if __name__ == "__main__":
    sys.exit(main())

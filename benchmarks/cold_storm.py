"""Do streams notice that others' schemas are being compiled? Inter-token latency under a storm of cold schemas.

    python -m benchmarks.cold_storm [--rates 5,20,50] [--seconds 6] [--rounds 2]

Sixteen streams run against a real server over HTTP while other clients ask for short answers under heavy schemas, at
each rate twice: schemas that the replica knows, and a new one with every request. Then the same new schemas against a
server that compiles inside the model replica (`benchmarks.in_replica`). One model replica on one thread; one compile
process. `gap`: time between two events of a stream, also one that never came; a stall is a gap of more than 0.5 s.
`first token`: of the storm's requests; those that are given up when their phase ends have none.

Phases follow one another in each round, so what else the machine does meets all of them. Exit status 1 when the p99 of
the gaps under unknown schemas is more than 1.25 times that under known ones, at any rate.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

from benchmarks.heavy_schemas import FIELDS, heavy_schema
from benchmarks.load import START_DEADLINE_S, Measurements, Requests, Streams, connect, quantile_ms
from tests.integration.server import Server

TARGET = 1.25
KNOWN_SCHEMAS = 12
SETTLE_S = 2.0
"""The storm blows this long before anything is recorded."""

QUIET, KNOWN, UNSEEN = "quiet", "known", "unseen"
Arm = tuple[str, float]
"""What the storm asks for, and how often in a second."""


def server_arguments(folder: str) -> dict[str, Any]:
    return {
        "store": f"file://{folder}/grammars",
        "compiler": {"num_cpus": 0.1, "processes": 1},
        "replica": {"num_cpus": 0.1, "engine": {"threads": 1, "slots": 48, "max_length": 2048}},
    }


async def measure(
    url: str,
    arms: list[Arm],
    options: argparse.Namespace,
    numbers: Iterator[int],
    progress: tqdm[None],
    *,
    fields: int = FIELDS,
    stream_tokens: int = 1500,
    drain_s: float = 0.0,
) -> dict[Arm, Measurements]:
    """Every arm once in each round, in this order. `numbers`: those of schemas nobody has seen, `fields`: of each;
    `stream_tokens`: of a stream before it is begun anew; `drain_s`: how long answers may come after a recording.
    """
    results = {arm: Measurements() for arm in arms}
    async with connect(url) as http:
        requests = Requests(http, tenant="storm")
        count = KNOWN_SCHEMAS if any(KNOWN in arm for arm in arms) else 0
        known = [heavy_schema(next(numbers), fields) for _ in range(count)]
        await asyncio.gather(*(requests.answer(schema, Measurements()) for schema in known))
        endless = itertools.cycle(known)
        choose: dict[str, Callable[[], Any]] = {
            KNOWN: lambda: next(endless),
            UNSEEN: lambda: heavy_schema(next(numbers), fields),
        }
        streams = Streams(http, options.streams, stream_tokens)
        await streams.start()
        try:
            for arm in arms * options.rounds:
                await _phase(arm, streams, requests, choose, results[arm], options.seconds, drain_s)
                progress.update()
        finally:
            await streams.close()
    return results


async def _phase(
    arm: Arm,
    streams: Streams,
    requests: Requests,
    choose: dict[str, Callable[[], Any]],
    measurements: Measurements,
    seconds: float,
    drain_s: float,
) -> None:
    kind, rate = arm
    storm = None
    if kind != QUIET:
        count = int(rate * (SETTLE_S + seconds))
        storm = asyncio.create_task(requests.at_rate(rate, choose[kind], measurements, count=count))
    await asyncio.sleep(SETTLE_S)
    with streams.recording(measurements):
        await asyncio.sleep(seconds)
    if storm is not None:
        await asyncio.wait([storm], timeout=drain_s)
        storm.cancel()
        await asyncio.gather(storm, return_exceptions=True)


def table(tier: dict[Arm, Measurements], in_replica: dict[Arm, Measurements]) -> str:
    head = (
        ("where", "schemas", "per s", "gap p50 ms", "p99 ms", "p99 / quiet", "p99 / known", "stalls", "broken")
        + ("events/s", "stream's first p99 ms")
        + ("sent", "answered", "first token p50 ms", "p99 ms", "refused")
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for where, results in (("tier", tier), ("replica", in_replica)):
        quiet = quantile_ms(results[QUIET, 0].gaps, 0.99)
        for (kind, rate), found in results.items():
            p99 = quantile_ms(found.gaps, 0.99)
            known = f"{p99 / quantile_ms(tier[KNOWN, rate].gaps, 0.99):.2f}" if kind == UNSEEN else ""
            refused = ", ".join(f"{count} x {status}" for status, count in sorted(found.statuses.items()))
            cells = (
                *(where, kind, f"{rate:g}", f"{quantile_ms(found.gaps, 0.5):.1f}", f"{p99:.1f}", f"{p99 / quiet:.2f}"),
                *(known, found.stalls, found.broken_streams, f"{found.events_per_second:.0f}"),
                f"{quantile_ms(found.stream_starts, 0.99):.0f}",
                *(found.sent, len(found.first_tokens), f"{quantile_ms(found.first_tokens, 0.5):.0f}"),
                *(f"{quantile_ms(found.first_tokens, 0.99):.0f}", refused or "0"),
            )
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="5,20,50", help="requests per second (default 5,20,50)")
    parser.add_argument("--seconds", type=float, default=6, help="length of one recording (default 6)")
    parser.add_argument("--rounds", type=int, default=2, help="how often each arm is recorded (default 2)")
    parser.add_argument("--streams", type=int, default=16, help="steady streams (default 16)")
    options = parser.parse_args()
    rates = [float(rate) for rate in options.rates.split(",")]
    tier_arms: list[Arm] = [(QUIET, 0), *((kind, rate) for rate in rates for kind in (KNOWN, UNSEEN))]
    replica_arms: list[Arm] = [(QUIET, 0), *((UNSEEN, rate) for rate in rates)]
    numbers = itertools.count(1)
    results = []
    phases = (len(tier_arms) + len(replica_arms)) * options.rounds
    with tqdm(total=phases, desc="phases", disable=None) as progress:
        for module, arms in (("deployments.local.launcher", tier_arms), ("benchmarks.in_replica", replica_arms)):
            with (
                tempfile.TemporaryDirectory() as folder,
                Server(server_arguments(folder), module=module, deadline_s=START_DEADLINE_S) as server,
            ):
                results.append(asyncio.run(measure(server.url, arms, options, numbers, progress)))
    tier, in_replica = results
    print(table(tier, in_replica))
    ratios = {rate: _p99(tier[UNSEEN, rate]) / _p99(tier[KNOWN, rate]) for rate in rates}
    print(f"\np99(unseen) / p99(known), at most {TARGET}: ", end="")
    print(", ".join(f"{ratio:.2f} at {rate:g} per s" for rate, ratio in ratios.items()))
    return int(max(ratios.values()) > TARGET)


def _p99(found: Measurements) -> float:
    return quantile_ms(found.gaps, 0.99)


if __name__ == "__main__":
    sys.exit(main())

"""Measure the inter-token latency of open streams while other clients send uncached schemas.

    python -m benchmarks.cold_storm [--rates 5,20,50] [--seconds 6] [--rounds 2] [--fields 16]

Sixteen streams run against a real server over HTTP. Meanwhile other clients (the *storm*) request short responses under
heavy schemas. Each rate is measured twice: with cached schemas (`known`), and with an uncached schema in every request
(`unseen`). The server has one model replica on one thread and one compile worker.

`gap` is the time between two events of a stream. If a stream sends no more event, the time to the end of the recording
is a gap, too. A stall is a gap of more than 0.5 s. `first token` is the time to the first text of the storm's requests,
without requests that are cancelled at the end of their phase.

Phases alternate in each round, so that disturbances of the machine affect all of them. The exit status is 1 if, at any
rate, the p99 of the gaps under uncached schemas is more than 1.25 times the p99 under cached schemas.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from typing import Any

from tqdm import tqdm

from benchmarks.frame import Table, new_parser
from benchmarks.load import Measurements, Requests, Streams, cancelled, connect, one_of_each, quantile_ms

TARGET = 1.25
# Compiling a schema of this size takes 23 ms of CPU time for the embedded model's vocabulary, nine times the median of
# MaskBench's schemas. With 2 fields it takes 2 ms.
FIELDS = 16
KNOWN_SCHEMAS = 12
# Seconds that a storm runs before the recording starts.
SETTLE_S = 2.0

QUIET, KNOWN, UNSEEN = "quiet", "known", "unseen"
# Kind of the storm's schemas (`QUIET`, `KNOWN` or `UNSEEN`) and requests per second.
Arm = tuple[str, float]


def heavy_schema(number: int, fields: int = FIELDS) -> dict[str, Any]:
    """Return a JSON Schema that takes long to compile: an object with patterns and alternatives.

    Args:
        number: Number of the schema. Schemas with different numbers have no large part in common.
        fields: Number of patterns, and number of alternatives.
    """
    texts = {
        f"field_{number}_{i}": {"type": "string", "pattern": rf"^([a-z]{{2,{8 + i}}}-){{1,6}}[0-9]{{3}}(x|y{number})?$"}
        for i in range(fields)
    }
    kinds = [
        {
            "type": "object",
            "properties": {
                "kind": {"const": f"kind {number} {i}"},
                "value": {"type": ["integer", "string"], "minimum": i, "maximum": 1000 + number},
            },
            "required": ["kind", "value"],
            "additionalProperties": False,
        }
        for i in range(fields)
    ]
    return {
        "type": "object",
        "properties": {**texts, "items": {"type": "array", "items": {"anyOf": kinds}, "maxItems": 12}},
        "required": list(texts),
        "additionalProperties": False,
    }


def arms_of(rates: list[float]) -> list[Arm]:
    """Return the arms of the experiment: no storm, then cached and uncached schemas at each rate.

    Args:
        rates: Requests per second of the storm.

    Returns:
        Pairs (`QUIET`, `KNOWN` or `UNSEEN`; requests per second).
    """
    return [(QUIET, 0), *((kind, rate) for rate in rates for kind in (KNOWN, UNSEEN))]


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
    """Record every arm once in each round, in the order of `arms`.

    Args:
        url: Base URL of the server.
        arms: Pairs (kind of schemas, requests per second), from `arms_of`.
        options: Command line with `streams`, `rounds` and `seconds` (length of one recording).
        numbers: Numbers of schemas that no request has used yet.
        progress: Progress bar, which advances by one per recording.
        fields: Size of a schema, as in `heavy_schema`.
        stream_tokens: Tokens of a stream before it is started again.
        drain_s: Seconds to wait for late responses after a recording.

    Returns:
        The measurements of each arm, over all rounds.
    """
    results = {arm: Measurements() for arm in arms}
    async with connect(url) as http:
        requests = Requests(http, tenant="storm")
        known = [heavy_schema(next(numbers), fields) for _ in range(KNOWN_SCHEMAS)]
        await asyncio.gather(*(requests.answer(schema, Measurements()) for schema in known))
        schemas: dict[str, Iterator[Any]] = {
            KNOWN: itertools.cycle(known),
            UNSEEN: (heavy_schema(number, fields) for number in numbers),
        }
        streams = Streams(http, options.streams, stream_tokens)
        await streams.start()
        try:
            for arm in arms * options.rounds:
                kind, rate = arm
                count = int(rate * (SETTLE_S + options.seconds))
                storm = requests.at_rate(rate, schemas.get(kind, iter(())), results[arm], count)
                await _phase(storm, streams, results[arm], options.seconds, drain_s)
                progress.update()
        finally:
            await streams.close()
    return results


async def _phase(
    storm: Coroutine[Any, Any, None], streams: Streams, measurements: Measurements, seconds: float, drain_s: float
) -> None:
    """Record the streams during a storm, then wait up to `drain_s` seconds for the storm's last responses."""
    blowing = asyncio.create_task(storm)
    await asyncio.sleep(SETTLE_S)
    with streams.recording(measurements):
        await asyncio.sleep(seconds)
    await asyncio.wait([blowing], timeout=drain_s)
    await cancelled([blowing])


def over_known(arms: dict[Arm, Measurements], rate: float) -> float:
    """Return the p99 of the gaps under uncached schemas, divided by the p99 under cached schemas.

    Args:
        arms: Measurements of each arm.
        rate: Requests per second of the two arms that are compared.
    """
    unseen, known = (quantile_ms(arms[kind, rate].gaps, 0.99) for kind in (UNSEEN, KNOWN))
    return unseen / known


def show(results: dict[str, dict[Arm, Measurements]]) -> None:
    """Print a table with a row for each server and arm.

    Args:
        results: Measurements by name of the server and by arm.
    """
    table = Table(
        *("server", "schemas", "per s", "gap p50 ms", "p99 ms", "longest ms", "p99 / quiet", "p99 / known", "stalls"),
        *("broken", "events/s", "stream's first p99 ms", "sent", "answered", "first token p50 ms", "p99 ms", "refused"),
    )
    for server, arms in results.items():
        quiet = quantile_ms(arms[QUIET, 0].gaps, 0.99)
        for (kind, rate), found in arms.items():
            p50, p99, longest = (quantile_ms(found.gaps, q) for q in (0.5, 0.99, 1))
            ratio = f"{over_known(arms, rate):.2f}" if kind == UNSEEN else ""
            first_p50, first_p99 = (f"{quantile_ms(found.first_tokens, q):.0f}" for q in (0.5, 0.99))
            table.row(
                *(server, kind, f"{rate:g}", f"{p50:.1f}", f"{p99:.1f}", f"{longest:.0f}", f"{p99 / quiet:.2f}", ratio),
                *(found.stalls, found.broken_streams, f"{found.events_per_second:.0f}"),
                *(f"{quantile_ms(found.stream_starts, 0.99):.0f}", found.sent, len(found.answers)),
                *(first_p50, first_p99, found.refused),
            )


def main() -> int:
    """Run the storms against a new server, and print the table. Return 1 if the ratio of a rate exceeds `TARGET`."""
    parser = new_parser(__doc__)
    parser.add_argument("--rates", default="5,20,50", help="requests per second (default 5,20,50)")
    parser.add_argument("--seconds", type=float, default=6, help="length of one recording (default 6)")
    parser.add_argument("--rounds", type=int, default=2, help="how often each arm is recorded (default 2)")
    parser.add_argument("--streams", type=int, default=16, help="steady streams (default 16)")
    parser.add_argument("--fields", type=int, default=FIELDS, help=f"size of a schema (default {FIELDS})")
    options = parser.parse_args()
    rates = [float(rate) for rate in options.rates.split(",")]
    arms = arms_of(rates)
    with (
        tempfile.TemporaryDirectory() as folder,
        one_of_each(f"file://{folder}", max_num_seqs=48, max_model_len=2048) as server,
        tqdm(total=len(arms) * options.rounds, desc="phases", disable=None) as progress,
    ):
        found = asyncio.run(measure(server.url, arms, options, itertools.count(1), progress, fields=options.fields))
    show({"Turnstile": found})
    ratios = {rate: over_known(found, rate) for rate in rates}
    print(f"\np99(unseen) / p99(known), at most {TARGET}: ", end="")
    print(", ".join(f"{ratio:.2f} at {rate:g} per s" for rate, ratio in ratios.items()))
    return int(max(ratios.values()) > TARGET)


if __name__ == "__main__":
    sys.exit(main())

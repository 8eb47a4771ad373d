"""How long requests of every kind wait for their first token in plain `vllm serve`, mixed and all at once.

`python -m tests.vllm.waits [--requests 400] [--concurrency 16]` prints one row per kind: requests, statuses, and the
median, p99 and largest time to the first token in seconds. A request that waits on although its grammar is loaded (a
lost wake-up) shows as a largest time far above the p99 of its kind. Exit status 1 when one got no answer.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.vllm.server import vllm_serve

KNOWN = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
TIMEOUT_S = 120.0


def constraint(kind: str, number: int) -> dict[str, Any]:
    """Fields of a request of `kind`; `number` makes what is new for the server differ from all before."""
    match kind:
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "known schema":
            return {"structured_outputs": {"json": KNOWN}}
        case "new schema":
            return {
                "structured_outputs": {"json": {"type": "object", "properties": {f"p{number}": {"type": "integer"}}}}
            }
        case "regex":
            return {"structured_outputs": {"regex": f"[a-c]{{1,{number % 7 + 1}}}"}}
        case "choice":
            return {"structured_outputs": {"choice": ["yes", "no"]}}
        case "refused":
            return {"structured_outputs": {"json": {"type": "object", "properties": {f"p{number}": {"type": 5}}}}}
        case _:
            return {}


KINDS = ("json_object", "known schema", "new schema", "regex", "choice", "refused", "plain")


async def send(client: httpx.AsyncClient, kind: str, number: int) -> tuple[int, float]:
    """Returns the status (0: no answer) and the seconds to the first event with a token, or to the refusal."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"number {number}"}],
        "max_tokens": 30,
        "stream": True,
        **constraint(kind, number),
    }
    began = time.perf_counter()
    waited = None
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if waited is None and ("error" in line or ('"content":"' in line and '"content":""' not in line)):
                    waited = time.perf_counter() - began
            status = response.status_code
    except httpx.HTTPError:
        status = 0
    return status, time.perf_counter() - began if waited is None else waited


async def measure(url: str, requests: int, concurrency: int) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    gate = asyncio.Semaphore(concurrency)
    kinds = [KINDS[index % len(KINDS)] for index in range(requests)]
    random.Random(0).shuffle(kinds)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=None)) as client:
        await send(client, "known schema", 0)

        async def one(kind: str, number: int) -> None:
            async with gate:
                found[kind].append(await send(client, kind, number))

        await asyncio.gather(*(one(kind, number) for number, kind in enumerate(kinds)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, vllm_serve(Path(folder)) as url:
        found = asyncio.run(measure(url, arguments.requests, arguments.concurrency))
    print("| kind | requests | statuses | p50 s | p99 s | largest s |\n|---|---|---|---|---|---|")
    for kind in KINDS:
        times = sorted(waited for _, waited in found[kind])
        statuses = collections.Counter(status for status, _ in found[kind])
        told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        p99 = times[min(len(times) - 1, round(0.99 * len(times)))]
        print(f"| {kind} | {len(times)} | {told} | {times[len(times) // 2]:.2f} | {p99:.2f} | {times[-1]:.2f} |")
    return int(any(status in (0, 500) for results in found.values() for status, _ in results))


if __name__ == "__main__":
    sys.exit(main())

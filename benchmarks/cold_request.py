"""What does a request pay for a schema that nobody has seen?

    python -m benchmarks.cold_request [--pairs 60] [--seconds 5] [--rounds 3]

A real server with one of each tier, one compile process, a model on one thread. A request with a new small schema, and
one with a schema that was used once before, *with another prompt*, in turns: each schema is new first and known a few
requests later. Schemas, prompts and seeds of both kinds are drawn alike, so the outputs are, too. Then 8 clients who
each send their next request when the last one is answered: all with known schemas and all with new ones, in turns.

First on the machine as it is, then beside a process that keeps one core busy at the default priority. `CPU`: of all
threads of the server's processes, by the kernel's counters, less what they take without requests. The last table has
where the difference is.

Exit status 1 when a target is missed: the first token of a new schema at most 4 ms later than that of a known one, 8
beside a busy core; at most 10 ms more CPU; with 8 clients 0.75 of the requests a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from tqdm import tqdm

from benchmarks.flood import small_schema
from benchmarks.load import CHAT, START_DEADLINE_S, cancelled, connect, quantile_ms
from benchmarks.processes import family
from benchmarks.thread_cpu import CpuTimes, Place, cpu_times, environment, process_names
from tests.integration.server import Server

FIRST_TOKEN_MS, FIRST_TOKEN_BUSY_MS, CPU_MS, THROUGHPUT = 4.0, 8.0, 10.0, 0.75
CLIENTS = 8
BLOCK = 10
"""Requests of one kind between two readings of the counters, which cost some milliseconds themselves."""
LENGTHS = {"short": 8, "longer": 64}
"""Most tokens of an output; a whole one has about 40."""
IDLE_S = 3.0
WARM_UP = 2 * BLOCK

KNOWN, NEW = "known", "new"
PROCESSES = {
    "compile process": "grammar_workers.service.fork_server",
    "router": "ServeReplica:turnstile:Router",
    "compiler": "ServeReplica:turnstile:GrammarCompiler",
    "model replica": "ServeReplica:turnstile:ModelReplica",
    "HAProxy": "haproxy",
}
WORDS = ("harbour", "ferry", "lantern", "orchard", "violin", "copper", "meadow", "puzzle", "anchor", "velvet", "timber")


IdleTimes = dict[Place, float]
"""Nanoseconds of CPU in a second without requests."""


@dataclass
class Found:
    """About requests of one kind; times in seconds."""

    first_tokens: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    cpu: CpuTimes = field(default_factory=Counter)
    seconds: float = 0.0

    def cpu_ms(self, idle: IdleTimes) -> dict[Place, float]:
        """Per request, by process and thread."""
        return {
            place: (self.cpu[place] - idle.get(place, 0.0) * self.seconds) / 1e6 / len(self.answers)
            for place in self.cpu.keys() | idle.keys()
        }


class Client:
    """Asks the server, each time with a prompt of its own."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._numbers = itertools.count()

    async def ask(self, schema: Any, max_tokens: int, found: Found) -> None:
        """Raises where the answer is no success."""
        number = next(self._numbers)
        words = " ".join(WORDS[number // len(WORDS) ** i % len(WORDS)] for i in range(4))
        body = {
            "messages": [{"role": "user", "content": f"{words}: tell me about number {number}."}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
            "max_tokens": max_tokens,
            "seed": number,
            "stream": True,
        }
        started = time.monotonic()
        first = None
        async with self._http.post(CHAT, json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if first is None and line.startswith(b"data: {") and _has_text(line):
                    first = time.monotonic()
        if first is None:
            raise RuntimeError("an answer without text")
        found.first_tokens.append(first - started)
        found.answers.append(time.monotonic() - started)


class Run:
    """All parts on one server; schemas are numbered throughout."""

    def __init__(self, client: Client, server: Server, options: argparse.Namespace, progress: tqdm[None]) -> None:
        self._client = client
        self._server = server
        self._options = options
        self._progress = progress
        self._names = process_names(family(server.process.pid), PROCESSES)
        self._numbers = itertools.count()
        self.idle: IdleTimes = {}

    async def begin(self) -> None:
        """Everything that is slow the first time, and what the processes take without requests."""
        for length in LENGTHS.values():
            await self._pairs(WARM_UP, length)
        before, began = cpu_times(self._names), time.monotonic()
        await asyncio.sleep(IDLE_S)
        took = time.monotonic() - began
        self.idle = {place: spent / took for place, spent in (cpu_times(self._names) - before).items()}

    async def one_client(self, max_tokens: int) -> dict[str, Found]:
        found = await self._pairs(self._options.pairs, max_tokens)
        self._progress.update()
        return found

    async def _pairs(self, pairs: int, max_tokens: int) -> dict[str, Found]:
        found = {KNOWN: Found(), NEW: Found()}
        for _ in range(-(-pairs // BLOCK)):
            schemas = [small_schema("new", next(self._numbers)) for _ in range(BLOCK)]
            for kind in (NEW, KNOWN):
                with self._counted(found[kind]):
                    for schema in schemas:
                        await self._client.ask(schema, max_tokens, found[kind])
        return found

    async def clients(self) -> dict[str, Found]:
        """All with known schemas, all with new ones."""
        found = {KNOWN: Found(), NEW: Found()}
        known = [small_schema("new", next(self._numbers)) for _ in range(2 * CLIENTS)]
        for schema in known:
            await self._client.ask(schema, LENGTHS["longer"], Found())
        endless = itertools.cycle(known)
        choose: dict[str, Callable[[], Any]] = {
            KNOWN: lambda: next(endless),
            NEW: lambda: small_schema("new", next(self._numbers)),
        }
        for _ in range(self._options.rounds):
            for kind in (KNOWN, NEW):
                await self._together(choose[kind], found[kind])
                self._progress.update()
        return found

    async def _together(self, choose: Callable[[], Any], found: Found) -> None:
        async def client() -> None:
            while True:
                await self._client.ask(choose(), LENGTHS["longer"], found)

        with self._counted(found):
            tasks = [asyncio.create_task(client()) for _ in range(CLIENTS)]
            await asyncio.wait(tasks, timeout=self._options.seconds, return_when=asyncio.FIRST_EXCEPTION)
            failed = [task for task in tasks if task.done()]
            await cancelled(tasks)
        for task in failed:
            task.result()
        await asyncio.sleep(0.5)

    @contextlib.contextmanager
    def _counted(self, found: Found) -> Iterator[None]:
        before, began = cpu_times(self._names), time.monotonic()
        yield
        found.seconds += time.monotonic() - began
        found.cpu.update(cpu_times(self._names) - before)


async def measure(
    server: Server, options: argparse.Namespace, progress: tqdm[None]
) -> tuple[IdleTimes, dict[tuple[str, str], dict[str, Found]]]:
    """By (machine, load) and kind."""
    results = {}
    async with connect(server.url) as http:
        run = Run(Client(http), server, options, progress)
        await run.begin()
        for machine in ("idle", "busy"):
            with busy_core() if machine == "busy" else contextlib.nullcontext():
                for name, max_tokens in LENGTHS.items():
                    results[machine, name] = await run.one_client(max_tokens)
                results[machine, f"{CLIENTS} clients"] = await run.clients()
    return run.idle, results


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _spin() -> None:
    # Of a session like any other program's, where Linux shares the CPU out by session.
    os.setsid()
    while True:
        pass


def table(idle: IdleTimes, results: dict[tuple[str, str], dict[str, Found]]) -> str:
    head = ("machine", "load", "schemas", "answers", "first token p25 / p50 / p75 ms", "whole answer p50 ms")
    lines = ["| " + " | ".join((*head, "requests/s", "CPU ms/request")) + " |", "|---" * (len(head) + 2) + "|"]
    for (machine, load), found in results.items():
        for kind, one in found.items():
            quartiles = " / ".join(f"{quantile_ms(one.first_tokens, q):.1f}" for q in (0.25, 0.5, 0.75))
            cells = (
                *(machine, load, kind, len(one.answers), quartiles, f"{quantile_ms(one.answers, 0.5):.1f}"),
                *(f"{len(one.answers) / one.seconds:.1f}", f"{sum(one.cpu_ms(idle).values()):.1f}"),
            )
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def attribution(idle: IdleTimes, results: dict[tuple[str, str], dict[str, Found]]) -> str:
    """CPU ms of a request, new less known, where it is 0.2 or more in any load; one client on the idle machine."""
    differences: dict[str, dict[Place, float]] = {}
    for (machine, load), found in results.items():
        if machine == "idle":
            known, new = found[KNOWN].cpu_ms(idle), found[NEW].cpu_ms(idle)
            differences[load] = {place: new.get(place, 0.0) - known.get(place, 0.0) for place in new | known}
    by_place = {
        place: [difference.get(place, 0.0) for difference in differences.values()]
        for place in dict.fromkeys(place for difference in differences.values() for place in difference)
    }
    lines = ["| process | thread | " + " | ".join(differences) + " |", "|---|---|" + "---|" * len(differences)]
    for (process, thread), values in sorted(by_place.items(), key=lambda one: -max(one[1])):
        if max(map(abs, values)) >= 0.2:
            lines.append(f"| {process} | {thread} | " + " | ".join(f"{value:+.1f}" for value in values) + " |")
    return "\n".join(lines)


def verdicts(
    idle: IdleTimes, results: dict[tuple[str, str], dict[str, Found]]
) -> Iterator[tuple[str, float, str, bool]]:
    """(figure, its value, its target, whether it is missed)."""
    for (machine, load), found in results.items():
        known, new = found[KNOWN], found[NEW]
        if load in LENGTHS:
            later = quantile_ms(new.first_tokens, 0.5) - quantile_ms(known.first_tokens, 0.5)
            most = FIRST_TOKEN_BUSY_MS if machine == "busy" else FIRST_TOKEN_MS
            yield f"first token later, p50 ms, {machine}, {load}", later, f"at most {most:g}", later > most
            more = sum(new.cpu_ms(idle).values()) - sum(known.cpu_ms(idle).values())
            if machine == "idle":
                yield f"CPU more, ms a request, {load}", more, f"at most {CPU_MS:g}", more > CPU_MS
        elif machine == "idle":
            share = len(new.answers) / new.seconds / (len(known.answers) / known.seconds)
            yield f"requests/s, new over known, {load}", share, f"at least {THROUGHPUT:g}", share < THROUGHPUT


def _has_text(line: bytes) -> bool:
    choices = json.loads(line.removeprefix(b"data: ")).get("choices")
    return bool(choices and choices[0]["delta"].get("content"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="requests of each kind and length (default 60)")
    parser.add_argument("--seconds", type=float, default=5, help="of all clients, each time (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all clients take turns (default 3)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=2 * (len(LENGTHS) + 2 * options.rounds), desc="parts", disable=None) as progress,
    ):
        os.environ |= environment(Path(folder))
        arguments = {
            "store": f"file://{folder}/grammars",
            "compiler": {"num_cpus": 0.1, "processes": 1},
            "replica": {"num_cpus": 0.1, "engine": {"threads": 1, "max_length": 1024}},
        }
        with Server(arguments, deadline_s=START_DEADLINE_S) as server:
            idle, results = asyncio.run(measure(server, options, progress))
    print(table(idle, results))
    print("\nCPU ms of a request, new less known, idle machine:\n")
    print(attribution(idle, results))
    print()
    missed = False
    for figure, value, target, misses in verdicts(idle, results):
        print(f"{figure}: {value:.2f}, {target}" + ("  MISSED" if misses else ""))
        missed |= misses
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""Bombs through HTTP: what another tenant notices while one tenant sends the worst that 100 KB can ask for.

    python -m tests.integration.bombs --seconds 7200 --seed 1

Sends the specifications of `tests.grammar_workers.bombs` as chats (whole and streamed, with and without
`finish_within_budget`, several choices, banned words beside them, tools) and to `/v1/grammars`, three at a time, and
every half second a probe of another tenant: five free tokens, or five under a known grammar. Prints for each family the
answers by status and the slowest, then the slowest probes, and the largest memory of every process. Exit
status 1 when a probe takes longer than `--probe` seconds or is not answered, an answer is no 200 and no 4xx (503 and
504 of a compilation that is over its limits count as answers; a 400 for an unknown field does not, because it stops a
bomb before it costs anything), or a process grows beyond `--growth` MiB. The server's grammar options are those of the
first bomb, so that another seed tries other options.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import itertools
import json
import random
import sys
import tempfile
import time
from typing import Any

import httpx
import psutil

from tests.grammar_workers.bombs import bomb
from tests.integration.server import Server
from tests.integration.traffic import PROMPT

AT_A_TIME = 3
PROBE_EVERY_S = 0.5
GIVE_UP_S = 180.0
SHOWN_EVERY_S = 300.0
PARTS = {"Router": "router", "GrammarCompiler": "compiler", "ModelReplica": "replica"}
KNOWN = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "items": {"type": "integer"}}}}


@dataclasses.dataclass
class Report:
    """The outcomes of bombs and probes, and the memory of the processes, so far."""

    statuses: dict[str, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    slowest: dict[str, tuple[float, int]] = dataclasses.field(default_factory=dict)
    """Of each family the seconds of its slowest answer, and that bomb's seed."""
    probes: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    """Seconds of each probe, and what it was."""
    memory_mb: dict[str, float] = dataclasses.field(default_factory=dict)
    """The most of each process so far."""
    begun_mb: dict[str, float] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def show(self) -> None:
        for family, counts in sorted(self.statuses.items()):
            seconds, seed = self.slowest[family]
            print(f"{family:10} {dict(counts)} slowest {seconds:.1f} s (seed {seed})")
        times = sorted(seconds for seconds, _ in self.probes)
        if times:
            p50, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
            print(f"probes: {len(times)}, p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms, largest {times[-1]:.2f} s")
        for name, most in sorted(self.memory_mb.items()):
            print(f"memory of {name}: {self.begun_mb.get(name, 0.0):.0f} MiB, at most {most:.0f} MiB")
        sys.stdout.flush()


def request_of(seed: int) -> tuple[str, str, dict[str, Any]]:
    """Family, path and body of a bomb; the options of the request are drawn by its seed."""
    family, specification, options = bomb(seed, 100_000)
    rng = random.Random(seed)
    body: dict[str, Any] = {"on_unsupported": options.on_unsupported}
    if rng.random() < 0.15:
        return family, "/v1/grammars", body | {"specification": specification}
    body |= {"messages": PROMPT, "max_tokens": rng.choice([1, 20, 150]), "stream": rng.random() < 0.5}
    body["temperature"] = rng.choice([0, 1])
    if "schema" in specification and rng.random() < 0.2:
        function = {"name": "f", "parameters": specification["schema"]}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    else:
        body["structured_outputs"] = {"all_of": [specification]}
        if rng.random() < 0.3:
            body["finish_within_budget"] = True
        elif rng.random() < 0.2:
            body["banned_words"] = {"words": ["ab", "abc", "a b"]}
    if rng.random() < 0.2:
        body["n"] = rng.choice([2, 8])
    return family, "/v1/chat/completions", body


async def throw(http: httpx.AsyncClient, seeds: itertools.count[int], end: float, report: Report) -> None:
    """Send one bomb after the other until the time is over."""
    while time.monotonic() < end:
        seed = next(seeds)
        family, path, body = await asyncio.to_thread(request_of, seed)
        began = time.monotonic()
        try:
            answer = await http.post(path, json=body, headers={"x-turnstile-tenant": "bomber"})
            said = str(answer.status_code)
            if answer.status_code >= 400:
                said += f" {answer.json()['error']['code']}"
            elif body.get("stream") and '"error"' in answer.text:
                said = "200 error event"
        except (httpx.HTTPError, ValueError) as error:
            said = type(error).__name__
        seconds = time.monotonic() - began
        report.statuses[family][said] += 1
        report.slowest[family] = max(report.slowest.get(family, (0.0, 0)), (seconds, seed))
        if "unknown_field" in said or (not said.startswith(("200", "4")) and said.split()[0] not in ("503", "504")):
            report.wrong.append(f"seed {seed} ({family}): {said} after {seconds:.1f} s")
            print(report.wrong[-1], flush=True)


async def probe(http: httpx.AsyncClient, end: float, report: Report, most_s: float) -> None:
    """Ask every half second, whatever became of the earlier ones."""
    kinds: list[tuple[str, dict[str, Any]]] = [("free", {}), ("known", {"response_format": KNOWN})]

    async def one(kind: str, fields: dict[str, Any]) -> None:
        began = time.monotonic()
        body = {"messages": PROMPT, "max_tokens": 5, **fields}
        try:
            answer = await http.post("/v1/chat/completions", json=body, headers={"x-turnstile-tenant": "other"})
            said = str(answer.status_code)
        except httpx.HTTPError as error:
            said = type(error).__name__
        seconds = time.monotonic() - began
        report.probes.append((seconds, kind))
        if said != "200" or seconds > most_s:
            report.wrong.append(f"probe ({kind}): {said} after {seconds:.1f} s at {time.strftime('%H:%M:%S')}")
            print(report.wrong[-1], flush=True)

    async with asyncio.TaskGroup() as probes:
        for kind, fields in itertools.cycle(kinds):
            if time.monotonic() > end:
                return
            probes.create_task(one(kind, fields))
            await asyncio.sleep(PROBE_EVERY_S)


def measure(server: Server, report: Report) -> None:
    """Note the memory of the replicas and of the compile processes."""
    for words, name in PARTS.items():
        for process in server.replicas(words):
            note(report, name, process)
            for child in process.children(recursive=True) if words == "GrammarCompiler" else ():
                note(report, "compile processes", child)


def note(report: Report, name: str, process: psutil.Process) -> None:
    try:
        memory = process.memory_info().rss / (1 << 20)
    except psutil.NoSuchProcess:
        return
    report.begun_mb.setdefault(name, memory)
    report.memory_mb[name] = max(report.memory_mb.get(name, 0.0), memory)


async def watch(server: Server, end: float, report: Report) -> None:
    shown = time.monotonic()
    while time.monotonic() < end:
        await asyncio.to_thread(measure, server, report)
        if time.monotonic() > shown + SHOWN_EVERY_S:
            shown = time.monotonic()
            report.show()
        await asyncio.sleep(1)


async def run(server: Server, options: argparse.Namespace) -> Report:
    report = Report()
    seeds = itertools.count(options.seed)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=GIVE_UP_S, limits=limits, trust_env=False) as http:
        # What the probes ask for is known before.
        await http.post("/v1/chat/completions", json={"messages": PROMPT, "max_tokens": 5, "response_format": KNOWN})
        end = time.monotonic() + options.seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(server, end, report))
            tasks.create_task(probe(http, end, report, options.probe))
            for _ in range(AT_A_TIME):
                tasks.create_task(throw(http, seeds, end, report))
    grown = {name: most - report.begun_mb[name] for name, most in report.memory_mb.items()}
    report.wrong += [f"{name} grew by {more:.0f} MiB" for name, more in grown.items() if more > options.growth]
    print(f"seeds {options.seed} to {next(seeds) - 1}")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="how long to go on (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="where to begin (default: 0)")
    parser.add_argument("--probe", type=float, default=2.0, help="most seconds of a probe (default: 2)")
    parser.add_argument("--growth", type=float, default=4096, help="most MiB of growth (default: process_growth_mb)")
    options = parser.parse_args()
    grammar_options = bomb(options.seed, 100_000)[2].model_dump(exclude={"on_unsupported"})
    print(f"grammar options: {grammar_options}", flush=True)
    with tempfile.TemporaryDirectory() as files:
        arguments = {"store": f"file://{files}", "compiler": {"options": grammar_options}}
        with Server(arguments) as server:
            report = asyncio.run(run(server, options))
    report.show()
    print(*report.wrong[:40], sep="\n")
    print(
        json.dumps({"bombs": sum(map(collections.Counter.total, report.statuses.values())), "wrong": len(report.wrong)})
    )
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.vllm.chaos`: parts of a server on vLLM are killed under streams; prints what that did to them.

Two model replicas, 32 streams through our router. Each stream's text is compared with what the same request said
undisturbed, at temperature 0: a token that is lost or repeated shows.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.chaos.client import TIMEOUT_S
from tests.integration.server import Server
from tests.vllm.application import REPLICA, engine_cores, engine_workers, serving
from tests.vllm.test_serve import MESSAGES

FAULTS: dict[str, Callable[[Server], list[psutil.Process]]] = {
    "replica": lambda server: server.processes(REPLICA),
    "engine-core": engine_cores,
    "worker": engine_workers,
    "compiler": lambda server: server.processes("ServeReplica:turnstile:GrammarCompiler"),
}
"""What is killed: the first of these processes."""

STARTING = ("ModelReplica.__init__", "ModelReplica.initialize", "GrammarCompiler.initialize")
"""What Ray writes behind the name of a replica that is not ready."""

RECOVERY_S = 400.0
WIDTH = 400


@dataclasses.dataclass
class Stream:
    """One request and what has come for it."""

    body: dict[str, Any]
    text: str = ""
    finish_reason: str | None = None
    trouble: str | None = None

    async def run(self, http: httpx.AsyncClient) -> Stream:
        try:
            async with http.stream("POST", "/v1/chat/completions", json=self.body) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        self._take(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            self.trouble = repr(error)
        if self.finish_reason is None and self.trouble is None:
            self.trouble = "no finish reason"
        return self

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.trouble = json.dumps(event["error"])
        for choice in event.get("choices", ()):
            self.text += choice["delta"].get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a kill did to the streams."""

    interrupted: int
    """Streams that had text and had not ended when it struck."""
    lost: list[str]
    differing: list[str]
    compiled: int
    """Grammars compiled by whoever is not the grammar tier."""
    finished_s: float
    recovered_s: float


def bodies(streams: int) -> list[dict[str, Any]]:
    """Long outputs under a few grammars, and free ones."""
    made = []
    for number in range(streams):
        content = f"{MESSAGES[0]['content']} Number {number}."
        constraint: dict[str, Any] = {"ignore_eos": True}
        if number % 4:
            constraint = {"structured_outputs": {"regex": f"{number % 4}[a-z ]{{{WIDTH}}}"}}
        messages = [{"role": "user", "content": content}]
        made.append({"messages": messages, "temperature": 0, "max_tokens": 450, "stream": True, **constraint})
    return made


async def struck(server: Server, fault: str, *, streams: int) -> Outcome:
    """Kills the first process of FAULTS[fault] while `streams` streams run; waits for another one."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S, limits=limits, trust_env=False) as http:
        undisturbed = await asyncio.gather(*(Stream(body).run(http) for body in bodies(streams)))
        coming = [Stream(body) for body in bodies(streams)]
        tasks = [asyncio.ensure_future(stream.run(http)) for stream in coming]
        while not sum(len(stream.text) > 20 for stream in coming) > streams // 2:
            await asyncio.sleep(0.02)
        before = FAULTS[fault](server)
        interrupted = sum(bool(stream.text) and stream.finish_reason is None for stream in coming)
        began = time.monotonic()
        before[0].kill()
        await asyncio.gather(*tasks)
        finished_s = time.monotonic() - began
        await _whole(server, fault, before, http)
    pairs = list(zip(coming, undisturbed, strict=True))
    return Outcome(
        interrupted,
        [f"{one.trouble}" for one, other in pairs if one.trouble or other.trouble],
        [f"{one.text!r} is not {other.text!r}" for one, other in pairs if not one.trouble and one.text != other.text],
        int(sum(server.metric("turnstile_grammar_compilations", component="model_replica"))),
        finished_s,
        time.monotonic() - began,
    )


async def _whole(server: Server, fault: str, before: Sequence[Any], http: httpx.AsyncClient) -> None:
    """Until there are as many processes as before, all are ready, and they answer."""
    deadline = time.monotonic() + RECOVERY_S
    while True:
        now = [process for process in FAULTS[fault](server) if process.pid != before[0].pid]
        starting = [process for method in STARTING for process in server.processes(f"ServeReplica:turnstile:{method}")]
        if len(now) >= len(before) and not starting and (await http.get("/health")).status_code == 200:
            return
        assert time.monotonic() < deadline, f"no other {fault} comes up"
        await asyncio.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.chaos", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)} (default: all)")
    parser.add_argument("--streams", type=int, default=32)
    options = parser.parse_args()
    harm = 0
    print("| killed | streams | interrupted | lost | differ | compiled | all ended s | whole again s |", flush=True)
    print("|" + "---|" * 8, flush=True)
    replicas = {"replicas": 2, "num_cpus": 0.5}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), replica=replicas) as server:
        for name in options.faults or FAULTS:
            outcome = asyncio.run(struck(server, name, streams=options.streams))
            cells: list[Any] = [name, options.streams, outcome.interrupted, len(outcome.lost), len(outcome.differing)]
            cells += [outcome.compiled, f"{outcome.finished_s:.1f}", f"{outcome.recovered_s:.1f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            for line in (*outcome.lost, *outcome.differing):
                print(f"  {line}", file=sys.stderr)
            harm += len(outcome.lost) + len(outcome.differing) + outcome.compiled
    return int(harm > 0)


if __name__ == "__main__":
    sys.exit(main())

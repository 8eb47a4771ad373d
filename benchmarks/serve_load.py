"""Load through HTTP: Turnstile beside the same model behind plain FastAPI and transformers' `generate`.

    python -m benchmarks.serve_load [--clients 1 8 32 64] [--shares 0 0.1 0.5 1] [--seconds 4]

Clients ask one request after the other, each streamed; a share of them has a JSON Schema: `known`, the same few again
and again, or `unique`, a new one with every request. Answers of the shipped model have about 20 tokens. The servers run
all the time and take turns under each load, every model on one thread:

    Turnstile      HAProxy, a router, a compiler with one compile process, a model replica with a slot for each client
    one by one     FastAPI; a lock around `generate`, xgrammar's logits processor for schemas
    together       the same without the lock (`benchmarks.generate_server`)

`first`: time to the first text of an answer; `gap`: between two pieces of its text, which are tokens or a few of them
(transformers' streamer waits for a word's end); `CPU`: of all processes of the server, those of Ray included.
`benchmarks.hops` tells which part of the server takes how much of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
from tqdm import tqdm

from benchmarks.processes import AS_NICE_AS_OTHERS, cpu_seconds, family
from deployments.cli.load import Load, Report
from deployments.cli.load import run as put_load
from deployments.shipped import REPOSITORY
from tests.integration.server import Server
from tests.redis_server import free_port

MODEL = REPOSITORY / "models" / "turnstile-tiny"
START_DEADLINE_S = 240.0
IDLE_S = 5.0
CPU_COLUMN = "CPU ms/request"


@dataclass(frozen=True)
class Target:
    """A running server; `pid` is the process that started its others."""

    name: str
    url: str
    pid: int

    def cpu_seconds(self) -> float:
        return cpu_seconds(family(self.pid))


@contextlib.contextmanager
def turnstile(slots: int) -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "store": f"file://{folder}",
            "compiler": {"num_cpus": 0.1, "processes": 1},
            "replica": {"num_cpus": 0.1, "engine": {"threads": 1, "slots": slots, "max_length": 512}},
        }
        with Server(arguments, deadline_s=START_DEADLINE_S) as server:
            yield Target("Turnstile", server.url, server.process.pid)


@contextlib.contextmanager
def peer(name: str, *command: str) -> Iterator[Target]:
    """A server whose command takes `--port` and answers `/health`."""
    port = free_port()
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, "--port", str(port)], env=one_thread, stderr=subprocess.DEVNULL) as process:
        try:
            target = Target(name, f"http://127.0.0.1:{port}", process.pid)
            _wait_ready(target, process)
            yield target
        finally:
            process.terminate()


def _wait_ready(target: Target, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{target.url}/health", trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"{target.name} did not start")


def loads(options: argparse.Namespace) -> list[Load]:
    """Every cell of the table: shares above 0 with known schemas, and with unique ones."""
    return [
        Load(clients, share, unique, options.seconds, max_tokens=64)
        for clients, share in itertools.product(options.clients, options.shares)
        for unique in ((False, True) if share else (False,))
    ]


def measure(target: Target, load: Load) -> dict[str, str]:
    """The cells of one server under one load, by column."""
    before = target.cpu_seconds()
    report = asyncio.run(put_load(target.url, load, tick=lambda: None))
    spent = target.cpu_seconds() - before
    cells = dict(zip(Report.COLUMNS, report.cells(), strict=True))
    cells[CPU_COLUMN] = f"{1000 * spent / report.requests:,.0f}" if report.requests else "-"
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64], help="at the same time")
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.1, 0.5, 1], help="of requests with a schema")
    parser.add_argument("--seconds", type=float, default=4, help="for each server under each load (default 4)")
    options = parser.parse_args()
    os.environ.update(AS_NICE_AS_OTHERS)
    columns = [*Report.COLUMNS[:-1], CPU_COLUMN, Report.COLUMNS[-1]]
    with contextlib.ExitStack() as stack:
        print("starting three servers", file=sys.stderr, flush=True)
        generate = (sys.executable, "-m", "benchmarks.generate_server", str(MODEL))
        targets = [
            stack.enter_context(turnstile(max(options.clients))),
            stack.enter_context(peer("one by one", *generate)),
            stack.enter_context(peer("together", *generate, "--together")),
        ]
        for target in targets:
            measure(target, Load(2, 0.5, seconds=3, max_tokens=64))  # everything has run once
        idle = _idle_shares(targets)
        print(f"Each cell: {' / '.join(target.name for target in targets)}.\n")
        head = ["clients", "structured", "schemas", *columns]
        print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)
        for load in tqdm(loads(options), unit="row", disable=None):
            found = [measure(target, load) for target in targets]
            schemas = ("unique" if load.unique else "known") if load.structured else ""
            row = [str(load.clients), f"{load.structured:.0%}", schemas]
            row += [" / ".join(cells[column] for cells in found) for column in columns]
            print("| " + " | ".join(row) + " |", flush=True)
    print(f"\nCPU without any request, of one core: {idle}")
    return 0


def _idle_shares(targets: list[Target]) -> str:
    before = [target.cpu_seconds() for target in targets]
    time.sleep(IDLE_S)
    shares = [(target.cpu_seconds() - spent) / IDLE_S for target, spent in zip(targets, before, strict=True)]
    return ", ".join(f"{target.name} {share:.0%}" for target, share in zip(targets, shares, strict=True))


if __name__ == "__main__":
    sys.exit(main())

"""Measure load through HTTP: Turnstile compared with the same model behind FastAPI and transformers' `generate`.

    python -m benchmarks.serve_load [--clients 1 8 32 64] [--shares 0 0.1 0.5 1] [--seconds 4]

Each client sends one streamed request after another. A share of the requests has a JSON Schema: one of a few repeated
schemas (`known`), or a new schema in every request (`unique`). Responses of the embedded model have about 20 tokens.
All servers run all the time, and are measured one after another under each load. Every model has one thread:

    Turnstile      HAProxy, a router, a compiler with one compile worker, a model replica with a slot for each client
    one by one     FastAPI, a lock around `generate`, and xgrammar's logits processor for schemas
    together       like `one by one`, but without the lock (`benchmarks.generate_server --together`)

`first` is the time to the first text of a response. `gap` is the time between two pieces of its text, each of one or a
few tokens (transformers' streamer waits for the end of a word). `CPU` is the CPU time of all processes of the server,
including the processes of Ray.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frame import Table, new_parser, progress
from benchmarks.load import one_of_each
from benchmarks.processes import AS_NICE_AS_OTHERS, cpu_seconds, family
from deployments.cli.load import Load, Report
from deployments.cli.load import run as put_load
from deployments.shipped import REPOSITORY
from tests.redis_server import free_port
from tests.vllm.server import wait_for

MODEL = REPOSITORY / "models" / "turnstile-tiny"
CPU_COLUMN = "CPU ms/request"


@dataclass(frozen=True)
class Target:
    """A running server.

    Attributes:
        name: Name for the table.
        url: Base URL.
        pid: ID of the server's first process, which is the ancestor of the other processes.
    """

    name: str
    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that all processes of the server have used so far."""
        return cpu_seconds(family(self.pid))


@contextlib.contextmanager
def turnstile(slots: int) -> Iterator[Target]:
    """Return a context manager that runs Turnstile.

    Args:
        slots: Maximum number of concurrent sequences.

    Yields:
        The server.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        one_of_each(f"file://{folder}", max_num_seqs=slots, max_model_len=512) as server,
    ):
        yield Target("Turnstile", server.url, server.process.pid)


@contextlib.contextmanager
def peer(name: str, *command: str) -> Iterator[Target]:
    """Return a context manager that runs another server, on one thread.

    Args:
        name: Name for the table.
        *command: Command line of the server, to which `--port N` is added. The server must serve `GET /health`.

    Yields:
        The server, which is ready.
    """
    port = free_port()
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen([*command, "--port", str(port)], env=one_thread, stderr=log) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(process, f"{url}/health", Path(log.name))
            yield Target(name, url, process.pid)
        finally:
            process.terminate()


def loads(options: argparse.Namespace) -> list[Load]:
    """Return the load of each row of the table.

    Args:
        options: Command line with `clients`, `shares` and `seconds`.

    Returns:
        One load per combination of clients and share. A share above 0 gives two loads: repeated and unique schemas.
    """
    return [
        Load(clients, share, unique, options.seconds, max_tokens=64)
        for clients, share in itertools.product(options.clients, options.shares)
        for unique in ((False, True) if share else (False,))
    ]


def measure(target: Target, load: Load) -> dict[str, str]:
    """Put a load on a server, and measure it.

    Args:
        target: The server.
        load: The load.

    Returns:
        Cells of the table, by column.
    """
    before = target.cpu_seconds()
    report = asyncio.run(put_load(target.url, load, tick=lambda: None))
    spent = target.cpu_seconds() - before
    cells = dict(zip(Report.COLUMNS, report.cells(), strict=True))
    cells[CPU_COLUMN] = f"{1000 * spent / report.requests:,.0f}" if report.requests else "-"
    return cells


def main() -> int:
    """Run the loads against three servers and print the table."""
    parser = new_parser(__doc__)
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
        print(f"Each cell: {' / '.join(target.name for target in targets)}.\n")
        table = Table("clients", "structured", "schemas", *columns)
        for load in progress(loads(options), "rows of the table"):
            found = [measure(target, load) for target in targets]
            schemas = ("unique" if load.unique else "known") if load.structured else ""
            cells = [" / ".join(cells[column] for cells in found) for column in columns]
            table.row(load.clients, f"{load.structured:.0%}", schemas, *cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())

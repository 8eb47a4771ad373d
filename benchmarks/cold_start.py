"""Measure the first and the second start of Turnstile on a machine: without and with cached kernels.

    python -m benchmarks.cold_start [--before FOLDER] [--only check,serve,import]

The program measures three starts: `turnstile check` of a schema; `turnstile serve` with the embedded model until it is
ready; and imports (the fastest of five). The first two are measured with an empty folder of compiled kernels, and again
with the kernels of the first run. Times are wall time, and CPU time of all processes. On a busy machine, only CPU times
are comparable. FOLDER is a checkout of another version, which is measured alternately in the same run.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.frame import Table, new_parser
from benchmarks.processes import cpu_seconds, family
from tests.redis_server import free_port

HERE = Path(__file__).resolve().parents[1]
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'
IMPORTS = ("import grammar_workers", "from grammar_workers import compile_grammar")
READY_S = 900


def environment(version: Path, kernels: Path) -> dict[str, str]:
    """Return the environment variables of a process that runs a given version of Turnstile.

    Args:
        version: Folder of the source tree.
        kernels: Folder in which the process caches compiled kernels.
    """
    return {**os.environ, "PYTHONPATH": str(version), "NUMBA_CACHE_DIR": str(kernels)}


def check(version: Path, kernels: Path) -> tuple[float, float]:
    """Measure a `turnstile check` of a small schema, from the start to the end of the process.

    Args:
        version: Folder of the source tree.
        kernels: Folder of compiled kernels.

    Returns:
        Wall seconds and CPU seconds.
    """
    command = [sys.executable, "-m", "deployments.cli", "check", "-", "--kind", "json_schema"]
    return _ended(command, version, kernels, SCHEMA)


def serve(version: Path, kernels: Path) -> tuple[float, float]:
    """Measure `turnstile serve` from the start of the process until the server is ready.

    Args:
        version: Folder of the source tree.
        kernels: Folder of compiled kernels.

    Returns:
        Wall seconds, and CPU seconds of all processes.

    Raises:
        SystemExit: The server was not ready within `READY_S` seconds.
    """
    options = ("--port", str(free_port()), "--deadline", str(READY_S))
    command = [sys.executable, "-m", "deployments.cli", "serve", *options]
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=version, env=environment(version, kernels), stdout=subprocess.PIPE, text=True
    ) as server:
        # It may also end without a line.
        timer = threading.Timer(READY_S, server.kill)
        timer.start()
        assert server.stdout is not None
        ready = any(line.endswith("  ready\n") for line in server.stdout)
        timer.cancel()
        if not ready:
            raise SystemExit(f"the server of {version} was not ready within {READY_S} s")
        seconds = time.perf_counter() - begun, cpu_seconds(family(server.pid))
        server.send_signal(signal.SIGINT)
        server.stdout.read()
    return seconds


def imported(statement: str, version: Path, kernels: Path) -> tuple[float, float]:
    """Measure an import statement in a new Python process. The time of an empty process is subtracted.

    Args:
        statement: Python statement.
        version: Folder of the source tree.
        kernels: Folder of compiled kernels.

    Returns:
        Wall seconds and CPU seconds: the fastest of five runs minus the fastest of five empty runs.
    """
    runs = [[_ended([sys.executable, "-c", code], version, kernels) for code in (statement, "pass")] for _ in range(5)]
    (wall, cpu), (nothing_wall, nothing_cpu) = (map(min, zip(*each, strict=True)) for each in zip(*runs, strict=True))
    return wall - nothing_wall, cpu - nothing_cpu


def _ended(command: list[str], version: Path, kernels: Path, written: str = "") -> tuple[float, float]:
    before = os.times()
    begun = time.perf_counter()
    subprocess.run(
        command,
        cwd=version,
        env=environment(version, kernels),
        input=written,
        text=True,
        check=True,
        capture_output=True,
    )
    wall, after = time.perf_counter() - begun, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used


def main() -> None:
    """Parse the command line and print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of another version")
    parser.add_argument("--only", default="check,serve,import")
    arguments = parser.parse_args()
    versions = {"before": arguments.before.resolve()} if arguments.before else {}
    versions["this version"] = HERE
    table = Table("start", "kernels cached", "version", "wall s", "CPU s")

    def row(start: str, cached: str, version: str, seconds: tuple[float, float]) -> None:
        table.row(f"`{start}`", cached, version, *(f"{each:.2f}" for each in seconds))

    starts = {"check": check, "serve": serve}
    for name in [name for name in starts if name in arguments.only]:
        with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
            for cached, (version, root) in itertools.product(("no", "yes"), versions.items()):
                row(f"turnstile {name}", cached, version, starts[name](root, Path(folder, version.replace(" ", "-"))))
    with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
        statements = IMPORTS if "import" in arguments.only else ()
        for statement, (version, root) in itertools.product(statements, versions.items()):
            row(statement, "-", version, imported(statement, root, Path(folder)))


if __name__ == "__main__":
    main()

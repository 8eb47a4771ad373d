"""How long the first and the second start on a machine take: kernels in no cache, and in one.

    python -m benchmarks.cold_start [--before FOLDER] [--only check,serve,import]

`turnstile check` of a schema and `turnstile serve` (the embedded model) until it is ready, each with an empty folder
for kernels and once more with what the first one left there; and imports, the fastest of five. Wall time, and CPU time
of all processes: on a machine where others work, only the latter tells versions apart. FOLDER is a checkout of another
version, measured by turns in the same run. Ports are chosen by the system.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.processes import cpu_seconds, family

HERE = Path(__file__).resolve().parents[1]
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'
IMPORTS = ("import grammar_workers", "from grammar_workers import compile_grammar")
READY_S = 900


def environment(version: Path, kernels: Path) -> dict[str, str]:
    """That of a process which runs `version`, and keeps kernels in a folder of its own."""
    return {**os.environ, "PYTHONPATH": str(version), "NUMBA_CACHE_DIR": str(kernels)}


def check(version: Path, kernels: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a whole `turnstile check`."""
    command = [sys.executable, "-m", "deployments.cli", "check", "-", "--kind", "json_schema"]
    return _ended(command, version, kernels, SCHEMA)


def serve(version: Path, kernels: Path) -> tuple[float, float]:
    """Wall and CPU seconds of `turnstile serve` until it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "deployments.cli", "serve", "--port", str(port), "--deadline", str(READY_S)]
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
    """Wall and CPU seconds of a process that runs `statement`, less those of one that does nothing; fastest of five."""
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
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wall, after = time.perf_counter() - begun, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of another version")
    parser.add_argument("--only", default="check,serve,import")
    arguments = parser.parse_args()
    versions = {"before": arguments.before.resolve()} if arguments.before else {}
    versions["this version"] = HERE
    print("| start | kernels cached | version | wall s | CPU s |\n|---|---|---|---|---|", flush=True)

    def row(start: str, cached: str, version: str, measure: Callable[[], tuple[float, float]]) -> None:
        wall, cpu = measure()
        print(f"| `{start}` | {cached} | {version} | {wall:.2f} | {cpu:.2f} |", flush=True)

    for name, start in (("check", check), ("serve", serve)):
        if name not in arguments.only:
            continue
        with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
            for cached in ("no", "yes"):
                for version, root in versions.items():
                    kernels = Path(folder, version.replace(" ", "-"))
                    row(f"turnstile {name}", cached, version, lambda s=start, r=root, k=kernels: s(r, k))  # type: ignore[misc]
    if "import" in arguments.only:
        with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
            for statement in IMPORTS:
                for version, root in versions.items():
                    row(statement, "-", version, lambda s=statement, r=root: imported(s, r, Path(folder)))  # type: ignore[misc]


if __name__ == "__main__":
    main()

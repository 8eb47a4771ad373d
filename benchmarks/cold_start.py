"""Measure the first and the second start of Turnstile on a machine: without and with cached kernels.

    python -m benchmarks.cold_start [--installed PYTHON] [--before FOLDER] [--only check,mask,serve,import]

The program measures four starts: `turnstile check` of a schema; the first mask of the Python API; `turnstile serve`
with the embedded model until it is ready; and imports (the fastest of five). The first three are measured with an empty
folder of compiled kernels, and again with the kernels of the first run. Times are wall time, and CPU time of all
processes. On a busy machine, only CPU times are comparable. PYTHON is the Python of an environment in which a wheel is
installed; FOLDER is a checkout of another version. Both are measured alternately with this version in the same run.
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
from typing import NamedTuple

from benchmarks.frame import Table, new_parser
from benchmarks.processes import cpu_seconds, family
from tests.redis_server import free_port

HERE = Path(__file__).resolve().parents[1]
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'
MASK = f"""
import numpy
from turnstile_llm import Vocabulary, compile
vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [256])
bitmask = numpy.zeros((1, vocabulary.bitmask_width), dtype=numpy.int32)
compile({SCHEMA}, vocabulary).matcher().fill_bitmask(bitmask)
"""
IMPORTS = ("import grammar_workers", "from grammar_workers import compile_grammar")
READY_S = 900


class Version(NamedTuple):
    """A version of Turnstile.

    Attributes:
        folder: Folder of the source tree; of an installed wheel, any folder without modules of Turnstile.
        python: Program of the Python interpreter.
    """

    folder: Path
    python: str = sys.executable


def environment(version: Version, kernels: Path) -> dict[str, str]:
    """Return the environment variables of a process that runs a given version of Turnstile.

    Args:
        version: The version.
        kernels: Folder in which the process caches compiled kernels.
    """
    return {**os.environ, "PYTHONPATH": str(version.folder), "NUMBA_CACHE_DIR": str(kernels)}


def check(version: Version, kernels: Path) -> tuple[float, float]:
    """Measure a `turnstile check` of a small schema, from the start to the end of the process.

    Args:
        version: The version.
        kernels: Folder of compiled kernels.

    Returns:
        Wall seconds and CPU seconds.
    """
    command = [version.python, "-m", "deployments.cli", "check", "-", "--kind", "json_schema"]
    return _ended(command, version, kernels, SCHEMA)


def mask(version: Version, kernels: Path) -> tuple[float, float]:
    """Measure a program that imports `turnstile_llm`, compiles a small schema and computes its first mask.

    Args:
        version: The version.
        kernels: Folder of compiled kernels.

    Returns:
        Wall seconds and CPU seconds, from the start to the end of the process.
    """
    return _ended([version.python, "-c", MASK], version, kernels)


def serve(version: Version, kernels: Path) -> tuple[float, float]:
    """Measure `turnstile serve` from the start of the process until the server is ready.

    Args:
        version: The version.
        kernels: Folder of compiled kernels.

    Returns:
        Wall seconds, and CPU seconds of all processes.

    Raises:
        SystemExit: The server was not ready within `READY_S` seconds.
    """
    options = ("--port", str(free_port()), "--deadline", str(READY_S))
    command = [version.python, "-m", "deployments.cli", "serve", *options]
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=version.folder, env=environment(version, kernels), stdout=subprocess.PIPE, text=True
    ) as server:
        # It may also end without a line.
        timer = threading.Timer(READY_S, server.kill)
        timer.start()
        assert server.stdout is not None
        ready = any(line.endswith("  ready\n") for line in server.stdout)
        timer.cancel()
        if not ready:
            raise SystemExit(f"the server of {version.folder} was not ready within {READY_S} s")
        seconds = time.perf_counter() - begun, cpu_seconds(family(server.pid))
        server.send_signal(signal.SIGINT)
        server.stdout.read()
    return seconds


def imported(statement: str, version: Version, kernels: Path) -> tuple[float, float]:
    """Measure an import statement in a new Python process. The time of an empty process is subtracted.

    Args:
        statement: Python statement.
        version: The version.
        kernels: Folder of compiled kernels.

    Returns:
        Wall seconds and CPU seconds: the fastest of five runs minus the fastest of five empty runs.
    """
    runs = [[_ended([version.python, "-c", code], version, kernels) for code in (statement, "pass")] for _ in range(5)]
    (wall, cpu), (nothing_wall, nothing_cpu) = (map(min, zip(*each, strict=True)) for each in zip(*runs, strict=True))
    return wall - nothing_wall, cpu - nothing_cpu


def _ended(command: list[str], version: Version, kernels: Path, written: str = "") -> tuple[float, float]:
    before = os.times()
    begun = time.perf_counter()
    subprocess.run(
        command,
        cwd=version.folder,
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
    parser.add_argument("--installed", metavar="PYTHON", help="the Python of an environment with an installed wheel")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="a checkout of another version")
    parser.add_argument("--only", default="check,mask,serve,import")
    arguments = parser.parse_args()
    versions = {"before": Version(arguments.before.resolve())} if arguments.before else {}
    versions["this version"] = Version(HERE)
    if arguments.installed:
        versions["wheel"] = Version(Path(arguments.installed).parent, arguments.installed)
    table = Table("start", "kernels cached", "version", "wall s", "CPU s")

    def row(start: str, cached: str, version: str, seconds: tuple[float, float]) -> None:
        table.row(start, cached, version, *(f"{each:.2f}" for each in seconds))

    starts = {"`turnstile check`": check, "first mask of `turnstile_llm`": mask, "`turnstile serve` until ready": serve}
    for start, measure in starts.items():
        if measure.__name__ not in arguments.only:
            continue
        with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
            for cached, (name, version) in itertools.product(("no", "yes"), versions.items()):
                row(start, cached, name, measure(version, Path(folder, name.replace(" ", "-"))))
    with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
        statements = IMPORTS if "import" in arguments.only else ()
        for statement, (name, version) in itertools.product(statements, versions.items()):
            row(f"`{statement}`", "-", name, imported(statement, version, Path(folder)))


if __name__ == "__main__":
    main()

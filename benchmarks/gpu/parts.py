"""Parts of `benchmarks.gpu`. Each part runs in its own process, because it may crash or take too long."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import checks, figures
from benchmarks.gpu.figures import Settings
from benchmarks.gpu.models import named_vocabulary
from benchmarks.gpu.report import Document
from benchmarks.gpu.trace import traces

# Exit status of a part that ran to its end and found a difference; a crash gives 1.
DIFFERS = 3


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the program.

    Attributes:
        name: Name for the option `--part` and for the table.
        run: Function that runs the part. It takes the settings and the number of requests, and yields results.
        on_gpu: True if the part needs a GPU.
    """

    name: str
    run: Callable[[Settings, int], Iterator[Any]]
    on_gpu: bool = False


def parts(vocabularies: list[str]) -> list[Part]:
    """Return all parts in their order: correctness, then the trace, then the steps of each vocabulary.

    Args:
        vocabularies: Names of vocabularies. The trace uses the last one.
    """

    def steps(how: str) -> Callable[[Settings, int], Iterator[Any]]:
        return lambda settings, _: iter([checks.static_steps(settings.device, how)])

    def figures_of(name: str) -> Callable[[Settings, int], Iterator[Any]]:
        return lambda settings, _: figures.measure(settings, named_vocabulary(name))

    return [
        Part("kernel", lambda settings, _: iter([checks.masks(settings.device)])),
        Part("tokens in float64", lambda settings, many: checks.tokens(settings.device, many, torch.float64)),
        Part("tokens in float32", lambda settings, many: checks.tokens(settings.device, many, torch.float32)),
        Part("CUDA graphs", steps("cuda_graph"), on_gpu=True),
        Part("compiled steps", steps("compile")),
        Part("trace", lambda settings, _: traces(settings, named_vocabulary(vocabularies[-1]), settings.traced_rows)),
        *(Part(f"steps of {name}", figures_of(name)) for name in vocabularies),
    ]


def run_apart(part: Part, command_line: list[str], file: Path, limit_s: float) -> None:
    """Run `part` in its own process, as `python -m benchmarks.gpu --part NAME`, and merge its results into `file`.

    Results that were written before a timeout or crash are kept.

    Args:
        part: Part to run.
        command_line: Command line of the whole program. The part gets it with another `--output`.
        file: JSON file of the whole program. The part writes its own file, which is merged and then removed.
        limit_s: Seconds after which the part is killed.
    """
    own = file.with_suffix(".part.json")
    own.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", *command_line, "--part", part.name, "--output", str(own)]
    began = time.monotonic()
    try:
        status = subprocess.run(command, timeout=limit_s, check=False).returncode
        state = "done" if status in (0, DIFFERS) else f"ended with status {status}"
    except subprocess.TimeoutExpired:
        state = f"took more than {limit_s:.0f} s"
    document = Document.read(file)
    document.take(part.name, Document.read(own), state, time.monotonic() - began)
    document.write(file)
    own.unlink(missing_ok=True)
    print(f"{part.name}: {state} in {time.monotonic() - began:.0f} s", flush=True)

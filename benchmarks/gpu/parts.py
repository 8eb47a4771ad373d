"""The parts of the first hour on a GPU, each in a process of its own, which may crash or take too long."""

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

DIFFERS = 3
"""Status of a part that has run to its end and found a difference; a crash gives 1."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part. `run` yields what a `Document` keeps; `on_gpu`: it needs one."""

    name: str
    run: Callable[[Settings, int], Iterator[Any]]
    on_gpu: bool = False


def parts(vocabularies: list[str]) -> list[Part]:
    """All of them in their order, correctness first; steps of each of `vocabularies`."""
    return [
        Part("kernel", lambda settings, _: iter([checks.masks(settings.device)])),
        Part("tokens in float64", lambda settings, many: checks.tokens(settings.device, many, torch.float64)),
        Part("tokens in float32", lambda settings, many: checks.tokens(settings.device, many, torch.float32)),
        Part(
            "CUDA graphs", lambda settings, _: iter([checks.static_steps(settings.device, "cuda_graph")]), on_gpu=True
        ),
        Part("compiled steps", lambda settings, _: iter([checks.static_steps(settings.device, "compile")])),
        Part("trace", lambda settings, _: traces(settings, named_vocabulary(vocabularies[-1]), settings.traced_rows)),
        *(Part(f"steps of {name}", _steps(name)) for name in vocabularies),
    ]


def _steps(vocabulary: str) -> Callable[[Settings, int], Iterator[Any]]:
    return lambda settings, _: figures.measure(settings, named_vocabulary(vocabulary))


def run_apart(part: Part, command_line: list[str], file: Path, limit_s: float) -> None:
    """Runs `part` as `python -m benchmarks.gpu --part NAME` for at most `limit_s`; its lines are printed as they come.

    What it has written to its own file until then is taken over into the document in `file`. `command_line` is
    that of the whole program: of two `--output` the last one counts.
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

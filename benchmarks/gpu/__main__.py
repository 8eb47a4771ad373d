"""Do masks on a GPU cost nothing, and are they right? Correctness first, then what a decode step costs.

    python -m benchmarks.gpu [--output FILE.json]
    python -m benchmarks.gpu --device cpu --size toy       the same on a CPU, small, in seconds

One command on a machine with a GPU, PyTorch from 2.11 and transformers from 5.17, in less than eight minutes; neither
Ray nor a network. It runs from the source tree, whatever else is installed.

Correctness: masked logits bit for bit against numpy; the same tokens on a CPU and by every way that a step can run on
the device. Figures: a Llama with random weights in bfloat16 and vocabularies of 32k and 131k, ms of a decode step at
1, 8, 32 and 128 rows, unguided and guided, drawn by the host and by the device, with drafts and without; which share
of a step masks and sampling are; bytes copied. Where memory is short the model has a smaller shape, and the first line
says so. What the time is too short for is left out, and the last line says so. Status 1: something differs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from benchmarks.gpu import report
from benchmarks.gpu.checks import Check, checks
from benchmarks.gpu.figures import WAYS, Draws, Settings, Step, measure
from benchmarks.gpu.models import SHAPES, VOCABULARIES, largest_fitting, named_vocabulary

_TOY_VOCABULARIES = ["1k", "4k"]


def main(command_line: list[str] | None = None) -> int:
    arguments = _parser().parse_args(command_line)
    device = torch.device(arguments.device)
    toy = arguments.size == "toy"
    names = arguments.vocabularies or (_TOY_VOCABULARIES if toy else ["32k", "131k"])
    rows = arguments.rows or ([1, 4] if toy else [1, 8, 32, 128])
    deadline = time.monotonic() + 60 * arguments.minutes
    settings = Settings(
        device=device,
        shape=_shape(arguments.size, device, names, rows, arguments.prompt + arguments.tokens),
        dtype=torch.float32 if toy else torch.bfloat16,
        rows=rows,
        tokens=arguments.tokens,
        prompt=arguments.prompt,
        deadline=deadline,
        sample_s=0.02 if toy else 0.3,
    )
    document = {"machine": report.machine(device), "shape": settings.shape, "dtype": str(settings.dtype)}
    print(", ".join(f"{name} {value}" for name, value in document["machine"].items()))
    if settings.shape not in ("8b", "toy"):
        print(f"memory is short: a Llama of {settings.shape} shape in place of 8b")
    done: list[Check | Step | Draws] = []

    def keep(one: Check | Step | Draws, line: str) -> None:
        done.append(one)
        print(line, flush=True)
        if arguments.output is not None:
            report.write(arguments.output, document, done)

    for check in checks(device, arguments.requests):
        keep(check, report.check_line(check))
    vocabularies = [named_vocabulary(name) for name in names]
    print(f"Llama {settings.shape}, {settings.dtype}; vocabularies: {', '.join(one.source for one in vocabularies)}")
    print(report.HEADER)
    for one in measure(settings, vocabularies):
        keep(one, report.line(one, done))
    cells = sum(isinstance(one, Step) for one in done)
    if cells < (expected := len(names) * len(rows) * len(WAYS)):
        print(f"out of time: {expected - cells} of {expected} cells are missing (--minutes)")
    return int(any(isinstance(one, Check) and one.differing for one in done))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="as PyTorch names it; cpu for the toy size")
    parser.add_argument("--size", choices=["auto", *SHAPES], default="auto", help="auto: 8b where it fits")
    parser.add_argument("--vocabularies", nargs="+", choices=VOCABULARIES)
    parser.add_argument("--rows", type=int, nargs="+", help="sequences in a batch")
    parser.add_argument("--tokens", type=int, default=64, help="of an output")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--requests", type=int, default=24, help="for each way to run a step that is compared")
    parser.add_argument("--minutes", type=float, default=7.5, help="after them no further cell begins")
    parser.add_argument("--output", type=Path, help="a JSON file, written after each line")
    return parser


def _shape(size: str, device: torch.device, vocabularies: list[str], rows: list[int], length: int) -> str:
    if size != "auto":
        return size
    free, _ = torch.cuda.mem_get_info(device)
    return largest_fitting(131_072 if "131k" in vocabularies else 32_768, max(rows), length, free)


if __name__ == "__main__":
    raise SystemExit(main())

"""Check that masks on a GPU are right, and measure their cost: one command for the first hour on a GPU.

    python -m benchmarks.gpu --output FILE.json
    python -m benchmarks.gpu --output FILE.json --device cpu --size toy       small test on a CPU, takes a minute

The command needs a machine with a GPU, PyTorch 2.11 or later and transformers 5.17 or later, but neither Ray nor a
network. It runs from the source tree. Its parts run one after another, each in its own process and for at most
`--part-minutes`. Results are written to FILE immediately. If you repeat the command, finished parts are skipped, and
parts that crashed or timed out run again. No part begins after `--minutes`, so that the command fits a machine that is
available for ten minutes.

1. Correctness. Masked logits are compared bit for bit with numpy. For every kind of decode step, tokens are compared
   with the tokens of a CPU. Captured and compiled steps are compared with steps that run operation by operation.
2. A trace: time per phase of the host and per kernel of the device, and the source locations where the host waits.
3. Times of a Llama with random weights in bfloat16 and vocabularies of 32k and 131k tokens: ms per decode step with 1,
   8, 32 and 128 sequences, unguided and guided, sampled by the host and by the device, with and without drafts; the
   share of masks and sampling in a step; copied bytes. If the GPU memory is too small, a smaller model is used.

The exit status is 1 if results differ, and 2 if a part is missing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks.frame import new_parser
from benchmarks.gpu import report
from benchmarks.gpu.figures import WAYS, Settings, Step
from benchmarks.gpu.models import SHAPES, VOCABULARIES, largest_fitting
from benchmarks.gpu.parts import DIFFERS, Part, parts, run_apart
from benchmarks.gpu.report import Document

_TOY_VOCABULARIES = ["1k", "4k"]


def main(command_line: list[str] | None = None) -> int:
    """Run the parts that are not finished, and print the table.

    Args:
        command_line: Arguments of the command line; None: those of the process.

    Returns:
        Exit status: 1 if results differ, 2 if a part is missing, otherwise 0. If `--part` runs one part: `DIFFERS` if
        results differ.
    """
    arguments = _parser().parse_args(command_line)
    toy, device = arguments.size == "toy", torch.device(arguments.device)
    names = arguments.vocabularies or (_TOY_VOCABULARIES if toy else ["32k", "131k"])
    every = [part for part in parts(names) if device.type == "cuda" or not part.on_gpu]
    if arguments.part is not None:
        (part,) = [part for part in every if part.name == arguments.part]
        return _run(part, arguments, device, names)
    deadline = time.monotonic() + 60 * arguments.minutes
    passed_on = sys.argv[1:] if command_line is None else command_line
    for part in every:
        known = Document.read(arguments.output).states.get(part.name, ["missing"])
        if known[0] == "done" or time.monotonic() > deadline:
            continue
        run_apart(part, passed_on, arguments.output, 60 * arguments.part_minutes)
    document = Document.read(arguments.output)
    print(document.table())
    missing = [part.name for part in every if document.states.get(part.name, ["missing"])[0] != "done"]
    if missing:
        print(f"missing: {', '.join(missing)}; the same command again goes on with them")
    return 1 if document.differing else 2 if missing else 0


def _run(part: Part, arguments: argparse.Namespace, device: torch.device, names: list[str]) -> int:
    """Run one part in this process."""
    toy = arguments.size == "toy"
    rows = arguments.rows or ([1, 4] if toy else [1, 8, 32, 128])
    settings = Settings(
        device=device,
        shape=_shape(arguments.size, device, names, rows, arguments.prompt + arguments.tokens),
        dtype=torch.float32 if toy else torch.bfloat16,
        rows=rows,
        tokens=arguments.tokens,
        prompt=arguments.prompt,
        sample_s=0.02 if toy else 0.3,
        ways=tuple(way for way in WAYS if way.draws_on in arguments.drawn_by),
    )
    document = Document(report.machine(device) | {"shape": settings.shape})
    found = document.entries[part.name] = []
    for one in part.run(settings, arguments.requests):
        if isinstance(one, Step) and not any(isinstance(other, Step) for other in found):
            print(report.HEADER)
        found.append(one)
        print(report.line(one, found), flush=True)
        document.write(arguments.output)
    return DIFFERS if document.differing else 0


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="a JSON file, written after each line")
    parser.add_argument("--device", default="cuda", help="as PyTorch names it; cpu for the toy size")
    parser.add_argument("--size", choices=["auto", *SHAPES], default="auto", help="auto: 8b where it fits")
    parser.add_argument("--vocabularies", nargs="+", choices=VOCABULARIES)
    parser.add_argument("--rows", type=int, nargs="+", help="sequences in a batch")
    parser.add_argument("--drawn-by", nargs="+", choices=["host", "device"], default=["host", "device"])
    parser.add_argument("--tokens", type=int, default=64, help="of an output")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--requests", type=int, default=16, help="for each way to run a step that is compared")
    parser.add_argument("--minutes", type=float, default=7.5, help="after them no further part begins")
    parser.add_argument("--part-minutes", type=float, default=4, help="of one part, at most")
    parser.add_argument("--part", help="this part alone, in this process")
    return parser


def _shape(size: str, device: torch.device, vocabularies: list[str], rows: list[int], length: int) -> str:
    if size != "auto":
        return size
    free, _ = torch.cuda.mem_get_info(device)
    return largest_fitting(131_072 if "131k" in vocabularies else 32_768, max(rows), length, free)


if __name__ == "__main__":
    raise SystemExit(main())

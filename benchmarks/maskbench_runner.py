"""Run MaskBench (guidance-ai/jsonschemabench), and write a folder of results that can be submitted to its authors.

    python -m benchmarks.maskbench_runner --data FOLDER --output OUT [--engine turnstile] [--sample N]

The folder OUT has the format of MaskBench's own runner, so MaskBench's script `maskbench_results.py` reads it:

    FILE.json   results of one schema: verdicts, time to compile, time of each mask
    meta.txt    versions, machine, vocabulary and limits, as JSON
    log.txt     schemas that ended their process, with its exit code, or -14 (time limit)

Texts are serialized and compared as MaskBench does: `json.dumps`, token by token, up to the first disallowed token.
There are three differences. The vocabulary is Tekken, with 131,072 tokens. A text counts as accepted only if it may
end. Processes have no memory limit. MaskBench's script divides by the number of masks that took 10 ms or more, so it
fails if there are none.

A run can be interrupted and started again with the same arguments: schemas with results are skipped. If a schema ends
the process, its results say so, and the next schema gets a new process.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import Child, ChildFailedError
from benchmarks.engines import ENGINES
from benchmarks.frame import add_sample, chosen, new_parser, progress
from benchmarks.maskbench import Outcome, serve
from benchmarks.maskbench_data import parse_with_data

# Options with which the engines read the separators of `json.dumps`.
OPTIONS = {"turnstile": {"whitespace": "flexible"}, "xgrammar": {"comparable": True}}


def as_maskbench(outcome: Outcome, tests: int) -> dict[str, Any]:
    """Return an outcome in the format of MaskBench's runner. Times are in whole microseconds.

    Args:
        outcome: Verdicts and times of one schema.
        tests: Number of instances of the schema.
    """
    masks, compiled = [wall // 1000 for _, wall in outcome.steps], outcome.compile[1] // 1000
    if masks:  # MaskBench computes the first mask in the first step
        masks[0] += (outcome.first_mask[1] - outcome.compile[1]) // 1000
    found = {
        "id": outcome.name,
        "num_tests": tests,
        "num_valid_tests": outcome.valid - len(outcome.rejected),
        "num_invalid_tests": outcome.invalid - len(outcome.accepted),
        "ttfm_us": compiled,
        "max_ttfm_us": compiled,
        "num_tokens": len(masks),
        "masks_us": sum(masks),
        "max_mask_us": max(masks, default=0),
        "all_mask_us": masks,
    }
    if outcome.refusal or outcome.crash:
        found["compile_error"] = outcome.refusal or outcome.crash
    wrong = [(number, "accept") for number, _ in outcome.rejected] + [(number, "reject") for number in outcome.accepted]
    for number, should in sorted(wrong):  # the last one counts
        found["validation_error"] = f"test #{number}: should {should} but didn't"
    return found


def meta(options: argparse.Namespace) -> dict[str, Any]:
    """Return the content of `meta.txt`: versions, machine, vocabulary and limits.

    Args:
        options: The command line.
    """
    module = "turnstile-llm" if options.engine == "turnstile" else options.engine
    versions = {name: importlib.metadata.version(name) for name in (module, "numpy")}
    cpu = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [platform.machine()]
    machine = {"cpu": cpu[0], "cores": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total}
    found = {"id": options.engine, "name": options.engine.capitalize(), "module": module, "cmd": sys.argv}
    versions |= {"python": sys.version, "platform": platform.platform()}
    found |= {"module_version": versions[module], "versions": versions, "machine": machine, "vocabulary": "tekken"}
    return {**found, "info": f"timeout {options.time_limit}s, 1 thread"}


def main() -> int:
    """Parse the command line, and run MaskBench."""
    parser = new_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--engine", choices=ENGINES, default="turnstile", help="default: turnstile")
    parser.add_argument("--time-limit", type=int, default=900, help="seconds for one schema (default 900)")
    add_sample(parser)
    options = parse_with_data(parser)
    options.output.mkdir(parents=True, exist_ok=True)
    described, file = meta(options), options.output / "meta.txt"
    if file.exists() and json.loads(file.read_bytes()) | {"cmd": sys.argv} != described:
        parser.error(f"{options.output} has results of another engine, version, machine or time limit")
    file.write_text(json.dumps(described, indent=2))
    todo = [path for path in chosen(options.data, options.sample) if not (options.output / path.name).exists()]
    worker = Child(serve, options.engine, OPTIONS.get(options.engine, {}), False, timeout_s=options.time_limit)
    with (options.output / "log.txt").open("a") as log:
        for path in progress(todo, "schemas"):
            try:
                found = as_maskbench(worker.ask(path), len(json.loads(path.read_bytes())["tests"]))
            except ChildFailedError as error:
                found = {"id": path.name, "crash": str(error)}  # MaskBench's script counts a crash without `num_tests`
                print(f"{path.name}: {error}\nExit code: {error.exit_code or -14}", file=log, flush=True)
            # An interruption leaves no half file.
            (options.output / "unfinished").write_text(json.dumps(found, indent=2))
            (options.output / "unfinished").replace(options.output / path.name)
    worker.close()
    print(f"{options.output}: {len(todo)} new results")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run MaskBench (guidance-ai/jsonschemabench), and write a folder of results that can be submitted to its authors.

    python -m benchmarks.maskbench_runner --data FOLDER --output OUT [--engine turnstile] [--sample N]

The folder OUT has the format of MaskBench's own runner, so MaskBench's script `maskbench_results.py` reads it:

    FILE.json   results of one schema: verdicts, time to compile, time of each mask
    meta.txt    versions, machine, vocabulary and limits, as JSON
    log.txt     schemas that ended their process, with MaskBench's exit codes: -14 (time limit), -6 (crash)

Texts are serialized and compared as MaskBench does: `json.dumps`, token by token, up to the first disallowed token.
There are two differences. The vocabulary is Tekken, with 131,072 tokens. A text counts as accepted only if it may end.

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

# Names of the distributions, and options with which the engines read the separators of `json.dumps`.
MODULES = {"turnstile": "turnstile-llm"}
OPTIONS = {"turnstile": {"whitespace": "flexible"}, "xgrammar": {"comparable": True}}


def as_maskbench(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome in the format of MaskBench's runner. Times are in whole microseconds.

    Args:
        outcome: Verdicts and times of one schema, without a crash.
    """
    masks, compiled = [wall // 1000 for _, wall in outcome.steps], outcome.compile[1] // 1000
    found = {
        "id": outcome.name,
        "num_tests": outcome.valid + outcome.invalid,
        "num_valid_tests": outcome.valid - len(outcome.rejected),
        "num_invalid_tests": outcome.invalid - len(outcome.accepted),
        "ttfm_us": compiled,
        "max_ttfm_us": compiled,
        "num_tokens": len(masks),
        "masks_us": sum(masks),
        "max_mask_us": max(masks, default=0),
        "all_mask_us": masks,
    }
    if outcome.refusal:
        found["compile_error"] = outcome.refusal
    for number, should in [(n, "accept") for n, _ in outcome.rejected] + [(n, "reject") for n in outcome.accepted]:
        found["validation_error"] = f"test #{number}: should {should} but didn't"
    return found


def meta(options: argparse.Namespace) -> dict[str, Any]:
    """Return the content of `meta.txt`: versions, machine, vocabulary and limits.

    Args:
        options: The command line.
    """
    module = MODULES.get(options.engine, options.engine)
    versions = {name: importlib.metadata.version(name) for name in (module, "numpy")}
    cpu = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [platform.machine()]
    machine = {"cpu": cpu[0], "cores": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total}
    found = {"id": options.engine, "name": options.engine.capitalize(), "module": module, "cmd": sys.argv}
    found |= {"module_version": versions[module], "versions": {**versions, "python": sys.version}}
    found |= {"info": f"timeout {options.time_limit}s, 1 thread", "vocabulary": "tekken", "machine": machine}
    return found | {"platform": platform.platform()}


def main() -> int:
    """Parse the command line, and run MaskBench."""
    parser = new_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--engine", choices=ENGINES, default="turnstile", help="default: turnstile")
    parser.add_argument("--time-limit", type=int, default=900, help="seconds for one schema (default 900)")
    add_sample(parser)
    options = parse_with_data(parser)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "meta.txt").write_text(json.dumps(meta(options), indent=2))
    todo = [path for path in chosen(options.data, options.sample) if not (options.output / path.name).exists()]
    worker = Child(serve, options.engine, OPTIONS.get(options.engine, {}), False, timeout_s=options.time_limit)
    with (options.output / "log.txt").open("a") as log:
        for path in progress(todo, "schemas"):
            try:
                outcome = worker.ask(path)
            except ChildFailedError as error:
                outcome = Outcome(path.name, crash=str(error))
                print(f"{path.name}: {error}\nExit code: {-14 if 'answer' in str(error) else -6}", file=log, flush=True)
            # Without `num_tests`, MaskBench's script counts a crash.
            found = {"id": path.name, "crash": outcome.crash} if outcome.crash else as_maskbench(outcome)
            # An interruption leaves no half file.
            (options.output / "unfinished").write_text(json.dumps(found, indent=2))
            (options.output / "unfinished").replace(options.output / path.name)
    worker.close()
    print(f"{options.output}: {len(todo)} new results")
    return 0


if __name__ == "__main__":
    sys.exit(main())

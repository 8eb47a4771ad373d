"""Compare the structured output backends of one vLLM: cost per decode step, and effect of uncached schemas on streams.

    .venv-vllm/bin/python -m benchmarks.vllm_backends [--vocabularies 32k 131k] [--rates 1 5 20]
    python -m benchmarks.vllm_backends --shape 8b --rows 1 8 32 128 --rates     on a GPU of 80 GB or more
    python -m benchmarks.vllm_backends --shape 8b --rates --engine-args '{"async_scheduling": true}'

The model is a Llama with random weights (4 layers, hidden size 256, float32, one thread) and the vocabularies of
Mistral's tokenizers. With `--shape 8b`, it has the shape of Llama 3 8B in bfloat16, vLLM makes the weights, and steps
run as CUDA graphs. Each engine then gets a fifth of the GPU's memory. The benchmark needs `make vllm`.

Steps. One engine for each backend, and one engine without a grammar (`unguided`), are loaded at the same time. They
generate bursts (batches) of 1, 8 and 32 sequences, one engine after another. Then all engines are started again,
because two engines of one kind differ by some percent for their whole lifetime. `over unguided` and `over best` are
medians of ratios of step times; the best is the fastest other backend. `fill` (write a mask) and `accept` (accept
tokens) are calls of the backend, `share` is the share of both calls in the time of a step, and `slowest` is the longest
`fill`. `apply` is the call of vLLM that applies the bitmask to the logits. On a CPU, vLLM turns off its asynchronous
scheduling, which delays sampling under masks.

Storm (only the first vocabulary). `vllm serve` runs sixteen streams under a regular expression over HTTP. Meanwhile,
other clients send requests under heavy schemas at a fixed rate: cached schemas (`known`), or a new schema in each
request (`unseen`). `gap` is the time between two events of a stream. Phases alternate, so that disturbances of the
machine affect all of them.

The exit status is 1 if Turnstile misses a target: `over best` is at most 1.02; `share` is at most 1 % at the largest
number of sequences; the p99 of the gaps under uncached schemas is at most 1.25 times the p99 under cached schemas; no
gap is longer than 300 ms; 95 % of the requests are answered before their phase ends.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.cold_storm import UNSEEN, Arm, arms_of, measure, over_known, show
from benchmarks.frame import Table, new_parser
from benchmarks.gpu.models import LLAMAS
from benchmarks.load import Measurements, quantile_ms
from benchmarks.vllm_engine import BACKENDS, CALLS, OURS, UNGUIDED, Burst, engines, vllm_name
from benchmarks.vllm_models import VOCABULARIES, save_random_llama
from tests.vllm.server import vllm_serve

ON_A_CPU: dict[str, Any] = {"dtype": "float32", "enforce_eager": True}
ON_A_GPU: dict[str, Any] = {"dtype": "bfloat16", "load_format": "dummy", "gpu_memory_utilization": 0.2}
MOST_OVER_BEST, MOST_SHARE, MOST_OVER_KNOWN, MOST_GAP_MS, LEAST_ANSWERED = 1.02, 0.01, 1.25, 300.0, 0.95
HEAVY_FIELDS = 4
STREAM_TOKENS = 700
DRAIN_S = 2.0

Bursts = dict[tuple[str, int], list[Burst]]


def measure_steps(backends: list[str], model: Path, options: argparse.Namespace, folder: Path) -> Bursts:
    """Measure the decode steps of all engines.

    Args:
        backends: Keys of `BACKENDS`. An engine without a grammar is measured, too.
        model: Folder of the model.
        options: Command line with `rows`, `starts`, `rounds`, `tokens` and `settings`.
        folder: Folder for the stores of compiled grammars.

    Returns:
        Bursts by (engine, number of sequences), over all starts and rounds.
    """
    names = [UNGUIDED, *backends]
    found: Bursts = {(name, rows): [] for name in names for rows in options.rows}
    for start in tqdm(range(options.starts), desc="starts", disable=None):
        with engines(random.sample(names, len(names)), model, folder / f"store{start}", options.settings) as running:
            for turn in range(options.rounds + 1):
                for rows in options.rows:
                    for name in random.sample(names, len(names)):
                        burst = running[name].burst(rows, options.tokens, 1000 * turn)
                        if turn:  # the first one meets states that nobody has been to
                            found[name, rows].append(burst)
    return found


def print_steps(found: Bursts, backends: list[str], vocabulary: str) -> bool:
    """Print the table of decode steps for one vocabulary.

    Args:
        found: Bursts from `measure_steps`.
        backends: Keys of `BACKENDS`, in the order of the rows.
        vocabulary: Key of `VOCABULARIES`.

    Returns:
        True if Turnstile meets its targets for steps.
    """
    print(f"\nSteps, {VOCABULARIES[vocabulary]:,} tokens\n")
    table = Table(
        *("rows", "backend", "ms per token", "over unguided", "over best", "fill us", "slowest us", "accept us"),
        *("share %", "apply us"),
    )
    good = True
    all_rows = sorted({rows for _, rows in found})
    for rows in all_rows:
        plain = _times(found[UNGUIDED, rows])
        table.row(rows, UNGUIDED, f"{statistics.median(plain):.2f}", "1.00", *[""] * 6)
        others = [_times(found[name, rows]) for name in backends if name != OURS]
        best = min(others, key=statistics.median, default=plain)
        for name in backends:
            bursts = found[name, rows]
            times, calls = _times(bursts), {kind: [c for b in bursts for c in b.seconds[kind]] for kind in CALLS}
            over_best, share = _ratio(times, best), statistics.median(_share(burst, rows) for burst in bursts)
            table.row(
                *(rows, name, f"{statistics.median(times):.2f}", f"{_ratio(times, plain):.3f}", f"{over_best:.3f}"),
                *(f"{_us(calls['fill']):.1f}", f"{max(calls['fill']) * 1e6:.0f}", f"{_us(calls['accept']):.1f}"),
                *(f"{100 * share:.2f}", f"{_us(calls['apply']):.0f}"),
            )
            if name == OURS:
                good &= over_best <= MOST_OVER_BEST and (rows < max(all_rows) or share <= MOST_SHARE)
    return good


def _times(bursts: list[Burst]) -> list[float]:
    return [burst.ms_per_token for burst in bursts]


def _ratio(times: list[float], others: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def _us(seconds: list[float]) -> float:
    return statistics.fmean(seconds) * 1e6


def _share(burst: Burst, rows: int) -> float:
    """Return the share of fill and accept in a step's time; each sequence needs both once per step."""
    calls = statistics.fmean(burst.seconds["fill"]) + statistics.fmean(burst.seconds["accept"])
    return rows * calls / (burst.ms_per_token / 1000)


def meets_targets(arms: dict[Arm, Measurements], rates: list[float]) -> bool:
    """Return whether the gaps and the responses under uncached schemas meet the targets.

    Args:
        arms: Measurements of each arm, for one backend.
        rates: Requests per second of the storms.
    """
    return all(
        over_known(arms, rate) <= MOST_OVER_KNOWN
        and quantile_ms(arms[UNSEEN, rate].gaps, 1) <= MOST_GAP_MS
        and len(arms[UNSEEN, rate].answers) >= LEAST_ANSWERED * arms[UNSEEN, rate].sent
        for rate in rates
    )


def measure_storms(
    backends: list[str], model: Path, options: argparse.Namespace, folder: Path
) -> dict[str, dict[Arm, Measurements]]:
    """Run `vllm serve` with each backend, one after another, under every arm of the storm.

    Args:
        backends: Keys of `BACKENDS`.
        model: Folder of the model.
        options: Command line with `rates`, `rounds`, `streams` and `seconds`.
        folder: Folder for the files of the servers.

    Returns:
        Measurements by backend and arm.
    """
    arms = arms_of(options.rates)
    numbers = itertools.count(1)
    results = {}
    with tqdm(total=len(backends) * len(arms) * options.rounds, desc="storms", disable=None) as progress:
        for name in backends:
            place = folder / name
            place.mkdir()
            serving = vllm_serve(
                place,
                ["--max-num-seqs", "32"],
                model=model,
                backend=vllm_name(name),
                TURNSTILE_VLLM=str(int(name == OURS)),
                OMP_NUM_THREADS="1",
            )
            sizes = {"fields": HEAVY_FIELDS, "stream_tokens": STREAM_TOKENS, "drain_s": DRAIN_S}
            with serving as url:
                results[name] = asyncio.run(measure(url, arms, options, numbers, progress, **sizes))
    return results


def main() -> int:
    """Measure steps and storms, and print the tables. Return 1 if Turnstile misses a target."""
    parser = new_parser(__doc__)
    choices = list(VOCABULARIES)
    parser.add_argument("--vocabularies", nargs="+", default=choices, choices=choices, help="of the model (both)")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=list(BACKENDS), help="(all)")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 32], help="of bursts; none: no steps (1 8 32)")
    parser.add_argument("--starts", type=int, default=3, help="of the engines of the steps (3)")
    parser.add_argument("--rounds", type=int, default=2, help="of bursts a start, and of the storm's phases (2)")
    parser.add_argument("--tokens", type=int, default=100, help="of each output of a burst (100)")
    parser.add_argument("--rates", nargs="*", type=float, default=[1, 5, 20], help="requests a second; none: no storm")
    parser.add_argument("--seconds", type=float, default=6, help="of one recording (6)")
    parser.add_argument("--streams", type=int, default=16, help="beside the storm (16)")
    parser.add_argument("--shape", choices=LLAMAS, help="on a GPU")
    parser.add_argument("--engine-args", type=json.loads, default={}, help="of the engines of the steps, as JSON")
    options = parser.parse_args()
    options.settings = {"max_num_seqs": max([32, *options.rows]), **(ON_A_GPU if options.shape else ON_A_CPU)}
    options.settings |= options.engine_args
    good = True
    with tempfile.TemporaryDirectory(prefix="vllm-") as temporary:
        folder = Path(temporary)
        models = {
            name: save_random_llama(folder / name, name, options.shape or "small") for name in options.vocabularies
        }
        for name, model in models.items() if options.rows else ():
            good &= print_steps(measure_steps(options.backends, model, options, folder), options.backends, name)
        if options.rates:
            print("\nStorm\n")
            storms = measure_storms(options.backends, next(iter(models.values())), options, folder)
            show(storms)
            good &= OURS not in storms or meets_targets(storms[OURS], options.rates)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())

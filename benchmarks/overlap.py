"""Does it pay to work on the host while the model runs? Steps per second with overlap over without.

    python -m benchmarks.overlap --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). The model is that of `guided_overhead`, answers
are replayed under their grammars. Runs alternate; the ratio of the medians is printed, by wall time and by CPU time of
the process. `--device cuda` measures a GPU: there the model's work costs no CPU, and host work disappears behind it.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.instances import load_instances
from benchmarks.maskbench_data import parse_with_data
from benchmarks.replay import MAX_LENGTH, PROMPT, ReplayEngine, random_llama
from benchmarks.vocabularies import named_encoder, named_vocabulary
from gpu_workers.config import EngineConfig


def measure(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    vocabulary, spell = named_vocabulary(arguments.vocabulary), named_encoder(arguments.vocabulary)
    found = load_instances(arguments.data, vocabulary, spell, per_family=arguments.instances)
    chosen = [one for one in found if 16 <= len(one.token_ids) <= MAX_LENGTH - len(PROMPT) - 16]
    print(f"{'rows':>4} {'ms a step':>10} {'by wall time':>13} {'by CPU time':>12}")
    for rows in arguments.rows:
        instances = [chosen[i % len(chosen)] for i in range(rows)]
        common = {"slots": rows, "max_length": MAX_LENGTH, "step_tokens": rows * 16, "threads": 1}
        model = random_llama(vocabulary.size)
        engines = {
            overlap: ReplayEngine(
                model, vocabulary, spell, EngineConfig(**common, overlap=overlap, device=arguments.device)
            )
            for overlap in (False, True)
        }
        walls: dict[bool, list[float]] = {False: [], True: []}
        cpus: dict[bool, list[float]] = {False: [], True: []}
        for repeat in range(arguments.repeats + 1):  # the first warms up
            for overlap, engine in engines.items():
                before, started = engine.engine.statistics.steps, time.perf_counter()
                _, cpu = engine.run(instances, guided=True)
                if repeat:
                    steps = engine.engine.statistics.steps - before
                    walls[overlap].append((time.perf_counter() - started) / steps)
                    cpus[overlap].append(cpu / steps)
        for engine in engines.values():
            engine.close()
        wall, cpu = (statistics.median(seconds[False]) / statistics.median(seconds[True]) for seconds in (walls, cpus))
        print(f"{rows:4} {1000 * statistics.median(walls[False]):10.1f} {wall:13.2f} {cpu:12.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", default="sentencepiece", help="tekken, sentencepiece, or a model folder or id")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--instances", type=int, default=20, help="schemas per family to choose from")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each way after one that warms up")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parse_with_data(parser)
    measure(arguments)


if __name__ == "__main__":
    main()

"""How large is a stored automaton, how much cheaper is loading it than compiling it, and should rows be stored with it?

    python -m benchmarks.size_and_load --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT): `{"schema", "tests": [{"valid", "data"}]}`.
Every schema is compiled for the Tekken vocabulary, serialised and loaded again; then its valid instances are followed.
Storing the rows that they visit would save walking them, and cost their bytes and decompressing them. CPU times.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from tqdm import tqdm

from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import GrammarError, TokenFSM, Vocabulary, compile_grammar, warm_up, warm_up_formats

LABELS = (
    "compile, ms",
    "load, ms",
    "stored, KiB",
    "walk the rows of the instances, ms",
    "decompress these rows instead, ms",
    "stored rows, KiB",
)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """An automaton that was compiled, stored and loaded again, and the CPU seconds of the first and the last."""

    fsm: TokenFSM
    stored: bytes
    compile_s: float
    load_s: float


def compiled_and_loaded(specification: dict[str, Any], vocabulary: Vocabulary) -> Loaded | None:
    """None where the specification is refused."""
    begin = time.process_time()
    try:
        fsm = compile_grammar(specification, vocabulary)
    except GrammarError:
        return None
    compiled = time.process_time()
    stored = fsm.to_bytes()
    before = time.process_time()
    loaded = TokenFSM.from_bytes(stored, vocabulary)
    return Loaded(loaded, stored, compiled - begin, time.process_time() - before)


def measure(path: Path, vocabulary: Vocabulary) -> list[float] | None:
    """The figures of `LABELS` for one schema, None when it is refused or no instance visits a state."""
    case = json.loads(path.read_bytes())
    found = compiled_and_loaded({"type": "json_schema", "schema": case["schema"]}, vocabulary)
    if found is None:
        return None
    loaded = found.fsm
    states = {loaded.initial_state: None}
    for test in case["tests"]:
        state = loaded.initial_state
        for token in tekken_encoding().encode(json.dumps(test["data"], ensure_ascii=False), disallowed_special=()):
            state = loaded.next_state(state, token)
            if state < 0 or not test["valid"]:
                break
            states[state] = None
    start = time.process_time()
    rows = [loaded.allowed_mask(state) for state in states]
    walked = time.process_time()
    distinct = np.unique(np.stack(rows), axis=0)
    packed = zstandard.ZstdCompressor(level=3).compress(distinct.tobytes())
    unpack = time.process_time()
    zstandard.ZstdDecompressor().decompress(packed)
    unpacked = time.process_time()
    milliseconds = [found.compile_s, found.load_s, 0.0, walked - start, unpacked - unpack, 0.0]
    figures = [1e3 * seconds for seconds in milliseconds]
    figures[2], figures[5] = len(found.stored) / 1024, len(packed) / 1024
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=None, help="so many files, drawn by a fixed seed")
    arguments = parse_with_data(parser)
    paths = sorted(arguments.data.glob("*.json"))
    if arguments.sample is not None:
        paths = sorted(random.Random(0).sample(paths, min(arguments.sample, len(paths))))
    vocabulary = tekken_vocabulary()
    warm_up(vocabulary)
    warm_up_formats(vocabulary)
    measured = [measure(path, vocabulary) for path in tqdm(paths, unit="schema", smoothing=0.05)]
    figures = np.array([row for row in measured if row is not None])
    print(f"{len(figures)} schemas{'':<25}{'p50':>10}{'p90':>10}{'p99':>10}")
    for label, column in zip(LABELS, figures.T, strict=True):
        print(f"{label:<36}" + "".join(f"{figure:>10,.2f}" for figure in np.percentile(column, [50, 90, 99])))


if __name__ == "__main__":
    main()

"""Measure the size of stored automata, and compare the times to load and to compile them.

    python -m benchmarks.size_and_load --data FOLDER

FOLDER contains the files of MaskBench (guidance-ai/jsonschemabench, MIT). Every schema is compiled for the Tekken
vocabulary, serialized and loaded again. Times are CPU times.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from benchmarks.frame import Table, add_sample, chosen, new_parser, progress
from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import tekken_vocabulary
from grammar_workers import GrammarError, TokenFSM, Vocabulary, compile_grammar, warm_up, warm_up_formats

clock = time.process_time

# Label of a row of the table -> value.
Figures = dict[str, float]


def measure(path: Path, vocabulary: Vocabulary) -> Figures | None:
    """Compile, serialize and load one schema.

    Args:
        path: A MaskBench file.
        vocabulary: Vocabulary of the automaton.

    Returns:
        Figures by label of the row: CPU times in ms and size in KiB. None if the schema is rejected.
    """
    case = json.loads(path.read_bytes())
    begin = clock()
    try:
        fsm = compile_grammar({"type": "json_schema", "schema": case["schema"]}, vocabulary)
    except GrammarError:
        return None
    compiled = clock()
    stored = fsm.to_bytes()
    before = clock()
    TokenFSM.from_bytes(stored, vocabulary)
    loaded = clock()
    return {
        "compile, ms": 1e3 * (compiled - begin),
        "load, ms": 1e3 * (loaded - before),
        "stored, KiB": len(stored) / 1024,
    }


def main() -> None:
    """Parse the command line and print the table."""
    parser = new_parser(__doc__)
    add_sample(parser)
    arguments = parse_with_data(parser)
    vocabulary = tekken_vocabulary()
    warm_up(vocabulary)
    warm_up_formats(vocabulary)
    paths = progress(chosen(arguments.data, arguments.sample), "schemas")
    measured = [found for path in paths if (found := measure(path, vocabulary)) is not None]
    table = Table(f"{len(measured)} schemas", "p50", "p90", "p99")
    for label in measured[0] if measured else ():
        quantiles = np.percentile([found[label] for found in measured], [50, 90, 99])
        table.row(label, *(f"{figure:,.2f}" for figure in quantiles))


if __name__ == "__main__":
    main()

"""How much of decoding under JSON Schemas needs no host: whose automata, and which steps, run on the device?

    python -m benchmarks.device_share --data FOLDER [--sample 200]

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT): `{"schema", "tests": [{"valid", "data"}]}`. Each
schema that compiles and has valid instances is exported as an engine exports it, within the share of its device memory
that one automaton may take, and its instances are followed token by token, over the Tekken vocabulary.

`whole`: all states of the automaton are on the device, which used to be the only way. `instances`: all states that
the schema's instances visit are, once they have been visited. Steps: which of the tokens are drawn on the device in the
`first` instance of a schema, in the `others` when that one has been seen, and `again` when all have.

Every step is taken on the device as well: states and packed mask rows must be the host's bit for bit. Exit status 1
where one is not, or where less than `--target` of the schemas run on the device.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from gpu_workers.config import EngineConfig
from gpu_workers.device_step.tables import LEFT, MOST_STATES, TableMemory
from grammar_workers import GrammarError, TokenFSM, compile_grammar, warm_up, warm_up_formats
from grammar_workers.matching.export import DeviceTables

BEFORE, BEFORE_BYTES = 512, 64 << 20

Steps = list[tuple[int, int]]
"""State and token of each step of an instance."""


def steps_of(fsm: TokenFSM, data: Any) -> Steps | None:
    """None where the automaton does not take the instance: its properties are in another order than declared."""
    state, steps = fsm.initial_state, []
    for token in tekken_encoding().encode(json.dumps(data, ensure_ascii=False), disallowed_special=()):
        following = fsm.next_state(state, token)
        if following < 0:
            return None
        steps.append((state, token))
        state = following
    return [*steps, (state, fsm.vocabulary.eos_token_ids[0])]


def differing(fsm: TokenFSM, memory: TableMemory, tables: DeviceTables, steps: Steps) -> int:
    """How many of the steps that are on the device have another mask row there, or lead elsewhere."""
    memory.clear()
    base = memory.place(tables)
    assert base is not None
    there = [step for step in steps if step[0] < tables.states]
    states, tokens = torch.tensor(there).unbind(1)
    rows = memory.rows[memory.places(states + base)].numpy().view(np.uint32)
    found = 0
    for (state, token), row, reached in zip(there, rows, memory.advance(states + base, tokens).tolist(), strict=True):
        following = fsm.next_state(state, token)
        expected = following + base if following < tables.states else LEFT
        found += reached != expected or not np.array_equal(row, fsm.allowed_mask(state))
    return found


def measure(path: Path, memory: TableMemory, counts: collections.Counter[str]) -> None:
    """Adds what one schema says to `counts`."""
    case = json.loads(path.read_bytes())
    try:
        fsm = compile_grammar({"type": "json_schema", "schema": case["schema"]}, tekken_vocabulary())
    except GrammarError:
        counts["refused"] += 1
        return

    def export(**limits: int) -> DeviceTables:
        tables = fsm.device_tables(**{"max_states": MOST_STATES, "max_bytes": memory.share, **limits})
        assert tables is not None
        return tables

    before = export(max_states=BEFORE, max_bytes=BEFORE_BYTES)
    began = time.perf_counter()
    tables = export()
    seconds = time.perf_counter() - began
    steps: Steps = []
    for data in (test["data"] for test in case["tests"] if test["valid"]):
        if (found := steps_of(fsm, data)) is None:
            continue
        part = "others" if steps else "first"
        counts[f"{part}, there"] += sum(state < tables.states for state, _ in found)
        counts[f"{part}, all"] += len(found)
        if not steps:
            tables = export()
        steps += found
    if not steps:
        counts["without instances"] += 1
        return
    tables = export()
    there = sum(state < tables.states for state, _ in steps)
    counts["again, there"] += there
    counts["again, all"] += len(steps)
    counts["differ"] += differing(fsm, memory, tables, steps)
    counts["schemas"] += 1
    counts["whole before"] += before.complete
    counts["whole"] += tables.complete
    counts["instances"] += there == len(steps)
    counts["states"] += tables.states
    counts["KiB"] += tables.nbytes >> 10
    counts["export ms"] += round(1000 * seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="so many files, drawn by a fixed seed (200)")
    parser.add_argument("--target", type=float, default=0.9, help="least share of schemas (0.9)")
    arguments = parse_with_data(parser)
    paths = sorted(arguments.data.glob("*.json"))
    paths = sorted(random.Random(0).sample(paths, min(arguments.sample, len(paths))))
    vocabulary = tekken_vocabulary()
    warm_up(vocabulary)
    warm_up_formats(vocabulary)
    nbytes = EngineConfig.model_fields["device_table_mb"].default << 20
    memory = TableMemory(vocabulary.size, nbytes, torch.device("cpu"))
    counts: collections.Counter[str] = collections.Counter()
    for path in tqdm(paths, unit="schema", smoothing=0.05):
        measure(path, memory, counts)
    many = counts["schemas"]
    print(f"{many} schemas, {counts['refused']} refused, {counts['without instances']} without instances to follow")
    for name in ("whole before", "whole", "instances"):
        print(f"{name:<14}{counts[name]:>6} schemas {counts[name] / many:>8.1%}")
    for name in ("first", "others", "again"):
        there, total = counts[f"{name}, there"], counts[f"{name}, all"]
        print(f"{name:<14}{there:>6} of {total} steps {there / max(1, total):>8.1%}")
    print(f"{counts['differ']} steps differ from the host's")
    print(f"an automaton: {counts['states'] / many:.0f} states, {counts['KiB'] / many:.0f} KiB at the end;", end=" ")
    print(f"{counts['export ms'] / many:.0f} ms to export at first")
    return int(counts["differ"] > 0 or counts["instances"] < arguments.target * many)


if __name__ == "__main__":
    sys.exit(main())

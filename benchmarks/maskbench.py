"""The MaskBench protocol: compile, and per token mask + check + advance; Turnstile beside its peers in the same run.

    python -m benchmarks.maskbench --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT): `{"schema", "tests": [{"valid", "data"}]}`. Each
engine runs in a process of its own, one schema after the other on one thread. An instance is written by `json.dumps`
(not escaping non-ASCII), tokenised as a model would see it, and followed token by token; at its end the engine is asked
whether the text may stop. A schema passes when every verdict is right.

Cold: from the schema to the first mask, and every step with whatever an engine does on first visits. Warm (Turnstile
only, in another process, so that all engines do the same work between two schemas of the cold run): the schema is
compiled, the automaton is loaded from its stored form, its rows are made ahead (`TokenFSM.fill_rows`), and it is
followed once; steps to places that nobody has been to are among these.

Times are CPU times of the whole process (`time.process_time_ns`, less what reading that clock costs), so that neither
other programs on the machine nor helper threads of an engine distort them. Each schema is compiled and followed three
times; a step costs the least of three.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.child import Child, ChildFailedError
from benchmarks.engines import ENGINES, RefusedError, Session, TurnstileSession, installed
from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import tekken_encoding
from grammar_workers import TokenFSM

TIMEOUT_S = 90
REPEATS = 3
"""How often a schema is compiled and its instances followed: a step costs the least of these, so that an interrupt on a
shared machine is not taken for a slow mask."""
clock = time.process_time_ns


@dataclasses.dataclass
class Outcome:
    """What one engine made of one schema. Times in nanoseconds."""

    name: str
    refusal: str = ""
    crash: str = ""
    valid: int = 0
    invalid: int = 0
    accepted: list[int] = dataclasses.field(default_factory=list)
    rejected: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    compile: int = 0
    first_mask: int = 0
    steps: list[int] = dataclasses.field(default_factory=list)
    peak_mib: float = 0.0
    remembers: bool = False
    """Whether masks depend on values that have been written (Turnstile alone)."""
    # Only where the automaton was loaded and its rows made ahead:
    load: int = 0
    fill: int = 0
    rows: int = 0

    @property
    def passes(self) -> bool:
        answered = not self.refusal and not self.crash and self.valid + self.invalid > 0
        return answered and not self.accepted and not self.rejected


# -- in the engine's process ---------------------------------------------------------------------------------------


def follow(session: Session, tokens: list[int], overhead: int, steps: list[int]) -> bool:
    """Whether the text of `tokens` is accepted; appends what each step cost."""
    session.begin()
    for token in tokens:
        begin = clock()
        row = session.mask()
        allowed = bool(int(row[token >> 5]) >> (token & 31) & 1) and session.advance(token)
        steps.append(max(clock() - begin - overhead, 0))
        if not allowed:
            return False
    return session.may_stop()


def measure(engine: Any, case: dict[str, Any], outcome: Outcome, overhead: int, warm: bool) -> None:
    texts = [json.dumps(test["data"], ensure_ascii=False) for test in case["tests"]]
    instances = [tekken_encoding().encode(text, disallowed_special=()) for text in texts]
    for repeat in range(REPEATS):
        session = started(engine, case["schema"], outcome if repeat == 0 else Outcome(outcome.name), warm)
        if session is None:
            return
        steps: list[int] = []
        verdicts = [follow(session, tokens, overhead, steps) for tokens in instances]
        outcome.steps = [min(pair) for pair in zip(outcome.steps, steps, strict=True)] if repeat else steps
    for number, (test, accepted) in enumerate(zip(case["tests"], verdicts, strict=True)):
        if test["valid"]:
            outcome.valid += 1
            if not accepted:
                outcome.rejected.append((number, session.explain(test["data"])))
        else:
            outcome.invalid += 1
            if accepted:
                outcome.accepted.append(number)


def started(engine: Any, schema: Any, outcome: Outcome, warm: bool) -> Session | None:
    """A session behind its first mask, or None where the schema is refused; what that cost is noted in `outcome`."""
    begin = clock()
    try:
        session = engine.compile(schema)
    except RefusedError as error:
        outcome.refusal = str(error)[:200]
        return None
    outcome.compile = clock() - begin
    outcome.remembers = isinstance(session, TurnstileSession) and session.fsm.remembers_values
    if warm:
        session = load_and_fill(session, schema, outcome)
        begin = clock()
    session.mask()
    outcome.first_mask = clock() - begin
    return session


def load_and_fill(session: TurnstileSession, schema: Any, outcome: Outcome) -> TurnstileSession:
    stored = session.fsm.to_bytes()
    begin = clock()
    loaded = TurnstileSession(TokenFSM.from_bytes(stored, session.fsm.vocabulary), schema)
    outcome.load = clock() - begin
    outcome.rows = loaded.fsm.fill_rows()
    outcome.fill = clock() - begin - outcome.load
    return loaded


def serve(name: str, options: dict[str, Any], warm: bool, connection: Connection) -> None:
    """Answer paths with outcomes, until None."""
    engine = ENGINES[name](options)
    samples = []
    for _ in range(1000):
        begin = clock()
        samples.append(clock() - begin)
    overhead = int(np.median(samples))
    connection.send(None)
    while (path := connection.recv()) is not None:
        outcome = Outcome(path.name)
        try:
            measure(engine, json.loads(path.read_bytes()), outcome, overhead, warm)
        except Exception as error:
            outcome.crash = repr(error)[:200]
        outcome.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        connection.send(outcome)


# -- in the main process -------------------------------------------------------------------------------------------


def run(name: str, options: dict[str, Any], paths: list[Path], *, warm: bool = False) -> list[Outcome]:
    """What an engine makes of all files."""
    child = Child(serve, name, options, warm, timeout_s=TIMEOUT_S)
    description = f"{name}, warm" if warm else name
    outcomes = []
    for path in tqdm(paths, desc=description, unit="schema", smoothing=0.05):
        try:
            outcomes.append(child.ask(path))
        except ChildFailedError as error:
            outcomes.append(Outcome(path.name, crash=str(error)))
    child.close()
    return outcomes


def percentiles(values: list[int], *, unit: float = 1e3) -> list[str]:
    """p50, p90, p99, p99.9, largest and mean of nanoseconds, in microseconds (or another unit)."""
    if not values:
        return ["-"] * 6
    array = np.array(values) / unit
    figures = [*np.percentile(array, [50, 90, 99, 99.9]), array.max(), array.mean()]
    return [f"{figure:,.1f}" if figure < 100 else f"{figure:,.0f}" for figure in figures]


def show(results: dict[str, list[Outcome]], warm: list[Outcome]) -> None:
    """The tables: verdicts by engine, then times by engine, and those of the warm run."""
    rows = {
        "schemas": lambda outcomes: len(outcomes),
        "refused": lambda outcomes: sum(bool(outcome.refusal) for outcome in outcomes),
        "crashed or timed out": lambda outcomes: sum(bool(outcome.crash) for outcome in outcomes),
        "compiled, with instances": lambda outcomes: sum(outcome.valid + outcome.invalid > 0 for outcome in outcomes),
        "PASSING": lambda outcomes: sum(outcome.passes for outcome in outcomes),
        "schemas wrongly accepting": lambda outcomes: sum(bool(outcome.accepted) for outcome in outcomes),
        "  instances accepted": lambda outcomes: sum(len(outcome.accepted) for outcome in outcomes),
        "schemas wrongly rejecting": lambda outcomes: sum(bool(outcome.rejected) for outcome in outcomes),
        "  instances rejected": lambda outcomes: sum(len(outcome.rejected) for outcome in outcomes),
        "tokens": lambda outcomes: sum(len(outcome.steps) for outcome in outcomes),
        "peak memory, MiB": lambda outcomes: round(max(outcome.peak_mib for outcome in outcomes)),
    }
    print(f"\n{'':<34}" + "".join(f"{name:>14}" for name in results))
    for label, count in rows.items():
        print(f"{label:<34}" + "".join(f"{count(outcomes):>14,}" for outcomes in results.values()))
    print(f"\n{'microseconds':<46}{'p50':>10}{'p90':>10}{'p99':>10}{'p99.9':>10}{'max':>12}{'mean':>10}")
    for name, outcomes in results.items():
        compiled = [outcome for outcome in outcomes if outcome.first_mask]
        show_times(
            f"{name}: ",
            {
                "first mask from the schema, cold": [outcome.first_mask for outcome in compiled],
                "  of which compilation": [outcome.compile for outcome in compiled],
                **step_times("cold", compiled),
            },
        )
    loaded = [outcome for outcome in warm if outcome.load]
    if loaded:
        show_times(
            "turnstile: ",
            {
                "load from the stored form": [outcome.load for outcome in loaded],
                "compile, and make all rows ahead": [outcome.compile + outcome.fill for outcome in loaded],
                "first mask, warm": [outcome.first_mask for outcome in loaded],
                **step_times("warm", loaded),
            },
        )


def step_times(state: str, outcomes: list[Outcome]) -> dict[str, list[int]]:
    """The steps, and where there are both those of automata that remember values and those of the others."""
    label = f"mask + check + advance, {state}"
    times = {label: [step for outcome in outcomes for step in outcome.steps]}
    if any(outcome.remembers for outcome in outcomes):
        for remembers, whose in ((False, "remember nothing"), (True, "remember values")):
            chosen = [outcome.steps for outcome in outcomes if outcome.remembers == remembers]
            times[f"  {len(chosen)} that {whose}"] = [step for steps in chosen for step in steps]
    return times


def show_times(prefix: str, times: dict[str, list[int]]) -> None:
    for label, values in times.items():
        p50, p90, p99, p999, most, mean = percentiles(values)
        print(f"{prefix + label:<46}{p50:>10}{p90:>10}{p99:>10}{p999:>10}{most:>12}{mean:>10}")


def show_lists(name: str, outcomes: list[Outcome], warm: list[Outcome], many: int) -> None:
    """Everything that is not as it should be, and what took longest."""
    slow = sorted(outcomes, key=lambda outcome: -outcome.first_mask)[:many]
    slow_steps = sorted(outcomes, key=lambda outcome: -max(outcome.steps, default=0))[:many]
    slow_warm = sorted(warm, key=lambda outcome: -max(outcome.steps, default=0))[:many]
    slow_rows = sorted(warm, key=lambda outcome: -outcome.fill)[:many]
    sections = {
        "valid, but rejected": [f"{o.name} #{number}: {why}" for o in outcomes for number, why in o.rejected],
        "invalid, but ACCEPTED": [f"{o.name} #{number}" for o in outcomes for number in o.accepted],
        "crashes and timeouts": [f"{o.name}: {o.crash}" for o in outcomes if o.crash],
        "refusals": [f"{o.name}: {o.refusal}" for o in outcomes if o.refusal],
        "slowest first masks": [f"{o.first_mask / 1e6:,.1f} ms  {o.name}" for o in slow],
        "slowest steps": [f"{max(o.steps, default=0) / 1e3:,.0f} us  {o.name}" for o in slow_steps],
        "slowest steps, warm": [f"{max(o.steps, default=0) / 1e3:,.0f} us  {o.name}" for o in slow_warm],
        "slowest rows ahead": [f"{o.fill / 1e6:,.1f} ms  {o.rows:,} rows  {o.name}" for o in slow_rows],
    }
    for title, lines in sections.items():
        if lines:
            print(f"\n{name}: {title}")
            print("\n".join(f"  {line}" for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all of them")
    parser.add_argument("--options", type=json.loads, default={}, help="GrammarOptions of Turnstile, as JSON")
    parser.add_argument("--limit", type=int, default=None, help="only the first so many files")
    parser.add_argument("--sample", type=int, default=None, help="so many files, drawn by a fixed seed")
    parser.add_argument("--slowest", type=int, default=5, help="how many of the slowest schemas to list (default 5)")
    arguments = parse_with_data(parser)
    paths = sorted(arguments.data.glob("*.json"))[: arguments.limit]
    if arguments.sample is not None:
        paths = sorted(random.Random(0).sample(paths, min(arguments.sample, len(paths))))
    results = {name: run(name, arguments.options, paths) for name in installed(arguments.engines)}
    warm = run("turnstile", arguments.options, paths, warm=True) if "turnstile" in results else []
    show(results, warm)
    if not warm:
        return 0
    show_lists("turnstile", results["turnstile"], warm, arguments.slowest)
    return int(any(outcome.accepted or outcome.crash for outcome in [*results["turnstile"], *warm]))


if __name__ == "__main__":
    sys.exit(main())

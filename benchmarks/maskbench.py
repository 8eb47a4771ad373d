"""The MaskBench protocol (compile; mask, check and advance for each token) with Turnstile and other libraries.

    python -m benchmarks.maskbench --data FOLDER [--processes 3] [--only-figures]

FOLDER contains files of MaskBench (guidance-ai/jsonschemabench, MIT): `{"schema", "tests": [{"valid", "data"}]}`. Each
library runs in its own process, on one thread, after the same warm-up as in a compile worker. For each schema, all
libraries are measured before the next schema, so that a disturbance of the machine affects all of them. **Each schema
is compiled once and each instance is followed once**, because a second pass in the same process would reuse shared
tables of the first pass. With `--processes N`, everything is repeated in N new processes, and each figure is the median
of N.

An instance is serialized by `json.dumps` (without escapes of non-ASCII), tokenized by the tokenizer, and followed token
by token. At its end, the library reports if the text may end. A schema passes if every verdict is right.

Cold steps include all work that a library does when it visits a state for the first time. Warm steps are measured for
Turnstile only, in another process: the schema is compiled, the automaton is loaded from its serialized form, its masks
are prefetched (`TokenFSM.prefetch_masks`), and each instance is followed once.

There are two kinds of times: CPU time of the whole process, which includes helper threads but no other programs, and
wall time. The cost of reading the clocks is subtracted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
WARM = "turnstile, warm"
CLOCKS = ("CPU", "wall")
# Nanoseconds by each of `CLOCKS`.
Times = tuple[int, int]


@dataclasses.dataclass
class Outcome:
    """Verdicts and times of one library on one schema.

    Attributes:
        name: File name.
        refusal: Error of a rejected schema; empty if it compiled.
        crash: Error of a crash or timeout; empty if there was none.
        valid: Number of valid instances.
        invalid: Number of invalid instances.
        accepted: Indices of invalid instances that were accepted.
        rejected: Indices of valid instances that were rejected, each with the reason.
        compile: Time of the compilation. All times are pairs (CPU, wall) in nanoseconds.
        first_mask: Time of the first mask. Unless the run is warm, the compilation is included.
        steps: Time of each step: mask, check and advance.
        peak_mib: Peak memory of the process so far.
        remembers: True if masks depend on earlier values of the output (Turnstile only).
        load: Time to load the automaton in a warm run; otherwise zeros.
        fill: Time to prefetch the masks in a warm run; otherwise zeros.
        rows: Number of prefetched masks in a warm run; otherwise 0.
    """

    name: str
    refusal: str = ""
    crash: str = ""
    valid: int = 0
    invalid: int = 0
    accepted: list[int] = dataclasses.field(default_factory=list)
    rejected: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    compile: Times = (0, 0)
    first_mask: Times = (0, 0)
    steps: list[Times] = dataclasses.field(default_factory=list)
    peak_mib: float = 0.0
    remembers: bool = False
    load: Times = (0, 0)
    fill: Times = (0, 0)
    rows: int = 0

    @property
    def passes(self) -> bool:
        """True if the schema has compiled, has instances, and every verdict is right."""
        answered = not self.refusal and not self.crash and self.valid + self.invalid > 0
        return answered and not self.accepted and not self.rejected


# -- in the library's process --------------------------------------------------------------------------------------


class Stopwatch:
    """Measures CPU time and wall time between `start` and `stop`. The cost of reading the clocks is subtracted."""

    def __init__(self) -> None:
        self._overhead = (0, 0)
        samples = []
        for _ in range(1000):
            self.start()
            samples.append(self.stop())
        cpu, wall = np.median(samples, axis=0)
        self._overhead = (int(cpu), int(wall))

    def start(self) -> None:
        """Begin a measurement."""
        self._wall = time.perf_counter_ns()
        self._cpu = time.process_time_ns()

    def stop(self) -> Times:
        """Return the time since `start`: CPU and wall nanoseconds, at least 0."""
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        return max(cpu - self._cpu - self._overhead[0], 0), max(wall - self._wall - self._overhead[1], 0)


def follow(session: Session, tokens: list[int], watch: Stopwatch, steps: list[int]) -> bool:
    """Follow one instance token by token, and measure each step.

    Args:
        session: Session of the library. It is reset first.
        tokens: Tokens of the instance.
        watch: Stopwatch.
        steps: List to which the CPU time and the wall time of each step are appended. It has no tuples, because tuples
            would start the garbage collector inside the steps.

    Returns:
        True if the library accepts the instance.
    """
    session.begin()
    for token in tokens:
        watch.start()
        row = session.mask()
        allowed = bool(int(row[token >> 5]) >> (token & 31) & 1) and session.advance(token)
        steps += watch.stop()
        if not allowed:
            return False
    return session.may_stop()


def measure(engine: Any, case: dict[str, Any], outcome: Outcome, watch: Stopwatch, warm: bool) -> None:
    """Compile a schema once, and follow each of its instances once.

    Args:
        engine: The library, as an `Engine`.
        case: Content of a MaskBench file.
        outcome: Verdicts and times, which are filled in.
        watch: Stopwatch.
        warm: True: the automaton is loaded, and its masks are prefetched, before the instances are followed.
    """
    texts = [json.dumps(test["data"], ensure_ascii=False) for test in case["tests"]]
    instances = [tekken_encoding().encode(text, disallowed_special=()) for text in texts]
    session = started(engine, case["schema"], outcome, watch, warm)
    if session is None:
        return
    steps: list[int] = []
    verdicts = [follow(session, tokens, watch, steps) for tokens in instances]
    outcome.steps = list(zip(steps[::2], steps[1::2], strict=True))
    for number, (test, accepted) in enumerate(zip(case["tests"], verdicts, strict=True)):
        if test["valid"]:
            outcome.valid += 1
            if not accepted:
                outcome.rejected.append((number, session.explain(test["data"])))
        else:
            outcome.invalid += 1
            if accepted:
                outcome.accepted.append(number)


def started(engine: Any, schema: Any, outcome: Outcome, watch: Stopwatch, warm: bool) -> Session | None:
    """Compile a schema, and compute the first mask.

    Args:
        engine: The library, as an `Engine`.
        schema: The JSON Schema.
        outcome: Outcome in which the times, or the error of a rejected schema, are set.
        watch: Stopwatch.
        warm: True: the automaton is loaded from its serialized form, and its masks are prefetched.

    Returns:
        The session; None if the library rejects the schema.
    """
    watch.start()
    try:
        session = engine.compile(schema)
    except RefusedError as error:
        outcome.refusal = str(error)[:200]
        return None
    outcome.compile = watch.stop()
    outcome.remembers = isinstance(session, TurnstileSession) and session.fsm.remembers_values
    if warm:
        session = load_and_fill(session, schema, outcome, watch)
    watch.start()
    session.mask()
    mask = watch.stop()
    outcome.first_mask = mask if warm else (outcome.compile[0] + mask[0], outcome.compile[1] + mask[1])
    return session


def load_and_fill(session: TurnstileSession, schema: Any, outcome: Outcome, watch: Stopwatch) -> TurnstileSession:
    """Serialize an automaton, load it, and prefetch its masks.

    Args:
        session: Session with the automaton.
        schema: The JSON Schema of the automaton.
        outcome: Outcome in which the times are set.
        watch: Stopwatch.

    Returns:
        Session of the loaded automaton.
    """
    stored = session.fsm.to_bytes()
    watch.start()
    loaded = TurnstileSession(TokenFSM.from_bytes(stored, session.fsm.vocabulary), schema)
    outcome.load = watch.stop()
    watch.start()
    outcome.rows = loaded.fsm.prefetch_masks()
    outcome.fill = watch.stop()
    return loaded


def serve(name: str, options: dict[str, Any], warm: bool, connection: Connection) -> None:
    """Receive paths of MaskBench files, and send an `Outcome` for each of them. A child process runs this function.

    Args:
        name: Name of the library.
        options: Options of the library's `Engine`.
        warm: True: steps are measured warm.
        connection: Connection to the main process. The function returns when it receives None.
    """
    engine = ENGINES[name](options)
    watch = Stopwatch()
    connection.send(None)
    while (path := connection.recv()) is not None:
        outcome = Outcome(path.name)
        try:
            measure(engine, json.loads(path.read_bytes()), outcome, watch, warm)
        except Exception as error:
            outcome.crash = repr(error)[:200]
        outcome.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        connection.send(outcome)


# -- in the main process -------------------------------------------------------------------------------------------

# Library (or `WARM`) -> outcomes by process and schema.
Runs = dict[str, list[list[Outcome]]]


def run(names: list[str], options: dict[str, Any], paths: list[Path], processes: int) -> Runs:
    """Measure all files with all libraries: each schema with all libraries before the next schema.

    Args:
        names: Names of the libraries. With `turnstile`, warm steps are measured, too.
        options: Options of the libraries.
        paths: MaskBench files.
        processes: Number of repetitions, each in new processes.

    Returns:
        Outcomes by library (or `WARM`), then by repetition and file.
    """
    children = [*names, WARM] if "turnstile" in names else names
    runs: Runs = {name: [] for name in children}
    for number in range(processes):
        asked = {
            name: Child(serve, name.split(",")[0], options, name == WARM, timeout_s=TIMEOUT_S) for name in children
        }
        for name in children:
            runs[name].append([])
        for path in tqdm(paths, desc=f"process {number + 1} of {processes}", unit="schema", smoothing=0.05):
            for name, child in asked.items():
                try:
                    outcome = child.ask(path)
                except ChildFailedError as error:
                    outcome = Outcome(path.name, crash=str(error))
                runs[name][-1].append(outcome)
        for child in asked.values():
            child.close()
    return runs


def percentiles(runs: Sequence[Sequence[int]]) -> list[str]:
    """Return six figures as text, in microseconds: p50, p90, p99, p99.9, maximum and mean.

    Args:
        runs: Times in nanoseconds, one list per process. Each figure is the median of the processes' figures.
    """
    figures = []
    for values in runs:
        if not values:
            return ["-"] * 6
        array = np.array(values) / 1e3
        figures.append([*np.percentile(array, [50, 90, 99, 99.9]), array.max(), array.mean()])
    return [f"{figure:,.1f}" if figure < 100 else f"{figure:,.0f}" for figure in np.median(figures, axis=0)]


def show(runs: Runs) -> None:
    """Print the verdicts by library, then the times by clock and library.

    Args:
        runs: Outcomes from `run`. The verdicts are those of the first process.
    """
    rows: dict[str, Callable[[list[Outcome]], int]] = {
        "schemas": len,
        "rejected": lambda outcomes: sum(bool(outcome.refusal) for outcome in outcomes),
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
    print(f"\n{'':<34}" + "".join(f"{name:>17}" for name in runs))
    for label, count in rows.items():
        print(f"{label:<34}" + "".join(f"{count(processes[0]):>17,}" for processes in runs.values()))
    for clock, unit in enumerate(CLOCKS):
        print(
            f"\n{unit + ' time, microseconds':<48}{'p50':>10}{'p90':>10}{'p99':>10}{'p99.9':>10}{'max':>12}{'mean':>10}"
        )
        for name, processes in runs.items():
            for label, pick in times_of(name, processes[0]):
                values = [[times[clock] for outcome in one for times in pick(outcome)] for one in processes]
                p50, p90, p99, p999, most, mean = percentiles(values)
                print(f"{name + ': ' + label:<48}{p50:>10}{p90:>10}{p99:>10}{p999:>10}{most:>12}{mean:>10}")


def times_of(name: str, outcomes: list[Outcome]) -> Iterator[tuple[str, Callable[[Outcome], list[Times]]]]:
    """Yield the rows of a table of times.

    Args:
        name: Name of the library, or `WARM`.
        outcomes: Outcomes of one process.

    Yields:
        Label of the row, and a function that returns the times of an outcome for this row.
    """

    def steps_of(remembers: bool) -> Callable[[Outcome], list[Times]]:
        return lambda outcome: outcome.steps if outcome.remembers == remembers else []

    def if_compiled(field: str) -> Callable[[Outcome], list[Times]]:
        return lambda outcome: [getattr(outcome, field)] if outcome.first_mask[1] else []

    if name == WARM:
        yield "load", if_compiled("load")
        yield "prefetch masks", if_compiled("fill")
        yield "first mask", if_compiled("first_mask")
    else:
        yield "first mask", if_compiled("first_mask")
        yield "  of which compilation", if_compiled("compile")
    yield "steps", lambda outcome: outcome.steps
    depending = sum(outcome.remembers for outcome in outcomes)
    if depending:
        yield f"  {len(outcomes) - depending} schemas without seen values", steps_of(False)
        yield f"  {depending} with seen values", steps_of(True)


def show_lists(cold: list[Outcome], warm: list[Outcome], many: int) -> None:
    """Print every wrong verdict, crash and rejection of Turnstile, and the slowest schemas, with file names.

    Args:
        cold: Outcomes of Turnstile.
        warm: Outcomes of Turnstile's warm run.
        many: Number of slowest schemas in each list.
    """

    def slowest(outcomes: list[Outcome]) -> list[str]:
        times = sorted(((max((step[0] for step in o.steps), default=0), o.name) for o in outcomes), reverse=True)
        return [f"{cpu / 1e3:,.0f} us  {name}" for cpu, name in times[:many]]

    first = sorted(cold, key=lambda outcome: -outcome.first_mask[0])[:many]
    filled = sorted(warm, key=lambda outcome: -outcome.fill[0])[:many]
    sections = {
        "valid, but rejected": [f"{o.name} #{number}: {why}" for o in cold for number, why in o.rejected],
        "invalid, but ACCEPTED": [f"{o.name} #{number}" for o in cold for number in o.accepted],
        "crashes and timeouts": [f"{o.name}: {o.crash}" for o in cold if o.crash],
        "rejections": [f"{o.name}: {o.refusal}" for o in cold if o.refusal],
        "slowest first masks (CPU)": [f"{o.first_mask[0] / 1e6:,.1f} ms  {o.name}" for o in first],
        "slowest steps (CPU)": slowest(cold),
        "slowest steps, warm (CPU)": slowest(warm),
        "slowest prefetching (CPU)": [f"{o.fill[0] / 1e6:,.1f} ms  {o.rows:,} masks  {o.name}" for o in filled],
    }
    for title, lines in sections.items():
        if lines:
            print(f"\nturnstile: {title}")
            print("\n".join(f"  {line}" for line in lines))


def main() -> int:
    """Measure, and print the tables. Return 1 if Turnstile has accepted an invalid instance or crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all of them")
    parser.add_argument("--options", type=json.loads, default={}, help="GrammarOptions of Turnstile, as JSON")
    parser.add_argument("--limit", type=int, default=None, help="only the first so many files")
    parser.add_argument("--sample", type=int, default=None, help="so many files, sampled with a fixed seed")
    parser.add_argument("--processes", type=int, default=1, help="repeat all in so many processes (default 1)")
    parser.add_argument("--slowest", type=int, default=5, help="how many of the slowest schemas to list (default 5)")
    parser.add_argument(
        "--only-figures", action="store_true", help="name no schema, for a set that nobody is to look into"
    )
    arguments = parse_with_data(parser)
    paths = sorted(arguments.data.glob("*.json"))[: arguments.limit]
    if arguments.sample is not None:
        paths = sorted(random.Random(0).sample(paths, min(arguments.sample, len(paths))))
    runs = run(installed(arguments.engines), arguments.options, paths, arguments.processes)
    show(runs)
    if WARM not in runs:
        return 0
    if not arguments.only_figures:
        show_lists(runs["turnstile"][0], runs[WARM][0], arguments.slowest)
    return int(any(o.accepted or o.crash for name in ("turnstile", WARM) for one in runs[name] for o in one))


if __name__ == "__main__":
    sys.exit(main())

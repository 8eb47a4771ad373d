"""Is everything that can be generated valid? Random walks over the masks, judged by `jsonschema` and by Python's `re`.

    python -m benchmarks.soundness --data FOLDER [--walks 50] [--sample 3/20] [--processes 2]

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). For every schema that compiles, walks are drawn
token by token from the masks: half of them lean toward what opens objects and arrays and run long, half toward what
closes them and run short; each is ended by a shortest completion. The text must be JSON that `jsonschema` finds valid,
formats checked, numbers as exact decimals. `--regexes` patterns made at random, and the patterns of the schemas, are
walked likewise and must match in full under `re`. `--sample 3/20` takes the third of twenty parts, so that a long run
can be done in pieces. Exit status 1 when anything generated is invalid.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import decimal
import functools
import json
import multiprocessing
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import named_vocabulary
from grammar_workers import GrammarError, TokenFSM, Vocabulary, compile_grammar, warm_up

_PRECISION = 400
"""Decimal digits for remainders of numbers up to the largest double."""
Judge = Callable[[str], "str | None"]
"""What is wrong with a text, None when nothing is."""


@dataclasses.dataclass
class Report:
    """Counts, refusals by class of error, and what was found invalid (name, text, reason)."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    invalid: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)

    def add(self, other: Report) -> None:
        self.counts += other.counts
        self.invalid += other.invalid


# -- walks ---------------------------------------------------------------------------------------------------------


_OPENS, _QUOTES, _CLOSES = 1, 2, 4


@functools.cache
def _beginnings(vocabulary: Vocabulary) -> NDArray[np.int8]:
    """What each token begins with: a bracket that opens or closes, a quote, or something else (0)."""
    kinds = {b"{": _OPENS, b"[": _OPENS, b'"': _QUOTES, b"}": _CLOSES, b"]": _CLOSES}
    firsts = (vocabulary.token_bytes(token)[:1] for token in range(vocabulary.size))
    return np.array([kinds.get(first, 0) for first in firsts], np.int8)


def walk(fsm: TokenFSM, rng: random.Random, *, deep: bool) -> str:
    """A text of the grammar: tokens drawn from the masks, then a shortest completion."""
    beginnings = _beginnings(fsm.vocabulary)
    longest = rng.randrange(30, 90) if deep else rng.randrange(0, 12)
    state = fsm.initial_state
    tokens: list[int] = []
    while len(tokens) < longest:
        allowed = np.flatnonzero(np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little"))
        # Uniform draws would hardly ever meet a bracket among a hundred thousand pieces of text.
        leaning = allowed[beginnings[allowed] & rng.choice([_OPENS, _QUOTES] if deep else [_CLOSES, _QUOTES]) > 0]
        choices = leaning if len(leaning) and rng.random() < 0.5 else allowed
        token = int(choices[rng.randrange(len(choices))])
        if token not in fsm.vocabulary.eos_token_ids:
            tokens.append(token)
            state = fsm.next_state(state, token)
        elif not deep or len(allowed) == 1:
            return _text(fsm, tokens)
        else:
            longest -= 1
    return _text(fsm, tokens + fsm.shortest_completion(state))


def _text(fsm: TokenFSM, tokens: list[int]) -> str:
    return b"".join(map(fsm.vocabulary.token_bytes, tokens)).decode()


def check(name: str, specification: dict[str, Any], judge: Judge, walks: int, vocabulary: Vocabulary) -> Report:
    """Walks over one specification; a refusal is counted, anything invalid is kept with its reason."""
    report = Report()
    kind = specification["type"]
    try:
        fsm = compile_grammar(specification, vocabulary)
    except GrammarError as error:
        report.counts[f"{kind}: refused ({type(error).__name__})"] += 1
        return report
    report.counts[f"{kind}: compiled"] += 1
    rng = random.Random(name)
    for number in range(walks):
        text = walk(fsm, rng, deep=number % 2 == 0)
        try:
            wrong = judge(text)
        except re.error:
            # `jsonschema` reads patterns with `re`, which knows no properties such as \p{Lu}.
            report.counts[f"{kind}: walks that the judge cannot read"] += 1
            continue
        report.counts[f"{kind}: walks"] += 1
        if wrong is not None:
            report.invalid.append((name, text[:300], wrong))
    return report


# -- judges --------------------------------------------------------------------------------------------------------


def schema_judge(schema: Any) -> Judge:
    """`jsonschema`, by the schema's draft, with exact decimals: binary rounding would blur bounds."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(json.loads(json.dumps(schema), parse_float=Decimal), format_checker=kind.FORMAT_CHECKER)

    def judge(text: str) -> str | None:
        try:
            value = json.loads(text, parse_float=Decimal)
        except ValueError as error:
            return f"not JSON: {error}"
        with decimal.localcontext(prec=_PRECISION):
            error = next(iter(validator.iter_errors(value)), None)
        return None if error is None else error.message[:300]

    return judge


def regex_judge(pattern: str) -> Judge:
    """Python's `re`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = re.compile(pattern)
    return lambda text: None if compiled.fullmatch(text) else f"not matched by {pattern!r}"


# -- what is walked ------------------------------------------------------------------------------------------------


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """A pattern of the common ground of ECMA-262 and Python."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(
            ["a", "b", "é", "0", " ", r"\.", ".", "[a-c]", "[^a]", r"\d", r"\w", r"\s", r"[\d_]", "😀", r"[^\w]"]
        )
    parts = [random_pattern(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    form = rng.randrange(4)
    if form == 0:
        return "".join(parts)
    if form == 1:
        return f"(?:{'|'.join(parts)})"
    if form == 2:
        return f"({''.join(parts)}){rng.choice(['*', '+', '?', '*?', '+?'])}"
    least = rng.randrange(3)
    return f"(?:{parts[0]}){{{least},{rng.choice(['', str(least + rng.randrange(3))])}}}"


def patterns_in(schema: Any) -> Iterator[str]:
    """Every `pattern`, and the name patterns of `patternProperties`, of a schema that `re` can compile."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            named = part.get("patternProperties")
            for pattern in [part.get("pattern"), *(named if isinstance(named, dict) else [])]:
                if isinstance(pattern, str) and _compiles(pattern):
                    yield pattern
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)


def _compiles(pattern: str) -> bool:
    try:
        regex_judge(pattern)
    except re.error:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class Job:
    """One file of MaskBench, or one pattern."""

    name: str
    path: Path | None
    pattern: str
    walks: int
    vocabulary: str


def run_job(job: Job) -> Report:
    vocabulary = named_vocabulary(job.vocabulary)
    if job.path is None:
        specification = {"type": "regex", "pattern": job.pattern}
        return check(job.pattern, specification, regex_judge(job.pattern), job.walks, vocabulary)
    schema = json.loads(job.path.read_bytes())["schema"]
    report = check(job.name, {"type": "json_schema", "schema": schema}, schema_judge(schema), job.walks, vocabulary)
    for pattern in dict.fromkeys(patterns_in(schema)):
        specification = {"type": "regex", "pattern": pattern}
        report.add(check(pattern, specification, regex_judge(pattern), max(job.walks // 10, 1), vocabulary))
    return report


def jobs(folder: Path, regexes: int, walks: int, vocabulary: str) -> list[Job]:
    files = [Job(path.name, path, "", walks, vocabulary) for path in sorted(folder.glob("*.json"))]
    rng = random.Random("patterns")
    return files + [Job("", None, random_pattern(rng), walks, vocabulary) for _ in range(regexes)]


def part_of(everything: list[Job], sample: str) -> list[Job]:
    """`3/20`: every twentieth job, beginning with the third."""
    part, many = map(int, sample.split("/"))
    if not 1 <= part <= many:
        raise ValueError(f"no part {part} of {many}")
    return everything[part - 1 :: many]


def run(todo: list[Job], processes: int) -> Iterator[Report]:
    if processes == 1:
        yield from map(run_job, todo)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run_job, todo, chunksize=4)


def show(reports: Iterable[Report]) -> Report:
    total = Report()
    for report in reports:
        total.add(report)
    for label, number in sorted(total.counts.items()):
        print(f"{label:<60}{number:>10,}")
    print(f"{'INVALID':<60}{len(total.invalid):>10,}")
    for name, text, reason in total.invalid:
        print(f"  {name}: {text}\n      {reason}")
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", type=int, default=50, help="random generations per schema and regex (default 50)")
    parser.add_argument("--regexes", type=int, default=500, help="patterns made at random (default 500)")
    parser.add_argument("--sample", default="1/1", help="which part of the work, e.g. 3/20 (default all)")
    parser.add_argument("--processes", type=int, default=1, help="default 1")
    parser.add_argument("--vocabulary", default="tekken", help="tekken, sentencepiece, or a model (default tekken)")
    arguments = parse_with_data(parser)
    warm_up(named_vocabulary(arguments.vocabulary))
    todo = part_of(jobs(arguments.data, arguments.regexes, arguments.walks, arguments.vocabulary), arguments.sample)
    total = show(tqdm(run(todo, arguments.processes), total=len(todo), unit="job", smoothing=0.05))
    return 1 if total.invalid else 0


if __name__ == "__main__":
    sys.exit(main())

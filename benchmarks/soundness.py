"""Check that all texts that the masks allow are valid: random samples, judged by `jsonschema` and by Python's `re`.

    python -m benchmarks.soundness --data FOLDER [--walks 50] [--sample 3/20] [--processes 2]

FOLDER contains the files of MaskBench (guidance-ai/jsonschemabench, MIT). For every schema that compiles, texts are
sampled token by token from the masks. Half of the texts are long, and prefer tokens that open objects and arrays. The
other half are short, and prefer closing tokens. Each text is completed by the shortest completion. It must be JSON that
is valid by `jsonschema`, with checked formats and numbers as exact decimals. Texts are also sampled from `--regexes`
random patterns and from the patterns of the schemas. These texts must match the pattern in full by `re`. To split a
long run, `--sample 3/20` runs the third of twenty parts. The exit status is 1 if a sampled text is invalid.
"""

from __future__ import annotations

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

from benchmarks.frame import new_parser, progress
from benchmarks.maskbench_data import parse_with_data
from benchmarks.texts import allowed_tokens, text_of
from benchmarks.vocabularies import named_vocabulary
from grammar_workers import GrammarError, TokenFSM, Vocabulary, compile_grammar, warm_up

# Decimal digits that exact remainders need for numbers up to the largest double.
_PRECISION = 400
# Returns the reason why a text is invalid, None if it is valid.
Judge = Callable[[str], "str | None"]


@dataclasses.dataclass
class Report:
    """Results of checks.

    Attributes:
        counts: Numbers of compiled and rejected specifications and of sampled texts, by label.
        invalid: Invalid texts: (name of the specification, text, reason).
    """

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    invalid: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)

    def add(self, other: Report) -> None:
        """Add the results of another report to this one."""
        self.counts += other.counts
        self.invalid += other.invalid


# -- walks ---------------------------------------------------------------------------------------------------------


_OPENS, _QUOTES, _CLOSES = 1, 2, 4


@functools.cache
def _beginnings(vocabulary: Vocabulary) -> NDArray[np.int8]:
    """Return the kind of each token's first byte: opening bracket, closing bracket, quote, or 0."""
    kinds = {b"{": _OPENS, b"[": _OPENS, b'"': _QUOTES, b"}": _CLOSES, b"]": _CLOSES}
    firsts = (vocabulary.token_bytes(token)[:1] for token in range(vocabulary.size))
    return np.array([kinds.get(first, 0) for first in firsts], np.int8)


def walk(fsm: TokenFSM, rng: random.Random, *, deep: bool) -> str:
    """Sample a text from the masks, and complete it by the shortest completion.

    Args:
        fsm: The automaton.
        rng: Source of random numbers.
        deep: True: a long text that prefers opening brackets. False: a short text that prefers closing brackets.

    Returns:
        The text.
    """
    beginnings = _beginnings(fsm.vocabulary)
    longest = rng.randrange(30, 90) if deep else rng.randrange(0, 12)
    state = fsm.initial_state
    tokens: list[int] = []
    while len(tokens) < longest:
        allowed = allowed_tokens(fsm, state)
        # Uniform draws would hardly ever meet a bracket among a hundred thousand pieces of text.
        leaning = allowed[beginnings[allowed] & rng.choice([_OPENS, _QUOTES] if deep else [_CLOSES, _QUOTES]) > 0]
        choices = leaning if len(leaning) and rng.random() < 0.5 else allowed
        token = int(choices[rng.randrange(len(choices))])
        if token not in fsm.vocabulary.eos_token_ids:
            tokens.append(token)
            state = fsm.next_state(state, token)
        elif not deep or len(allowed) == 1:
            return text_of(fsm, tokens)
        else:
            longest -= 1
    return text_of(fsm, tokens + fsm.shortest_completion(state))


def check(name: str, specification: dict[str, Any], judge: Judge, walks: int, vocabulary: Vocabulary) -> Report:
    """Compile one specification, sample texts from its masks, and judge them.

    Args:
        name: Name of the specification, which is also the seed of the random numbers.
        specification: Grammar specification as plain data.
        judge: Function that returns the reason why a text is invalid, or None.
        walks: Number of texts.
        vocabulary: Vocabulary of the automaton.

    Returns:
        The results. If the specification is rejected, only this is counted.
    """
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
    """Return a function that judges texts by `jsonschema`.

    Numbers are exact decimals, because binary numbers would be rounded near `minimum`, `maximum` and `multipleOf`.

    Args:
        schema: The JSON Schema.

    Returns:
        Function that returns the reason why a text is invalid; None if it is valid.
    """
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
    """Return a function that judges texts by a full match with Python's `re`.

    Args:
        pattern: The pattern. If it is invalid, `re.error` is raised.

    Returns:
        Function that returns the reason why a text is invalid; None if it is valid.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = re.compile(pattern)
    return lambda text: None if compiled.fullmatch(text) else f"not matched by {pattern!r}"


# -- what is walked ------------------------------------------------------------------------------------------------


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """Return a random regular expression in the common subset of ECMA-262 and Python.

    Args:
        rng: Source of random numbers.
        depth: Maximum depth of nested groups.
    """
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
    """Yield the regular expressions of a JSON Schema that `re` can compile.

    Args:
        schema: The JSON Schema.

    Yields:
        Values of `pattern`, and property names of `patternProperties`.
    """
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
    """A unit of work: one file of MaskBench, or one pattern.

    Attributes:
        name: File name; empty for a pattern.
        path: The file; None for a pattern.
        pattern: The pattern; empty for a file.
        walks: Number of texts to sample.
        vocabulary: Name of the vocabulary, for `named_vocabulary`.
    """

    name: str
    path: Path | None
    pattern: str
    walks: int
    vocabulary: str


def run_job(job: Job) -> Report:
    """Check the schema of one file and its patterns, or check one pattern.

    Args:
        job: The unit of work.

    Returns:
        The results.
    """
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
    """Return all units of work: one for each file, then one for each random pattern.

    Args:
        folder: Folder of MaskBench files.
        regexes: Number of random patterns.
        walks: Number of texts to sample for each file and each pattern.
        vocabulary: Name of the vocabulary.
    """
    files = [Job(path.name, path, "", walks, vocabulary) for path in sorted(folder.glob("*.json"))]
    rng = random.Random("patterns")
    return files + [Job("", None, random_pattern(rng), walks, vocabulary) for _ in range(regexes)]


def part_of(everything: list[Job], sample: str) -> list[Job]:
    """Return a part of the units of work.

    Args:
        everything: All units of work.
        sample: The part, such as "3/20": every twentieth unit, from the third one on.

    Returns:
        The units of the part.

    Raises:
        ValueError: The part does not exist, such as "21/20".
    """
    part, many = map(int, sample.split("/"))
    if not 1 <= part <= many:
        raise ValueError(f"no part {part} of {many}")
    return everything[part - 1 :: many]


def run(todo: list[Job], processes: int) -> Iterator[Report]:
    """Run units of work.

    Args:
        todo: The units of work.
        processes: Number of processes. 1: the units run in this process.

    Yields:
        Results of each unit. With several processes, their order is random.
    """
    if processes == 1:
        yield from map(run_job, todo)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run_job, todo, chunksize=4)


def show(reports: Iterable[Report]) -> Report:
    """Print the sums of the results, and all invalid texts.

    Args:
        reports: Results of the units of work.

    Returns:
        The sum of the results.
    """
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
    """Parse the command line, and run the checks. Return 1 if a sampled text is invalid."""
    parser = new_parser(__doc__)
    parser.add_argument("--walks", type=int, default=50, help="random generations per schema and regex (default 50)")
    parser.add_argument("--regexes", type=int, default=500, help="patterns made at random (default 500)")
    parser.add_argument("--sample", default="1/1", help="which part of the work, e.g. 3/20 (default all)")
    parser.add_argument("--processes", type=int, default=1, help="default 1")
    parser.add_argument("--vocabulary", default="tekken", help="tekken, sentencepiece, or a model (default tekken)")
    arguments = parse_with_data(parser)
    warm_up(named_vocabulary(arguments.vocabulary))
    todo = part_of(jobs(arguments.data, arguments.regexes, arguments.walks, arguments.vocabulary), arguments.sample)
    total = show(progress(run(todo, arguments.processes), "jobs", len(todo)))
    return 1 if total.invalid else 0


if __name__ == "__main__":
    sys.exit(main())

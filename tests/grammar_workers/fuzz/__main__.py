"""The command line; see the package. Exit status 1 when anything was found."""

from __future__ import annotations

import argparse
import datetime
import os
import random
import sys
import time

from tests.grammar_workers.fuzz.cases import draw
from tests.grammar_workers.fuzz.check import Failure
from tests.grammar_workers.fuzz.runner import Report, run_apart, run_here


def default_seed() -> str:
    """The date, so that every day looks elsewhere; the same always where `CI` is set."""
    return "ci" if os.environ.get("CI") else datetime.date.today().isoformat()


def show(failure: Failure) -> None:
    print(f"\n{described(failure)}", flush=True)


def described(failure: Failure) -> str:
    """A failure as people read it: what is wrong, and a program that shows it."""
    data = failure.witness if isinstance(failure.witness, bytes) else None
    if isinstance(failure.witness, tuple):
        data = b"".join(failure.case.tokens.tokens[token] or b"" for token in failure.witness)
    lines = [f"{failure.law}: {failure.message}", f"seed {failure.seed}"]
    return "\n".join([*lines, *(f"    {line}" for line in failure.case.program(data).splitlines())])


def table(report: Report, seconds: float) -> str:
    """The counts."""
    lines = [f"{name:<48}{number:>12,}" for name, number in sorted(report.counts.items())]
    cases, texts = report.counts["cases"], report.counts["texts accepted"] + report.counts["texts refused"]
    lines.append(f"{cases / seconds:,.0f} cases and {texts / seconds:,.0f} texts a second")
    lines.append(f"FAILURES: {report.counts['FAILURES']:,} of {len(report.failures):,} kinds")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.grammar_workers.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long (default %(default)s)")
    parser.add_argument("--seed", default=default_seed(), help="default: the date, or `ci` where CI is set")
    parser.add_argument("--processes", type=int, default=1, help="default %(default)s")
    parser.add_argument("--case", help="check one case again: the seed of a failure, such as 2025-01-01/17")
    arguments = parser.parse_args()
    begin = time.monotonic()
    if arguments.case:
        seed, _, number = arguments.case.rpartition("/")
        print(draw(random.Random(arguments.case)).case.program())
        report = run_here(seed, 600, 1, first=int(number), show=show)
    else:
        print(f"seed {arguments.seed}", flush=True)
        if arguments.processes == 1:
            report = run_here(arguments.seed, arguments.seconds, show=show)
        else:
            report = run_apart(arguments.seed, arguments.seconds, arguments.processes, show=show)
    print(table(report, time.monotonic() - begin))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())

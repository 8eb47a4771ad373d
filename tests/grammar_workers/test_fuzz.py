"""Half a minute of the differential fuzzer (`make soak` has hours), and its command line."""

from __future__ import annotations

import collections
import os
import sys
from typing import Any

import pytest

from tests.grammar_workers.fuzz import __main__ as command_line
from tests.grammar_workers.fuzz import runner
from tests.grammar_workers.fuzz.__main__ import default_seed, described, table
from tests.grammar_workers.fuzz.runner import run_apart, run_here


@pytest.mark.parametrize("cases", [250, pytest.param(1200, marks=pytest.mark.long)])
def test_the_engine_agrees_with_its_judges(capsys: pytest.CaptureFixture[str], cases: int) -> None:
    """As many cases on every machine: 12 s, or a minute."""
    seed = default_seed()
    with capsys.disabled():
        print(f"\nfuzzing the grammar engine, {cases} cases with seed {seed}", flush=True)
    report = run_here(seed, 250, most=cases)
    assert not report.failures, "\n\n".join(map(described, report.failures.values()))
    assert report.counts["texts accepted"] > 100
    assert report.counts["law: has_a_way_on"] > 100
    assert "FAILURES: 0" in table(report, 1)


def test_the_seed_is_the_date_outside_continuous_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert default_seed() == "ci"
    monkeypatch.delenv("CI")
    assert default_seed().count("-") == 2


def test_a_seed_draws_the_same_cases_again() -> None:
    first, second = (run_here("same", 60, most=5) for _ in range(2))
    for report in (first, second):
        del report.counts["CPU milliseconds"]
    assert first.counts == second.counts
    assert first.counts["cases"] == 5


def test_processes_share_the_cases() -> None:
    report = run_apart("apart", 0.5, 2)
    assert not report.failures
    assert report.counts["cases"] > 1


def test_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "--case", "program/3"])
    assert command_line.main() == 0
    shown = capsys.readouterr().out
    assert "compile_grammar(specification, vocabulary" in shown
    assert "FAILURES: 0" in shown
    monkeypatch.setattr(sys, "argv", ["fuzz", "--seconds", "0.1", "--seed", "program"])
    assert command_line.main() == 0
    assert "seed program" in capsys.readouterr().out


def test_a_process_that_dies_costs_its_case_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_work", dying_work)
    report = run_apart("dies", 60, 1)
    assert [failure.seed for failure in report.failures.values()] == ["dies/1"]
    assert report.counts["cases"] == 3


def dying_work(found: Any, at: Any, seed: str, first: int, step: int, seconds: float) -> None:
    """Cases 0 to 3, of which 1 ends the process."""
    for number in range(first, 4):
        at.value = number
        if number == 1:
            found.close()
            found.join_thread()
            os._exit(3)
        found.put(collections.Counter(cases=1))
    found.put(None)

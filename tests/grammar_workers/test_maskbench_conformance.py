"""The conformance benchmark finds what it looks for: it must be able to fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import maskbench_conformance
from benchmarks.maskbench_conformance import Report, check, show
from grammar_workers import GrammarOptions
from tests.grammar_workers.vocabularies import bytes_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "number"}}},
    "additionalProperties": False,
}


def report_of(folder: Path, schema: Any, *tests: tuple[Any, bool], walks: int = 3) -> Report:
    path = folder / "case.json"
    cases = [{"data": data, "valid": valid} for data, valid in tests]
    path.write_text(json.dumps({"schema": schema, "tests": cases}))
    report = Report()
    check(path, bytes_vocabulary(), GrammarOptions(), walks, report)
    return report


def test_right_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(tmp_path, SCHEMA, ({"a": 1, "b": [1.5]}, True), ({"a": "x"}, False), ({"c": 1}, False))
    assert report.is_sound
    assert report.counts["all verdicts right"] == 1
    assert report.counts["random generations"] == 3
    assert not report.rejected
    show(report)
    assert "every verdict right" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"b": [], "a": 1}, "property order"),
        ({"a": 2.0}, "number spelling"),
        ({"b": [1.0], "a": 1.0}, "property order and number spelling"),
        ({"a": "not valid at all"}, "unexplained"),
    ],
)
def test_a_rejected_instance_is_explained_by_another_spelling(tmp_path: Path, value: Any, reason: str) -> None:
    report = report_of(tmp_path, SCHEMA, (value, True))
    assert report.rejected == [("case.json", 0, reason)]
    assert report.counts["all verdicts right"] == 0


def test_an_accepted_invalid_instance_is_a_failure(tmp_path: Path) -> None:
    report = report_of(tmp_path, SCHEMA, ({"a": 1}, False))
    assert report.accepted == [("case.json", 0)]
    assert not report.is_sound


def test_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"type": "string", "pattern": r"(a)\1"}, ("aa", True))
    assert report.is_sound
    assert list(report.refusals.values()) == [1]


def test_the_program_exits_with_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["maskbench_conformance", "--vocabulary", "sentencepiece", "--walks", "1", "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as left:
        maskbench_conformance.main()
    assert left.value.code == 0
    assert "skipped" in capsys.readouterr().err
    (tmp_path / "case.json").write_text(json.dumps({"schema": SCHEMA, "tests": [{"data": {}, "valid": False}]}))
    assert maskbench_conformance.main() == 1

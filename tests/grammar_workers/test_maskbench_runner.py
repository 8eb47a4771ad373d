"""The folder of results that MaskBench's own script reads."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from benchmarks import maskbench, maskbench_runner
from benchmarks.maskbench import Outcome

TESTS = {
    "a.json": {"schema": {"type": "integer"}, "tests": [{"valid": True, "data": 12}, {"valid": False, "data": "x"}]},
    "b.json": {"schema": {"type": "nothing"}, "tests": []},
    "c.json": {"schema": {"type": "array"}, "tests": [{"valid": True, "data": [1, "é", None]}]},
    "d.json": {"schema": {"type": "object"}, "tests": [{"valid": True, "data": {"dies": 1}}]},
}


def as_if(name: str, options: dict[str, Any], warm: bool, connection: Connection) -> None:
    """Stands in for the engine's process: has the times of the schemas, and dies with one of them."""
    assert (name, options, warm) == ("turnstile", {"whitespace": "flexible"}, False)
    connection.send(None)
    while True:
        path: Path = connection.recv()
        if path.name == "d.json":
            os._exit(3)
        steps = [(1, 2_500), (1, 7_999)]
        wrong: dict[str, Any] = {"accepted": [1]} if path.name == "c.json" else {}
        if path.name == "b.json":
            connection.send(Outcome(path.name, refusal="no such type"))
        else:
            times: dict[str, Any] = {"compile": (5, 4_200_000), "first_mask": (6, 4_206_000), "steps": steps}
            connection.send(Outcome(path.name, valid=2, invalid=3, **times, **wrong))


def run(data: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--data", str(data), "--output", str(output)])
    assert maskbench_runner.main() == 0


def test_a_run_that_is_continued_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, output = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for name in ("a.json", "b.json"):
        (data / name).write_text(json.dumps(TESTS[name]))
    monkeypatch.setattr(maskbench_runner, "serve", as_if)
    run(data, output, monkeypatch)
    before = {path.name: path.stat().st_mtime_ns for path in output.glob("*.json")}
    assert sorted(before) == ["a.json", "b.json"]
    for name in ("c.json", "d.json"):
        (data / name).write_text(json.dumps(TESTS[name]))
    run(data, output, monkeypatch)
    assert {name: (output / name).stat().st_mtime_ns for name in before} == before, "not measured again"

    found = {path.name: json.loads(path.read_text()) for path in output.glob("*.json")}
    assert sorted(found) == sorted(TESTS)
    assert found["a.json"] == {
        "id": "a.json",
        "num_tests": 2,
        "num_valid_tests": 2,
        "num_invalid_tests": 3,
        "ttfm_us": 4200,
        "max_ttfm_us": 4200,
        "num_tokens": 2,
        "masks_us": 15,
        "max_mask_us": 8,
        "all_mask_us": [8, 7],
    }
    assert found["b.json"]["compile_error"] == "no such type"
    assert found["c.json"]["num_invalid_tests"] == 2
    assert "should reject" in found["c.json"]["validation_error"]
    assert "num_tests" not in found["d.json"], "MaskBench's script counts a crash by this"
    assert "Exit code: 3" in (output / "log.txt").read_text().splitlines()

    monkeypatch.setattr(sys, "argv", [*sys.argv, "--time-limit", "7"])
    with pytest.raises(SystemExit):
        maskbench_runner.main()  # its times would stand beside those of another limit
    meta = json.loads((output / "meta.txt").read_text())
    assert meta["name"] == "Turnstile" and meta["module_version"] == meta["versions"]["turnstile-llm"]
    assert meta["machine"]["cores"] == multiprocessing.cpu_count()


def test_verdicts_and_times_of_the_engine_itself(tmp_path: Path) -> None:
    class Engine:
        def compile(self, schema: Any) -> Any:
            return Session()

    class Session:
        """Allows the tokens of `[1]` one after the other."""

        tokens = maskbench.tekken_encoding().encode("[1]", disallowed_special=())
        at = 0

        def begin(self) -> None:
            self.at = 0

        def mask(self) -> Any:
            row = bytearray(1 << 14)
            if self.at < len(self.tokens):
                row[self.tokens[self.at] // 8] |= 1 << self.tokens[self.at] % 8
            return memoryview(row).cast("I")

        def advance(self, token: int) -> bool:
            self.at += 1
            return True

        def may_stop(self) -> bool:
            return self.at == len(self.tokens)

        def explain(self, value: Any) -> str:
            return ""

    outcome = Outcome("x.json")
    tests = [{"valid": True, "data": [1]}, {"valid": True, "data": [2]}, {"valid": False, "data": [12]}]
    maskbench.measure(Engine(), {"schema": {}, "tests": tests}, outcome, maskbench.Stopwatch(), warm=False)
    found = maskbench_runner.as_maskbench(outcome, len(tests))
    assert (found["num_tests"], found["num_valid_tests"], found["num_invalid_tests"]) == (3, 1, 1)
    assert found["validation_error"] == "test #1: should accept but didn't"
    assert found["num_tokens"] == len(found["all_mask_us"]) > 3

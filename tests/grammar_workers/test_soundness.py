"""Whatever is generated is valid: the soundness benchmark at a small scale, and that it can fail."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soundness
from benchmarks.soundness import Job, check, part_of, patterns_in, random_pattern, regex_judge, schema_judge, walk
from benchmarks.vocabularies import sentencepiece_vocabulary
from grammar_workers import compile_grammar
from tests.grammar_workers.json_schema_suite import FOLDERS, REMOTES, read_archive
from tests.grammar_workers.vocabularies import bytes_vocabulary

ORDINARY = Path(__file__).parents[1] / "data" / "ordinary_schemas.jsonl"


def suite_schemas(draft: str) -> Iterator[tuple[str, Any]]:
    """The schemas of the official suite that need no others, and whose patterns `re` understands."""
    for path, groups in read_archive().items():
        if path.startswith(f"{draft}/") and "ecmascript-regex" not in path:
            for group in groups:
                schema = group["schema"]
                if isinstance(schema, dict) and REMOTES not in json.dumps(schema):
                    yield f"{path}: {group['description']}", {"$schema": FOLDERS[draft], **schema}


@pytest.mark.parametrize("line", ORDINARY.read_text().splitlines())
def test_ordinary_schemas(line: str) -> None:
    schema = json.loads(line)
    specification = {"type": "json_schema", "schema": schema}
    report = check(line, specification, schema_judge(schema), 8, sentencepiece_vocabulary())
    assert report.counts["json_schema: walks"] == 8
    assert report.invalid == []


@pytest.mark.parametrize("draft", ["draft4", "draft2020-12"])
def test_schemas_of_the_official_suite(draft: str) -> None:
    report = soundness.Report()
    for name, schema in suite_schemas(draft):
        specification = {"type": "json_schema", "schema": schema}
        report.add(check(name, specification, schema_judge(schema), 2, bytes_vocabulary()))
    assert report.counts["json_schema: walks"] > 300
    assert report.invalid == []


def test_patterns() -> None:
    rng = random.Random(7)
    report = soundness.Report()
    for _ in range(60):
        pattern = random_pattern(rng)
        report.add(check(pattern, {"type": "regex", "pattern": pattern}, regex_judge(pattern), 6, bytes_vocabulary()))
    assert report.counts["regex: compiled"] > 50
    assert report.invalid == []


def test_walks_lean_toward_depth_or_toward_an_end() -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": True}, bytes_vocabulary())
    rng = random.Random(1)
    deep = [walk(fsm, rng, deep=True) for _ in range(20)]
    short = [walk(fsm, rng, deep=False) for _ in range(20)]
    assert sum(map(len, deep)) > 4 * sum(map(len, short))
    assert max(text.count("[") + text.count("{") for text in deep) > 10
    for text in deep + short:
        json.loads(text)


def test_what_is_invalid_is_found() -> None:
    report = check("x", {"type": "json_object"}, schema_judge({"type": "array"}), 3, bytes_vocabulary())
    assert len(report.invalid) == 3
    assert regex_judge("a+")("ab") is not None
    assert schema_judge({})("{") is not None
    assert schema_judge({"multipleOf": 0.1})("0.3") is None
    assert schema_judge({"format": "date"})('"2023-02-29"') is not None


def test_samples_are_a_partition() -> None:
    everything = [Job(str(number), None, "a", 1, "tekken") for number in range(23)]
    parts = [part_of(everything, f"{part}/5") for part in range(1, 6)]
    assert sorted((job for part in parts for job in part), key=lambda job: int(job.name)) == everything
    with pytest.raises(ValueError, match="no part"):
        part_of(everything, "6/5")


def test_patterns_of_a_schema() -> None:
    schema = {"patternProperties": {"^a": {"items": [{"pattern": "b"}]}}, "pattern": "(?<n>c)"}
    assert sorted(patterns_in(schema)) == ["^a", "b"]


def test_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "soundness",
        "--vocabulary",
        "sentencepiece",
        "--walks",
        "2",
        "--regexes",
        "2",
        "--data",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as left:
        soundness.main()
    assert left.value.code == 0
    assert "skipped" in capsys.readouterr().err
    (tmp_path / "case.json").write_text(json.dumps({"schema": {"pattern": "^a+$"}}))
    assert soundness.main() == 0
    assert "json_schema: walks" in capsys.readouterr().out

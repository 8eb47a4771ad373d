"""The official JSON-Schema-Test-Suite: nothing that was right may become wrong, and nothing invalid is accepted."""

from __future__ import annotations

import collections
import functools
import json
from pathlib import Path

from tests.grammar_workers.json_schema_suite import (
    FOLDERS,
    RATCHET,
    Result,
    read_archive,
    read_folder,
    regressions,
    run,
    table,
)


@functools.cache
def results() -> list[Result]:
    return list(run(read_archive()))


def test_nothing_is_worse_than_recorded() -> None:
    worse = regressions(results(), json.loads(RATCHET.read_text()))
    assert not worse, "\n".join(worse)


def test_no_invalid_instance_is_accepted() -> None:
    assert [result for result in results() if result.outcome == "wrongly accepted" and result.is_required] == []


def test_most_verdicts_are_right() -> None:
    counts = collections.Counter(
        result.outcome for result in results() if result.is_required and result.file.startswith("draft2020-12/")
    )
    assert counts.total() == 1299
    assert counts["right"] >= 1100


def test_every_draft_is_tested() -> None:
    assert {result.file.split("/")[0] for result in results()} == set(FOLDERS)
    assert "draft2020-12, required" in table(results())


def test_a_checkout_is_read_like_the_copy(tmp_path: Path) -> None:
    group = {"description": "d", "schema": {"$ref": "http://localhost:1234/a.json"}, "tests": []}
    group["tests"] = [{"description": "t", "data": 1, "valid": True}, {"description": "u", "data": "x", "valid": True}]
    for path, contents in {"tests/draft7/x.json": [group], "remotes/a.json": {"type": "integer"}}.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(json.dumps(contents))
    found = list(run(read_folder(tmp_path)))
    assert [(result.file, result.outcome) for result in found] == [
        ("draft7/x.json", "right"),
        ("draft7/x.json", "wrongly rejected"),
    ]


def test_regressions_are_found() -> None:
    recorded = {"f": {"refused": ["r"], "wrongly rejected": ["w"]}}
    for name, outcome, is_worse in [
        ("r", "right", False),
        ("r", "refused", False),
        ("r", "wrongly rejected", True),
        ("w", "refused", False),
        ("w", "wrongly accepted", True),
        ("new", "refused", True),
        ("new", "right", False),
    ]:
        assert bool(regressions([Result("f", name, outcome)], recorded)) == is_worse

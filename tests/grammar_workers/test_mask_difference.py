"""Engines that differ on purpose, compared: who is found to err is the one that does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mask_difference
from benchmarks.engines import Turnstile, TurnstileSession

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


class Altered(Turnstile):
    """Compiles another schema than it is given."""

    def __init__(self, schema: Any) -> None:
        super().__init__({})
        self._other = schema

    def compile(self, schema: Any) -> TurnstileSession:
        return super().compile(self._other)


@pytest.mark.parametrize(
    ("other", "over", "under"),
    [
        (OBJECT, False, False),
        ({**OBJECT, "properties": {"a": {"enum": [0, 1]}}}, True, False),
        ({**OBJECT, "properties": {"a": {"type": ["integer", "boolean"]}}}, False, True),
        ({**OBJECT, "properties": {"a": {"type": "boolean"}}}, True, True),
        ({**OBJECT, "required": []}, False, True),
    ],
)
def test_who_errs_is_found(tmp_path: Path, other: Any, over: bool, under: bool) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"schema": OBJECT}))
    finding = mask_difference.compare({"right": Turnstile({}), "other": Altered(other)}, path)
    assert (set(finding.over), set(finding.under)) == ({"other"} if over else set(), {"other"} if under else set())
    assert finding.masks > 10
    assert bool(finding.differing) == (over or under)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"a": 1}', "valid"),
        ('{"a": "1"}', "invalid"),
        ('{"a": 1', "invalid"),
        ('{"a": NaN}', "invalid"),
        ('{"a":1}', "undecided"),
        ('{"a": 1.0}', "undecided"),
        ('{"a": 1, "a": 1}', "undecided"),
    ],
)
def test_texts_are_judged(text: str, verdict: str) -> None:
    assert mask_difference.Judge(OBJECT)(text) == verdict


def test_format_alone_decides_nothing() -> None:
    judge = mask_difference.Judge({"type": "string", "format": "date"})
    assert [judge('"2024-02-29"'), judge('"2023-02-29"')] == ["valid", "undecided"]

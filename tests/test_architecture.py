"""Modules and names in the map of the code, `docs/architecture.md`, exist."""

from __future__ import annotations

import re

import pytest

from tests.documents import REPOSITORY

MAP = REPOSITORY / "docs" / "architecture.md"
HOP = re.compile(r"^(\d+)\. ", re.MULTILINE)
NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)(?:::(\w+))?`")
"""A path with at least one slash, and the test in it if one is named."""


def section(title: str) -> str:
    """The text below a heading of the second level."""
    return MAP.read_text().split(f"\n## {title}\n")[1].partition("\n## ")[0]


def repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def test_every_path_that_is_named_exists() -> None:
    named = NAMED.findall(MAP.read_text())
    assert sorted({path for path, _ in named if not (REPOSITORY / path).exists()}) == []
    tests = {(path, test) for path, test in named if test}
    assert [
        f"{path}::{test}" for path, test in sorted(tests) if f"def {test}(" not in (REPOSITORY / path).read_text()
    ] == []


@pytest.mark.parametrize("title", ["The path of a schema", "The path of a prompt"])
def test_a_path_meets_each_file_once(title: str) -> None:
    assert repeated([path for path, _ in NAMED.findall(section(title))]) == []
    numbers = [int(number) for number in HOP.findall(section(title))]
    assert numbers == list(range(1, len(numbers) + 1))

"""The map of the code, `docs/architecture.md`, has every module, and what it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.documents import REPOSITORY

PACKAGES = ("grammar_workers", "gpu_workers", "deployments")
MAP = REPOSITORY / "docs" / "architecture.md"
FILE_LINE = re.compile(r"^- `([^`]+\.py)`: \S", re.MULTILINE)
FOLDER_HEADING = re.compile(r"^### `([^`]+)/`: \S", re.MULTILINE)
HOP = re.compile(r"^(\d+)\. ", re.MULTILINE)
NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)(?:::(\w+))?`")
"""A path with at least one slash, and the test in it if one is named."""


def has_code(module: Path) -> bool:
    """Whether a module holds more than a docstring: what an `__init__.py` without code says is about its folder."""
    body = ast.parse(module.read_text()).body
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in body)


def modules() -> set[str]:
    """Paths of the modules of the three packages, without `__init__.py` that hold no code."""
    found = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    return {str(path.relative_to(REPOSITORY)) for path in found if path.name != "__init__.py" or has_code(path)}


def section(title: str) -> str:
    """The text below a heading of the second level."""
    return MAP.read_text().split(f"\n## {title}\n")[1].partition("\n## ")[0]


def repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def test_every_module_has_its_line() -> None:
    lines = FILE_LINE.findall(MAP.read_text())
    assert sorted(modules() - set(lines)) == [], "modules without a line: - `path/file.py`: what it is"
    assert sorted(set(lines) - modules()) == [], "lines of modules that do not exist"
    assert repeated(lines) == []


def test_every_folder_has_its_heading_and_modules_stand_below_theirs() -> None:
    headings = FOLDER_HEADING.findall(MAP.read_text())
    folders = {str(Path(module).parent) for module in modules()}
    assert sorted(folders ^ set(headings)) == []
    assert repeated(headings) == []
    parts = FOLDER_HEADING.split(MAP.read_text())[1:]
    for folder, text in zip(parts[::2], parts[1::2], strict=True):
        assert [line for line in FILE_LINE.findall(text) if str(Path(line).parent) != folder] == []


def test_every_path_that_is_named_exists() -> None:
    named = NAMED.findall(MAP.read_text())
    assert sorted({path for path, _ in named if not (REPOSITORY / path).exists()}) == []
    tests = {(path, test) for path, test in named if test}
    assert [
        f"{path}::{test}" for path, test in sorted(tests) if f"def {test}(" not in (REPOSITORY / path).read_text()
    ] == []


@pytest.mark.parametrize("way", ["A schema's way", "A prompt's way"])
def test_a_way_meets_each_file_once(way: str) -> None:
    assert repeated([path for path, _ in NAMED.findall(section(way))]) == []
    numbers = [int(number) for number in HOP.findall(section(way))]
    assert numbers == list(range(1, len(numbers) + 1))

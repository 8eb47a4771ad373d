"""The table of named test cases: all 65 cases, each with a test that exists."""

from __future__ import annotations

import ast
import collections
import functools
import re

from tests.documents import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "named-cases.md"
CASES = {"Regular expressions": 17, "JSON Schema": 22, "Vocabulary and TokenFSM": 12, "Masks of logits": 7}
CASES["API and engine"] = 7
"""How many cases each section has."""


def rows() -> list[tuple[str, str, str]]:
    """Return section, case and test of each row of the document's tables."""
    found, section = [], ""
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| `"):
            match = re.fullmatch(r"\| `(test_\w+)` \| `([\w/]+\.py::test_\w+)` \|", line)
            assert match is not None, line
            found.append((section, match[1], match[2]))
    return found


@functools.cache
def collected(file: str) -> set[str]:
    """Return the names of the tests that pytest collects from `file`, a path below the repository."""
    body = ast.parse((REPOSITORY / file).read_text()).body
    functions = [one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {name for name in functions if name.startswith("test_")}


def test_every_case_is_there_once() -> None:
    assert collections.Counter(section for section, _, _ in rows()) == CASES
    assert sum(CASES.values()) == 65 == len({case for _, case, _ in rows()})


def test_every_named_test_exists() -> None:
    assert [test for _, _, test in rows() if test.partition("::")[2] not in collected(test.partition("::")[0])] == []

"""The figures of tables are those of the reports that they link to."""

from __future__ import annotations

import re

import pytest

from deployments.shipped import REPOSITORY

PAGES = ("README.md", "docs/peers.md", "benchmarks/README.md")
REPORT = re.compile(r"\(([^()]*results/(\w+)\.md)(?:#[\w-]+)?\)")
NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w]|\.\d)")
COMMAND = re.compile(r"`[^`]*`")
VERSION = re.compile(r"(?:llguidance|xgrammar|XGrammar|vLLM) \d+\.\d+(?:\.\d+)?")


def numbers(text: str) -> list[str]:
    """Numbers as they are written, without links, code and versions."""
    text = VERSION.sub("", COMMAND.sub("", re.sub(r"\]\([^()]*\)", "]", text)))
    return [number.replace(",", "") for number in NUMBER.findall(text)]


def rows() -> list[tuple[str, str, str]]:
    """Page, report and text of each table row that links to one report."""
    found = []
    for page in PAGES:
        for line in (REPOSITORY / page).read_text().splitlines():
            if line.startswith("|") and len({name for _, name in REPORT.findall(line)}) == 1:
                found.append((page, REPORT.findall(line)[0][1], line))
    return found


def missing(line: str, report: str) -> list[str]:
    """Figures of a row that no number of a report rounds to. The first cell names the row."""
    known = [float(number) for number in numbers(report)]
    figures = numbers(" | ".join(line.split("|")[2:]))
    return [
        one
        for one in figures
        if not any(abs(number - float(one)) <= 0.5000001 * 10 ** -len(one.partition(".")[2]) for number in known)
    ]


@pytest.mark.parametrize(("page", "name", "line"), rows())
def test_figures_of_a_row_are_in_its_report(page: str, name: str, line: str) -> None:
    report = (REPOSITORY / "benchmarks" / "results" / f"{name}.md").read_text()
    assert missing(line, report) == []


def test_a_wrong_figure_is_found() -> None:
    report = "| p99 | 188.6 | 1,009.3 |"
    assert missing("| first mask | 189 / 1,009 |", report) == []
    assert missing("| first mask | 208 / 1,144 |", report) == ["208", "1144"]

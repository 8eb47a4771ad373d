"""Links between documents lead somewhere, every document can be found, and the modules that commands name exist."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import pytest

from tests.documents import REPOSITORY

PACKAGES = sorted(path.parent for path in REPOSITORY.glob("*/__init__.py"))
FOLDERS = [*PACKAGES, *(REPOSITORY / name for name in ("configs", "docs", "examples", "k8s"))]
"""No virtual environment, and no data that somebody put beside them."""
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))])
BENCHMARKS = REPOSITORY / "benchmarks"


def prose(document: Path) -> str:
    """The text of a document outside of its code blocks."""
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)


def links(document: Path) -> list[str]:
    """Targets of the links and images in a document, outside of code blocks."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)) if "://" not in target]


def linked(document: Path) -> set[Path]:
    """The files that a document links to."""
    return {(document.parent / link.partition("#")[0]).resolve() for link in links(document)}


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them: a repeated one is numbered."""
    found: set[str] = set()
    seen: collections.Counter[str] = collections.Counter()
    for heading in re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(document: Path) -> None:
    for link in links(document):
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_table_of_contents_leads_to_every_document() -> None:
    contents = REPOSITORY / "docs" / "README.md"
    found, waiting = {contents}, [contents]
    while waiting:
        for target in linked(waiting.pop()):
            if target.suffix == ".md" and target not in found:
                found.add(target)
                waiting.append(target)
    decisions = set((REPOSITORY / "docs" / "decisions").iterdir())  # found by their folder
    assert {*(REPOSITORY / "docs").rglob("*.md"), *BENCHMARKS.rglob("*.md")} - decisions <= found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_modules_that_commands_name_exist(document: Path) -> None:
    packages = "|".join(package.name for package in PACKAGES)
    for module in set(re.findall(rf"python -m ((?:{packages})(?:\.\w+)*)", document.read_text())):
        path = REPOSITORY.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_every_benchmark_has_its_line() -> None:
    overview = BENCHMARKS / "README.md"
    programs = {path.stem for path in BENCHMARKS.glob("*.py") if 'if __name__ == "__main__":' in path.read_text()}
    assert {name for name in programs if f"`benchmarks.{name}`" not in overview.read_text()} == set()
    assert set((BENCHMARKS / "results").glob("*.md")) <= linked(overview)

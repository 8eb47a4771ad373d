"""Links between documents lead somewhere, and every document can be found from the table of contents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import REPOSITORY

DOCUMENTS = sorted(
    [*(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("*.md"), REPOSITORY / "models" / "README.md"]
)


def links(document: Path) -> list[str]:
    """Targets of the links and images in a document, outside of code blocks."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
        document = waiting.pop()
        for link in links(document):
            target = (document.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in found:
                found.add(target)
                waiting.append(target)
    decisions = set((REPOSITORY / "docs" / "decisions").iterdir())  # found by their folder
    assert set((REPOSITORY / "docs").rglob("*.md")) - decisions <= found

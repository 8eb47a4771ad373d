"""The documentation as a site: it builds strictly, and has every document in reach."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_links import DOCUMENTS
from tests.documents import REPOSITORY

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    for document in DOCUMENTS:
        name = document.relative_to(REPOSITORY)
        if str(name) == "README.md" or name.parts[0] == "tests":  # the repository's own page; others' data
            continue
        below = name.relative_to("docs") if name.parts[0] == "docs" else name
        page = site / below.parent / ("" if below.stem == "README" else below.stem) / "index.html"
        assert page.is_file(), name


def test_links_of_pages_lead_to_pages(site: Path) -> None:
    """What MkDocs sees as text is looked at here, too: links that the hook has made."""
    for page in site.rglob("index.html"):
        for target in re.findall(r'href="([^"]+)"', page.read_text()):
            path = target.partition("#")[0]
            if path and not re.match(r"[a-z]+:|/", path):
                found = (page.parent / path).resolve()
                assert found.is_file() or (found / "index.html").is_file(), f"{page.relative_to(site)}: {target}"

"""Hooks of MkDocs: pages that stand outside of `docs/`, and links between them and those inside.

In the repository a document links to files by their paths, which GitHub shows as they are. The site has documents
alone: a link to one is made to fit, a link to anything else becomes its text.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[1]
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "examples/README.md",
    "models/README.md",
)
"""Documents outside of `docs/`, as patterns below the repository; on the site they keep their paths."""
_LINK = re.compile(r"(!?)\[([^][]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """The site's files, with the documents of `OUTSIDE`."""
    for pattern in OUTSIDE:
        for path in sorted(REPOSITORY.glob(pattern)):
            name = path.relative_to(REPOSITORY).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files, **_: Any) -> str:
    """The page's Markdown with links as the site needs them; code blocks stay as they are."""
    source = page.file.abs_src_path
    assert source is not None, page.file.src_uri
    folder = Path(source).parent

    def replaced(match: re.Match[str]) -> str:
        mark, text, link = match.groups()
        target, hash_, anchor = link.partition("#")
        if not target or "://" in target:
            return match[0]
        name = _name_on_site(Path(os.path.normpath(folder / target)), Path(config.docs_dir))
        if files.get_file_from_path(name) is None:
            return str(text)
        return f"{mark}[{text}]({posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or '.')}{hash_}{anchor})"

    pieces = _FENCE.split(markdown)
    pieces[::2] = [_LINK.sub(replaced, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _name_on_site(path: Path, docs: Path) -> str:
    """The path of a document in the site's tree, for a path on disk."""
    return path.relative_to(docs if path.is_relative_to(docs) else REPOSITORY).as_posix()

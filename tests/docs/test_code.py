"""The Python blocks of documents that need no server run one after the other and print what stands below them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.documents import ENGINES, REPOSITORY, blocks, printed

DOCUMENTS = ("docs/how-it-works.md", "docs/constraints.md", "docs/structural-tags.md", "docs/library.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_prints_what_stands_below_it(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    namespace: dict[str, Any] = {}
    found = blocks(document)
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block.language == "python" and not ENGINES.search(block.text):
            expected = following.text if following is not None and following.language == "text" else ""
            lines = [line.rstrip() for line in printed(block, document, namespace).splitlines()]
            assert lines == expected.splitlines(), f"the block in line {block.line} prints something else"

"""YAML blocks of the documents can be read, so that somebody may copy them."""

from __future__ import annotations

import pytest
import yaml

from tests.documents import REPOSITORY, blocks

DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((REPOSITORY / "docs").glob("*.md")))]


def test_the_documents_have_yaml_blocks() -> None:
    assert sum(len(blocks(document, "yaml")) for document in DOCUMENTS) >= 10


@pytest.mark.parametrize("document", DOCUMENTS)
def test_yaml_blocks_can_be_read(document: str) -> None:
    for block in blocks(document, "yaml"):
        try:
            list(yaml.safe_load_all(block.text))
        except yaml.YAMLError as error:
            pytest.fail(f"the block in line {block.line}: {error}")

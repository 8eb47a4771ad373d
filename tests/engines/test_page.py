"""The Python blocks of `docs/library.md` that need an engine print what stands below them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from models.to_gguf import convert
from tests.documents import ENGINES, REPOSITORY, blocks, printed

PAGE = "docs/library.md"


def test_every_block_prints_what_stands_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").symlink_to(REPOSITORY / "models")
    convert(tmp_path / "turnstile-tiny.gguf")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    found = blocks(PAGE, "python", "text")
    exec(found[0].text + "from turnstile_llm import Choice\n", namespace)
    pairs = [(block, shown) for block, shown in itertools.pairwise(found) if ENGINES.search(block.text)]
    assert len(pairs) == 3
    for block, shown in pairs:
        assert printed(block, PAGE, namespace) == shown.text, f"the block in line {block.line} prints something else"

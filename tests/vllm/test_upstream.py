"""vLLM's own tests of structured outputs pass with our backend in the place of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.sources import NoSourceError
from tests.vllm.upstream.run import run

FEWEST = {"managers": 40, "generate": 4, "beams": 1}


@pytest.mark.parametrize(
    "name", ["managers", *(pytest.param(name, marks=pytest.mark.long) for name in ("generate", "beams"))]
)
@pytest.mark.timeout(1500)
def test_they_pass(name: str, tmp_path: Path) -> None:
    """Managers, requests, reasoning, speculation, stop tokens; `generate` and beam search."""
    try:
        result = run(name, tmp_path)
    except NoSourceError as error:
        pytest.skip(f"pip has no source of this vLLM here: {error}")
    assert result.failed == [], result.output
    assert result.passed >= FEWEST[name]

"""Masks with real tokenizers, judged by the tokenizers themselves; see `benchmarks.real_tokenizers`."""

from __future__ import annotations

import pytest

from benchmarks.real_tokenizers import MISTRAL, PACKAGES, check, load


@pytest.mark.long
@pytest.mark.parametrize("name", [*PACKAGES, *MISTRAL])
def test_masks_are_right_with(name: str) -> None:
    try:
        tokenizer = load(name)
    except OSError as error:
        pytest.skip(f"the tokenizer is not here and cannot be downloaded: {error}")
    lines: list[str] = []
    findings = check(name, tokenizer, walks=3, report=lines.append)
    print(findings)
    assert not lines
    assert findings.right and findings.outputs == 51 and findings.tokenizations > 120, findings

"""A twentieth of the exactness scenarios and of the soak; in full by `make soak`."""

from __future__ import annotations

import pytest

from tests.gpu_workers.scenarios import check
from tests.gpu_workers.soak import soak


@pytest.mark.parametrize("block", range(5))
def test_no_circumstance_changes_a_token(block: int) -> None:
    for seed in range(block * 5, block * 5 + 5):
        check(seed)


@pytest.mark.parametrize("seed", [0, 1])  # without and with overlap
def test_soak(seed: int) -> None:
    report = soak(50, seed=seed)
    assert report.ended == 50
    assert report.finished > 10

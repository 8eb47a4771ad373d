"""The hash of rows: every bit of a row has to move it to another bucket, or a search walks through all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from grammar_workers.dfa.row_hash import laid_buckets


@njit
def _laid(rows: NDArray[np.uint64]) -> NDArray[np.int32]:
    """`laid_buckets`, which compiled code alone can call."""
    return laid_buckets(rows, np.int64(rows.shape[0]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("column", [0, 2, 4])
@pytest.mark.parametrize("shift", [0, 7, 20, 32, 41, 52])
def test_rows_that_differ_in_a_few_bits_lie_apart(column: int, shift: int) -> None:
    many = 4096
    rows = np.zeros((many, 5), np.uint64)
    rows[:, column] = np.arange(many, dtype=np.uint64) << np.uint64(shift)
    buckets = _laid(rows)
    assert sorted(buckets[buckets >= 0]) == list(range(many))
    runs = [len(list(group)) for full, group in itertools.groupby(buckets >= 0) if full]
    assert max(runs) < 100, "rows wait in a queue for the same buckets"

"""Batches of mask rows against numpy's own unpacking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar_workers.matching.apply_masks import forbid_unmasked

WORDS = st.sampled_from([0, 0xFFFFFFFF, 1, 1 << 31, 0x0F0F1234])


@given(st.data())
def test_logits_keep_what_the_bits_allow(data: st.DataObject) -> None:
    words, tokens = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 140))
    many = data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.integers(0, many - 1), unique=True))
    masks = np.array([[data.draw(WORDS) for _ in range(words)] for _ in rows], np.uint32).reshape(len(rows), words)
    logits = np.arange(many * tokens, dtype=np.float32).reshape(many, tokens)
    expected = logits.copy()
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=tokens, bitorder="little")
    for row, allowed in zip(rows, bits, strict=True):
        expected[row][allowed == 0] = -np.inf
    forbid_unmasked(logits, masks, rows)
    assert np.array_equal(logits, expected)


def test_without_rows_every_mask_has_its_own() -> None:
    logits = np.zeros((2, 32), np.float32)
    forbid_unmasked(logits, np.array([[1], [2]], np.uint32))
    assert np.argwhere(np.isfinite(logits)).tolist() == [[0, 0], [1, 1]]


def test_every_mask_needs_its_row() -> None:
    with pytest.raises(ValueError, match="zip"):
        forbid_unmasked(np.zeros((2, 32), np.float32), np.zeros((1, 1), np.uint32))

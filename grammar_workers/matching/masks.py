"""Mask rows of a whole batch, applied to logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS
from grammar_workers.types import MaskRow


def forbid_unmasked(logits: NDArray[np.float32], masks: Sequence[MaskRow], rows: Sequence[int] | None = None) -> None:
    """Make the logits (float32 [n, V], changed in place) of tokens -inf whose mask bit is not set.

    `masks[i]` (uint32 [words]) belongs to row `rows[i]` of the logits, by default to row i. Tokens past a mask's width
    are forbidden, too.
    """
    for row, mask in zip(range(len(logits)) if rows is None else rows, masks, strict=True):
        _forbid(logits[row], mask)


@njit([types.void(types.float32[::1], types.Array(types.uint32, 1, "C", readonly=True))], **OPTIONS)
def _forbid(logits, mask):  # type: ignore[no-untyped-def]
    """Words of all ones, most of a row inside a string, are not touched; those of zeros are written without a look."""
    tokens = logits.shape[0]
    whole = min(mask.shape[0], tokens // 32)
    for word in range(whole):
        bits = mask[word]
        if bits == np.uint32(0xFFFFFFFF):
            continue
        start = word * 32
        if bits == 0:
            logits[start : start + 32] = -np.inf
            continue
        for bit in range(32):
            if (bits >> np.uint32(bit)) & np.uint32(1) == 0:
                logits[start + bit] = -np.inf
    for token in range(whole * 32, tokens):
        word = token >> 5
        if word >= mask.shape[0] or (mask[word] >> np.uint32(token & 31)) & np.uint32(1) == 0:
            logits[token] = -np.inf

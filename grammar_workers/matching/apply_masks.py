"""Application of token masks to the logits of a batch, on the host (with numpy arrays)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import float32, uint32
from numpy.typing import NDArray

from grammar_workers.numba_options import OPTIONS, compiled_for, readonly
from grammar_workers.types import MaskRow


def forbid_unmasked(logits: NDArray[np.float32], masks: Sequence[MaskRow], rows: Sequence[int] | None = None) -> None:
    """Set the logits of disallowed tokens to -inf, in place.

    If the number of masks differs from the number of rows, ValueError is raised.

    Args:
        logits: float32 [n, V], C-contiguous, changed in place.
        masks: Masks of allowed tokens, uint32 [words] each. If V is larger than 32 * words, the tokens beyond the end
            of the mask are disallowed.
        rows: For each mask, the index of its row in `logits`. Other rows are unchanged. None: mask i belongs to row i,
            and there must be n masks.
    """
    for row, mask in zip(range(len(logits)) if rows is None else rows, masks, strict=True):
        _forbid(logits[row], mask)


@compiled_for((float32[::1], readonly(uint32[::1])), **OPTIONS)
def _forbid(logits, mask):  # type: ignore[no-untyped-def]
    """Skip words of all ones (most of a mask inside a string); write words of zeros without a test per bit."""
    tokens = logits.shape[0]
    for word in range(min(mask.shape[0], -(-tokens // 32))):
        bits = mask[word]
        if bits == np.uint32(0xFFFFFFFF):
            continue
        start = word * 32
        if bits == 0:
            logits[start : start + 32] = -np.inf
            continue
        for bit in range(min(32, tokens - start)):
            if (bits >> np.uint32(bit)) & np.uint32(1) == 0:
                logits[start + bit] = -np.inf
    logits[mask.shape[0] * 32 :] = -np.inf

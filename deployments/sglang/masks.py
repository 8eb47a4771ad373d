"""Operations on SGLang's token bitmask, int32 [rows, words], lowest bit first."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

_BITS = 32


def mask_kernel(device: torch.device) -> Callable[[Tensor, Tensor], Any]:
    """Return the function that applies a bitmask on `device`: SGLang's Triton kernel for CUDA, else `forbid`."""
    if device.type != "cuda" or torch.version.hip is not None:
        return forbid
    from sglang.kernels.ops.grammar.bitmask_ops import apply_token_bitmask_inplace_triton

    return apply_token_bitmask_inplace_triton


def apply_vocab_mask(logits: Tensor, vocab_mask: Tensor) -> None:
    """Set the logits of forbidden tokens to -inf, in place.

    Args:
        logits: Float [rows, V].
        vocab_mask: int32 [rows, words] on the same device, with at least V bits.
    """
    words = -(-logits.shape[1] // _BITS)
    # Triton's kernel takes no wider mask, and its rows must lie behind each other.
    mask_kernel(logits.device)(logits, vocab_mask[:, :words].contiguous())


def forbid(logits: Tensor, bitmask: Tensor) -> None:
    """Apply `bitmask` with torch alone. Temporary tensors have an eighth of a byte per logit."""
    octets = bitmask.view(torch.uint8)  # byte b holds the bits of the tokens 8 b to 8 b + 7
    for bit in range(8):
        columns = logits[:, bit::8]
        columns.masked_fill_((octets[:, : columns.shape[1]] & (1 << bit)) == 0, float("-inf"))


def set_token_filter(
    vocab_mask: Tensor,
    token_ids: Collection[int],
    batch_idx: int,
    is_allowed: bool = True,
    reset_vocab_mask: bool = True,
) -> None:
    """Allow or forbid single tokens in a row of a bitmask on the host, as SGLang's strict thinking does.

    Args:
        vocab_mask: int32 [rows, words].
        token_ids: Tokens to change.
        batch_idx: Index of the row.
        is_allowed: The tokens become allowed, otherwise forbidden.
        reset_vocab_mask: All other tokens become the opposite first.
    """
    row = vocab_mask[batch_idx].numpy().view(np.uint32)
    if reset_vocab_mask:
        row[:] = 0 if is_allowed else np.iinfo(np.uint32).max
    for token_id in token_ids:
        word, bit = divmod(token_id, _BITS)
        if is_allowed:
            row[word] |= np.uint32(1 << bit)
        else:
            row[word] &= ~np.uint32(1 << bit)

"""Operations on SGLang's token bitmask: apply the bitmask to logits, and allow or disallow single tokens.

The bitmask is int32 [B, words] for B sequences. Bit t % 32 of word t // 32 is set if token t is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_workers.guided.output_budget import row_of
from gpu_workers.vllm.backend import new_bitmask

_BITS = 32


def mask_kernel(device: torch.device) -> Callable[[Tensor, Tensor], Any]:
    """Return the function that applies token bitmasks to logits on a device.

    Args:
        device: Device of the logits.

    Returns:
        SGLang's Triton kernel for NVIDIA GPUs, `forbid` for all other devices. The function takes float logits [B, V]
        and a bitmask int32 [B, words]. It sets the logits of disallowed tokens to -inf, in place.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return forbid
    from sglang.kernels.ops.grammar.bitmask_ops import apply_token_bitmask_inplace_triton

    return apply_token_bitmask_inplace_triton


def apply_vocab_mask(logits: Tensor, vocab_mask: Tensor) -> None:
    """Set the logits of disallowed tokens to -inf, in place.

    Args:
        logits: Logits of B sequences, float [B, V].
        vocab_mask: Token bitmasks, int32 [B, words] on the device of `logits`, with at least V bits per sequence. Bit t
            % 32 of word t // 32 is set if token t is allowed.
    """
    words = -(-logits.shape[1] // _BITS)
    # Triton's kernel accepts no wider bitmask, and requires a contiguous one.
    mask_kernel(logits.device)(logits, vocab_mask[:, :words].contiguous())


def forbid(logits: Tensor, bitmask: Tensor) -> None:
    """Set the logits of disallowed tokens to -inf, in place, with torch operations only (no Triton kernel).

    The temporary tensors need B * V / 4 bytes.

    Args:
        logits: Logits of B sequences, float [B, V].
        bitmask: Token bitmasks, int32 [B, words] on the device of `logits`, with at least V bits per sequence. Bit
            t % 32 of word t // 32 is set if token t is allowed.
    """
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
    """Allow or disallow some tokens in the mask of one sequence. SGLang calls this function during reasoning.

    Args:
        vocab_mask: Token bitmasks on the host, int32 [B, words]; changed in place.
        token_ids: IDs of the tokens that become allowed or disallowed.
        batch_idx: Index of the sequence, 0 to B - 1.
        is_allowed: True: allow the tokens. False: disallow the tokens.
        reset_vocab_mask: True: all other tokens get the opposite value. False: all other tokens keep their values.
    """
    row = vocab_mask[batch_idx].numpy().view(np.uint32)
    chosen = row_of(token_ids, len(row))
    if reset_vocab_mask:
        row[:] = chosen if is_allowed else ~chosen
    elif is_allowed:
        row |= chosen
    else:
        row &= ~chosen


class MaskMethods:
    """Mask operations that SGLang calls as methods of a grammar object.

    For requests that reason and have no constraint, SGLang calls them as methods of the grammar backend.
    """

    _tokens: int  # width V of the logits

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> Tensor:
        """Return a new token bitmask on the host, in which all tokens are allowed.

        Args:
            vocab_size: SGLang's width of the logits. The bitmask is at least as wide as the model's logits.
            batch_size: Number of sequences.
            device: Ignored.

        Returns:
            int32 [batch_size, words], with one bit per token (32 tokens in each word).
        """
        return new_bitmask(batch_size, max(vocab_size, self._tokens))

    @staticmethod
    def move_vocab_mask(vocab_mask: Tensor, device: Any) -> Tensor:
        """Start to copy the token bitmask to a device, and return the copy without waiting for its completion."""
        return vocab_mask.to(device, non_blocking=True)

    apply_vocab_mask = staticmethod(apply_vocab_mask)

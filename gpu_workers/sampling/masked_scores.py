"""Applies token masks and temperature to logits on a device in one operation, without reading a value on the host.

    score = (logit - largest allowed logit) / temperature,   -inf for disallowed tokens

The masks of all sequences are in one table, as token bitmasks (one bit per token), and each sequence has an index in
this table. On CUDA, a Triton kernel (`masked_scores_kernel`) computes the scores, and masks are neither copied nor
unpacked to booleans. In other cases (another device, float64 logits, no Triton), PyTorch operations compute identical
numbers.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from gpu_workers.sampling.distribution import scaled

# Number of tokens in one word of a token bitmask.
BITS = 32
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def masked_scores(logits: Tensor, rows: Tensor | None, places: Tensor | None, temperature: Tensor) -> Tensor:
    """Return (logit - largest allowed logit) / temperature for each token, and -inf for disallowed tokens.

    The exponentials of these scores are the weights by which tokens are sampled.

    Args:
        logits: Logits of n sequences, [n, V], float64, float32, bfloat16 or float16.
        rows: Token bitmasks, int32 [r, W]; None if no sequence has a mask. Tokens from 32 W on are disallowed.
        places: Index of each sequence's mask in `rows`, int64 [n]; -1 without a mask. None if no sequence has a mask.
        temperature: Temperature of each sequence, float64 [n], above 0. It is rounded to the type of the scores.

    Returns:
        Scores [n, V], float64 for float64 logits, else float32.
    """
    if logits.device.type == "cuda" and logits.dtype != torch.float64 and _HAS_TRITON:
        from gpu_workers.sampling.masked_scores_kernel import masked_scores_on_cuda

        return masked_scores_on_cuda(logits, rows, places, temperature.float())
    return masked_scores_by_operations(logits, rows, places, temperature)


def masked_scores_by_operations(
    logits: Tensor, rows: Tensor | None, places: Tensor | None, temperature: Tensor
) -> Tensor:
    """Compute the result of `masked_scores` with PyTorch operations, on any device.

    The function can be traced by a compiler and captured in a graph.

    Args:
        logits: Logits of n sequences, [n, V], float64, float32, bfloat16 or float16.
        rows: Token bitmasks, int32 [r, W]; None if no sequence has a mask. Tokens from 32 W on are disallowed.
        places: Index of each sequence's mask in `rows`, int64 [n]; -1 without a mask. None if no sequence has a mask.
        temperature: Temperature of each sequence, float64 [n], above 0. It is rounded to the type of the scores.

    Returns:
        Scores [n, V], float64 for float64 logits, else float32.
    """
    scores = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    if rows is not None and places is not None:
        allowed = unpacked(rows[places.clamp(min=0)], logits.shape[1]) | (places < 0)[:, None]
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scaled(scores, temperature.to(scores.dtype))


def unpacked(words: Tensor, tokens: int) -> Tensor:
    """Unpack token bitmasks (one bit per token) to booleans, on the device of the bitmasks.

    Args:
        words: Token bitmasks, int32 [n, W].
        tokens: Number of tokens. Those from 32 W on are disallowed.

    Returns:
        True for allowed tokens, bool [n, tokens].
    """
    shifts = torch.arange(BITS, dtype=torch.int32, device=words.device)
    bits = ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :tokens] != 0
    return torch.nn.functional.pad(bits, (0, tokens - bits.shape[1])) if bits.shape[1] < tokens else bits

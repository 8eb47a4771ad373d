"""Masks and temperature in one go, where logits are on a device: packed rows in, scores out, nothing of the host.

    score = (logit - largest allowed logit) / temperature,   -inf where the mask forbids

The mask rows of many sequences lie in one table, and `places` says which of them is whose: what reads them needs no
copy of a row, and no bool for a token. On CUDA a Triton kernel does it (`masked_scores_kernel`); elsewhere, in float64,
and where Triton is missing, operations of PyTorch, number for number the same.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from gpu_workers.sampling.distribution import scaled

BITS = 32
"""Tokens of one word of a mask row."""
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def masked_scores(logits: Tensor, rows: Tensor | None, places: Tensor | None, temperature: Tensor) -> Tensor:
    """Scores [n, V] of `logits` [n, V], float32, or float64 where they are; their exponentials are weights to draw by.

    `rows` int32 [r, W]: packed mask rows; `places` int64 [n]: the row of each line, -1 for one without a mask. Both
    are None where nobody has one. Tokens past 32 W are forbidden. `temperature` float64 [n], not 0, is
    rounded to the scores' type.
    """
    if logits.device.type == "cuda" and logits.dtype != torch.float64 and _HAS_TRITON:
        from gpu_workers.sampling.masked_scores_kernel import masked_scores_on_cuda

        return masked_scores_on_cuda(logits, rows, places, temperature.float())
    return masked_scores_by_operations(logits, rows, places, temperature)


def masked_scores_by_operations(
    logits: Tensor, rows: Tensor | None, places: Tensor | None, temperature: Tensor
) -> Tensor:
    """`masked_scores` by operations of PyTorch, on any device; can be traced and captured."""
    scores = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    if rows is not None and places is not None:
        allowed = unpacked(rows[places.clamp(min=0)], logits.shape[1]) | (places < 0)[:, None]
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scaled(scores, temperature.to(scores.dtype))


def unpacked(words: Tensor, tokens: int) -> Tensor:
    """Packed rows int32 [n, W] as bool [n, tokens], on their device; tokens past their width are forbidden."""
    shifts = torch.arange(BITS, dtype=torch.int32, device=words.device)
    bits = ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :tokens] != 0
    return torch.nn.functional.pad(bits, (0, tokens - bits.shape[1])) if bits.shape[1] < tokens else bits

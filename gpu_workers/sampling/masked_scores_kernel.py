"""Triton kernel of `masked_scores`, which applies token masks and temperature to logits on CUDA.

One program per sequence reads the logits twice, the second time from the cache. Import this module only if Triton is
installed. Differences and quotients are rounded by IEEE 754, so the kernel and the PyTorch operations compute scores
with equal bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
_WARPS = 8


@torch.library.custom_op(
    "turnstile::masked_scores",
    mutates_args=(),
    schema="(Tensor logits, Tensor? rows, Tensor? places, Tensor temperature) -> Tensor",
)
def masked_scores_on_cuda(logits: Tensor, rows: Tensor | None, places: Tensor | None, temperature: Tensor) -> Tensor:
    """Return (logit - largest allowed logit) / temperature for each token, and -inf for disallowed tokens, on CUDA.

    This is a custom operator because `torch.compile` cannot trace Triton kernels or the selection of a device.

    Args:
        logits: Logits of n sequences, float32, bfloat16 or float16 [n, V], contiguous in the second dimension.
        rows: Token bitmasks, int32 [r, W]; None if no sequence has a mask. Tokens from 32 W on are disallowed.
        places: Index of each sequence's mask in `rows`, int64 [n]; -1 without a mask. None if no sequence has a mask.
        temperature: Temperature of each sequence, float32 [n], above 0.

    Returns:
        Scores, float32 [n, V].
    """
    lines, tokens = logits.shape
    scores = torch.empty(lines, tokens, dtype=torch.float32, device=logits.device)
    words, stride = (0, 0) if rows is None else (rows.shape[1], rows.stride(0))
    with torch.cuda.device_of(logits):  # Triton launches on the thread's current device
        _score[(lines,)](
            logits, rows, places, temperature, scores, tokens, words, logits.stride(0), stride,
            SMALLEST=torch.finfo(torch.float32).tiny, BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return scores


@masked_scores_on_cuda.register_fake
def _(logits: Tensor, rows: Tensor | None, places: Tensor | None, temperature: Tensor) -> Tensor:
    return logits.new_empty(logits.shape, dtype=torch.float32)


@triton.jit
def _score(  # type: ignore[no-untyped-def]
    logits,
    rows,
    places,
    temperature,
    scores,
    tokens,
    words,
    logits_stride,
    rows_stride,
    SMALLEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    logits += line * logits_stride
    scores += line * tokens
    place = tl.full((), -1, tl.int64) if places is None else tl.load(places + line)
    row = rows if places is None else rows + place * rows_stride
    divisor = tl.maximum(tl.load(temperature + line), SMALLEST)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, tokens, BLOCK):
        largest = tl.maximum(largest, _masked(logits, row, place, start, tokens, words, BLOCK))
    top = tl.max(largest, 0)
    for start in range(0, tokens, BLOCK):
        at = start + tl.arange(0, BLOCK)
        kept = _masked(logits, row, place, start, tokens, words, BLOCK)
        tl.store(scores + at, tl.div_rn(kept - top, divisor), mask=at < tokens)


@triton.jit
def _masked(logits, row, place, start, tokens, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a block of logits from `start` on, -inf if disallowed or beyond the end. `place` < 0 means no mask."""
    at = start + tl.arange(0, BLOCK)
    value = tl.load(logits + at, mask=at < tokens, other=float("-inf")).to(tl.float32)
    if row is not None:
        known = tl.where(place < 0, 0, words)
        word = tl.load(row + (at >> 5), mask=(at >> 5) < known, other=0) | tl.where(place < 0, -1, 0)
        value = tl.where(((word >> (at & 31)) & 1) != 0, value, float("-inf"))
    return value

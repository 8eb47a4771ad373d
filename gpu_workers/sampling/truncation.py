"""Top-k, top-p and min-p: filters that set the weights of unlikely tokens to 0, for a batch of sequences.

On a CPU, top-p does not sort the vocabulary. Weights are added up in buckets by their leading bits: larger
floating-point numbers have larger bits. Only the bucket in which the sum reaches the fraction `top_p` is sorted.

    bits of 1.0    0 01111111 0000|0000...      4,096 buckets, 16 per power of two
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numba import float32, float64, int32
from torch import Tensor

from grammar_workers.numba_options import compiled_for

T = TypeVar("T", int, float)

_SHIFT = 19
_BUCKETS = 1 << (31 - _SHIFT)


def truncate(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set the weights of unlikely tokens to 0, first by top-k, then by top-p.

    Top-p keeps the most likely tokens until their weights reach the fraction `top_p` of the sum after top-k (Holtzman
    et al. 2020). Tokens whose weights equal the smallest kept weight are kept, too.

    Args:
        weights: Weights >= 0 of K tokens for each of n sequences, [n, K]. Not changed.
        top_k: Number of tokens that top-k keeps, int64 [n]; 0: no top-k.
        top_p: Fraction in (0, 1] that top-p keeps, float64 [n]; 1: no top-p.

    Returns:
        Weights [n, K], of the type of `weights`; perhaps `weights` itself.
    """
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        return truncate_by_sorting(weights, top_k, top_p)
    width = weights.shape[1]
    weights = _cut_rows(weights, {i: k for i, k in enumerate(top_k.tolist()) if 0 < k < width}, _top_k_cuts)
    return _cut_rows(weights, {i: p for i, p in enumerate(top_p.tolist()) if p < 1}, _top_p_cuts)


def truncate_by_sorting(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Compute the result of `truncate` by sorting the weights of every sequence, without reading a value on the host.

    On a GPU, sorting is faster than reading values. The function can be traced by a compiler and captured in a graph.

    Args:
        weights: Weights >= 0 of K tokens for each of n sequences, [n, K]. Not changed.
        top_k: Number of tokens that top-k keeps, int64 [n]; 0: no top-k.
        top_p: Fraction in (0, 1] that top-p keeps, float64 [n]; 1: no top-p.

    Returns:
        Weights [n, K], of the type of `weights`.
    """
    ordered = weights.sort(-1, descending=True).values
    k = torch.where(top_k > 0, top_k, weights.shape[1]).clamp(max=weights.shape[1])
    cut = ordered.gather(1, k[:, None] - 1)
    ordered = torch.where(ordered < cut, 0, ordered)
    cumulative = ordered.cumsum(-1, dtype=torch.float64)
    kept = (cumulative - ordered < top_p[:, None] * cumulative[:, -1:]).sum(-1, keepdim=True)
    likely = ordered.gather(1, (kept - 1).clamp(min=0))
    cut = torch.where(top_p[:, None] < 1, torch.maximum(cut, likely), cut)
    return torch.where(weights < cut, 0, weights)


def drop_unlikely(weights: Tensor, min_p: Tensor) -> Tensor:
    """Set to 0 all weights below `min_p` times the largest weight of their sequence.

    Reference: min-p sampling, Nguyen et al. 2024.

    Args:
        weights: Weights >= 0 of K tokens for each of n sequences, [n, K]. Not changed.
        min_p: Fraction in [0, 1] for each sequence, float [n]; 0: no min-p.

    Returns:
        Weights [n, K], of the type of `weights`.
    """
    share = min_p.to(weights.dtype)[:, None]
    return torch.where(weights < share * weights.amax(-1, keepdim=True), 0, weights)


def _cut_rows(weights: Tensor, settings: dict[int, T], cuts: Callable[[Tensor, list[T]], Tensor]) -> Tensor:
    """Return weights, with 0 for those below the threshold of `cuts`, in sequences that have a setting."""
    if not settings:
        return weights
    if len(settings) == len(weights):
        return torch.where(weights < cuts(weights, list(settings.values())), 0, weights)
    index = torch.tensor(list(settings))
    part = weights[index]
    return weights.index_copy(0, index, torch.where(part < cuts(part, list(settings.values())), 0, part))


def _top_k_cuts(weights: Tensor, top_k: list[int]) -> Tensor:
    """Return the k-th largest weight of each sequence, [n, 1]."""
    largest = weights.topk(max(top_k)).values
    return largest.gather(1, torch.tensor(top_k)[:, None] - 1)


def _top_p_cuts(weights: Tensor, top_p: list[float]) -> Tensor:
    """Return the smallest weight of each sequence that top-p keeps, [n, 1]."""
    rows = weights.numpy()
    # Rounding to float32 keeps the order; equal numbers share a bucket.
    keys = np.ascontiguousarray(rows, dtype=np.float32).view(np.int32)
    cuts = [_cut(row, key, share) for row, key, share in zip(rows, keys, top_p, strict=True)]
    return torch.tensor(cuts, dtype=weights.dtype)[:, None]


@compiled_for((float32[::1], int32[::1], float64), (float64[::1], int32[::1], float64), nogil=True)
def _cut(weights, keys, share):  # type: ignore[no-untyped-def]
    """Return the weight at which the largest weights reach `share` of the sum. `keys` has the weights' float32 bits."""
    sums = np.zeros(_BUCKETS)
    sizes = np.zeros(_BUCKETS, np.int64)
    for i in range(len(weights)):
        bucket = keys[i] >> _SHIFT
        sums[bucket] += weights[i]
        sizes[bucket] += 1
    wanted = 0.0
    for bucket in range(_BUCKETS - 1, -1, -1):
        wanted += sums[bucket]
    wanted *= share
    before, bucket = 0.0, _BUCKETS - 1
    while bucket > 0 and before + sums[bucket] < wanted:
        before += sums[bucket]
        bucket -= 1
    if bucket == 0 or sizes[bucket] == 0:  # keep all weights, also if they are not finite
        return 0.0
    inside = np.empty(sizes[bucket], weights.dtype)
    found = 0
    for i in range(len(weights)):
        if keys[i] >> _SHIFT == bucket:
            inside[found] = weights[i]
            found += 1
    inside.sort()
    for i in range(found - 1, 0, -1):
        before += inside[i]
        if before >= wanted:
            return inside[i]
    return inside[0]

"""From logits to the sampled token: pure functions of tensors, for the host and for steps captured on the device.

    logits --scaled, exp--> --truncate--> --drop_unlikely--> weights, a number in [0, 1) --inverse_cdf--> column
             temperature      top-k, top-p   min-p

A *column* is an index in the second dimension of logits: a token ID, or an index in a list of allowed tokens. If the
tensors are on a GPU, or a compiler traces the functions, the host reads no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_workers.request import SamplingParameters
from gpu_workers.sampling.truncation import drop_unlikely, truncate
from gpu_workers.transfers import to_device


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """Sampling settings of n sequences, as tensors. None turns a setting off for all sequences.

    Attributes:
        temperature: float64 [n], above 0.
        top_k: int64 [n], or [m] with `truncated`; 0: no top-k.
        top_p: float64 [n], or [m] with `truncated`; 1: no top-p.
        min_p: float64 [n]; 0: no min-p.
        truncated: Indices of the m sequences to which `top_k` and `top_p` apply, int64 [m]; None: all sequences.
    """

    temperature: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    truncated: Tensor | None = None


def draw_settings(rows: Sequence[SamplingParameters], device: torch.device) -> DrawSettings:
    """Return the sampling settings of n sequences as tensors. A setting that is off for all sequences is None.

    Args:
        rows: Sampling settings of each sequence. All temperatures must be above 0.
        device: Device of the tensors.
    """
    temperature = to_device(torch.tensor([row.temperature for row in rows], dtype=torch.float64), device)
    top_k = top_p = min_p = truncated = None
    if index := [i for i, row in enumerate(rows) if row.top_k > 0 or row.top_p < 1]:
        top_k = to_device(torch.tensor([rows[i].top_k for i in index]), device)
        top_p = to_device(torch.tensor([rows[i].top_p for i in index], dtype=torch.float64), device)
        if len(index) < len(rows):
            truncated = to_device(torch.tensor(index), device)
    if any(row.min_p for row in rows):
        min_p = to_device(torch.tensor([row.min_p for row in rows], dtype=torch.float64), device)
    return DrawSettings(temperature, top_k=top_k, top_p=top_p, min_p=min_p, truncated=truncated)


def draw_weights(logits: Tensor, settings: DrawSettings) -> Tensor:
    """Return the sampling weights of logits, after temperature and truncation (top-k, top-p, min-p).

    Args:
        logits: Logits of K tokens for each of n sequences, [n, K]; -inf for disallowed tokens.
        settings: Sampling settings of the n sequences.

    Returns:
        Weights >= 0, [n, K], of the type of the logits: probabilities up to a factor per sequence. The weight of a
        truncated token is 0.
    """
    return filtered(scaled(logits, settings.temperature.to(logits.dtype)).exp_(), settings)


def filtered(weights: Tensor, settings: DrawSettings) -> Tensor:
    """Truncate weights: tokens that top-k, top-p or min-p removes get the weight 0.

    Args:
        weights: Weights >= 0 of K tokens for each of n sequences, [n, K], after the temperature. Not changed.
        settings: Sampling settings of the n sequences. The temperature is not used.

    Returns:
        Weights [n, K], of the type of `weights`; `weights` itself if nothing is truncated.
    """
    if settings.top_k is not None and settings.top_p is not None:
        if settings.truncated is None:
            weights = truncate(weights, settings.top_k, settings.top_p)
        else:
            part = truncate(weights[settings.truncated], settings.top_k, settings.top_p)
            weights = weights.index_copy(0, settings.truncated, part)
    return weights if settings.min_p is None else drop_unlikely(weights, settings.min_p)


def scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return (logits - largest logit of the sequence) / temperature, as a new tensor [n, K].

    Args:
        logits: Logits of K tokens for each of n sequences, [n, K].
        temperature: Temperatures above 0, [n], of the type of the logits. A temperature below the smallest normal
            number counts as that number.
    """
    temperature = temperature.clamp(min=torch.finfo(logits.dtype).tiny)  # 1e-300 would round to 0
    # Subtracting the largest first: a tiny temperature then makes zeros, never infinities.
    # In place: memory for a whole batch is new to the process each time, which costs more than the arithmetic.
    return (logits - logits.amax(-1, keepdim=True)).div_(temperature[:, None])


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """Sample one column per sequence: the first whose cumulative weight exceeds `uniform` times the total weight.

    A *column* is an index in the second dimension of `weights`. Cumulative sums are float64: in float32, their rounding
    depends on the shape of the batch, so another batch could give another column.

    Args:
        weights: Weights >= 0, [n, K]. Each sequence needs at least one weight above 0.
        uniform: Random number in [0, 1) of each sequence, float64 [n].

    Returns:
        One column per sequence, int64 [n]. Its weight is above 0.
    """
    return column_at(weights, weights.cumsum(-1, dtype=torch.float64), uniform)


def column_at(weights: Tensor, cumulative: Tensor, uniform: Tensor) -> Tensor:
    """Sample one column per sequence as `inverse_cdf` does, from cumulative weights that are already computed.

    A GPU computes sums in parallel, so a sum can grow by an ulp at a column of weight 0. Instead of such a column, the
    column with the largest weight is returned. The result is always below K, even if weights are NaN.

    Args:
        weights: Weights >= 0, [n, K].
        cumulative: Cumulative sums of the weights of each sequence, float64 [n, K].
        uniform: Random number in [0, 1) of each sequence, float64 [n].

    Returns:
        One column (index in the second dimension of `weights`) per sequence, int64 [n].
    """
    total = cumulative[:, -1:]
    # Rounding may lift u * total to total itself, past the last column.
    target = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    column = torch.searchsorted(cumulative, target, right=True).clamp(max=weights.shape[1] - 1)
    sure = weights.gather(1, column) > 0
    if weights.device.type == "cpu" and not torch.compiler.is_compiling() and bool(sure.all()):
        return column[:, 0]
    return torch.where(sure, column, weights.argmax(-1, keepdim=True))[:, 0]

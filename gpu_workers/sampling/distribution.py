"""From logits to the column that is drawn: pure functions of tensors, on the host and in a captured step of the device.

    logits --softmax_weights--> --truncate--> --drop_unlikely--> weights, a number of [0, 1) --inverse_cdf--> column
             temperature         top-k, top-p   min-p

Where the tensors are on a device, or a compiler traces them, nothing is read on the host.
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
    """How n rows are drawn: float64 [n], but `top_k` int64. None: off for all rows.

    `truncated` int64 [m]: the rows that `top_k` and `top_p`, then [m], are for; None: all of them.
    """

    temperature: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    truncated: Tensor | None = None


def draw_settings(rows: Sequence[SamplingParameters], device: torch.device) -> DrawSettings:
    """The settings of `rows`, none of them greedy."""
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
    """Probabilities up to a factor per row, zero where a setting leaves a token out. logits and weights [n, K]."""
    return filtered(softmax_weights(logits, settings.temperature.to(logits.dtype)), settings)


def filtered(weights: Tensor, settings: DrawSettings) -> Tensor:
    """Weights [n, K] >= 0 with zeros where a setting leaves a token out; temperatures are in them already."""
    if settings.top_k is not None and settings.top_p is not None:
        if settings.truncated is None:
            weights = truncate(weights, settings.top_k, settings.top_p)
        else:
            part = truncate(weights[settings.truncated], settings.top_k, settings.top_p)
            weights = weights.index_copy(0, settings.truncated, part)
    return weights if settings.min_p is None else drop_unlikely(weights, settings.min_p)


def softmax_weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities up to a factor per row: logits [n, K], temperature [n] of the same type."""
    return scaled(logits, temperature).exp_()


def scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits [n, K] below the largest of their row, over its temperature, [n] of the same type; a new tensor."""
    temperature = temperature.clamp(min=torch.finfo(logits.dtype).tiny)  # 1e-300 would round to 0
    # Subtracting the largest first: a tiny temperature then makes zeros, never infinities.
    # In place: memory for a whole batch is new to the process each time, which costs more than the arithmetic.
    return (logits - logits.amax(-1, keepdim=True)).div_(temperature[:, None])


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The column where the cumulative weight passes `uniform * total`; its weight is above 0.

    weights [n, K] >= 0, uniform float64 [n] in [0, 1). Sums are float64: in float32 the batch's shape decides
    near-uniform choices.
    """
    return column_at(weights, weights.cumsum(-1, dtype=torch.float64), uniform)


def column_at(weights: Tensor, cumulative: Tensor, uniform: Tensor) -> Tensor:
    """`inverse_cdf` where the sums float64 [n, K] of the weights are known.

    A device adds in parallel: a sum may exceed the one before by an ulp where the weight is 0. Such a column is never
    drawn, but the likeliest one instead. Nor is one past the end, where weights are not numbers.
    """
    total = cumulative[:, -1:]
    # Rounding may lift u * total to total itself, past the last column.
    target = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    column = torch.searchsorted(cumulative, target, right=True).clamp(max=weights.shape[1] - 1)
    sure = weights.gather(1, column) > 0
    if weights.device.type == "cpu" and not torch.compiler.is_compiling() and bool(sure.all()):
        return column[:, 0]
    return torch.where(sure, column, weights.argmax(-1, keepdim=True))[:, 0]

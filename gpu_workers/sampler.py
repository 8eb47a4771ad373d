"""Draws one token per row: mask -> bias and penalties -> temperature -> top-k -> top-p -> min-p -> inverse CDF.

Rows are split by what their mask leaves to decide, cheapest first:

  forced    one token is allowed          no logits
  sparse    a few hundred at most         only those columns of the output projection
  dense     many, or no grammar           the whole projection; greedy rows stop at the largest logit

The draw walks the cumulative weights in token-id order up to `uniform * total`. Forbidden tokens add exact zeros to
that float64 sum, so the sparse and the dense way agree, and the uniform number depends on (seed, choice, position,
attempt) alone: the same request gives the same tokens in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_workers.masks import AllowedTokens, unpack
from gpu_workers.output_head import OutputHead
from gpu_workers.penalties import History, adjust, adjustment
from gpu_workers.randomness import uniforms
from gpu_workers.request import SamplingParameters
from grammar_workers.mask_batch import forbid_unmasked

_TOP = 1024  # values looked at before a top-p row is sorted in full


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw. `allowed` is None for a row without a grammar; `position` counts output tokens from 0.

    `history` is what penalties look at, None where there are none; `excluded`: ids that a row without a grammar may
    not have here; `attempt`: numbers apart what may be drawn at this position more than once.
    """

    sampling: SamplingParameters
    choice_index: int
    position: int
    allowed: AllowedTokens | None = None
    history: History | None = None
    excluded: frozenset[int] = frozenset()
    attempt: int = 0


@dataclass(slots=True)
class RowCounts:
    """How many rows went each way."""

    forced: int = 0
    sparse: int = 0
    dense: int = 0


@dataclass(slots=True)
class Sampler:
    """Batched sampling over rows with different settings."""

    head: OutputHead
    counts: RowCounts = field(default_factory=RowCounts)

    @torch.inference_mode()
    def sample(self, features: Tensor, draws: Sequence[Draw]) -> list[int]:
        """features [n, F] in the order of `draws`. Returns n token ids; each is allowed by its row."""
        tokens = [-1] * len(draws)
        sparse: list[int] = []
        dense: list[int] = []
        for i, draw in enumerate(draws):
            allowed = draw.allowed
            if allowed is None or allowed.token_ids is None:
                dense.append(i)
            elif allowed.count == 1:
                tokens[i] = int(allowed.token_ids[0])
            else:
                sparse.append(i)
        for rows, choose in ((sparse, self._sparse), (dense, self._dense)):
            if rows:
                chosen = choose(features if len(rows) == len(draws) else features[rows], [draws[i] for i in rows])
                for i, token_id in zip(rows, chosen, strict=True):
                    tokens[i] = token_id
        self.counts.forced += len(draws) - len(sparse) - len(dense)
        self.counts.sparse += len(sparse)
        self.counts.dense += len(dense)
        return tokens

    def _sparse(self, features: Tensor, draws: list[Draw]) -> list[int]:
        """Projects the union of the allowed columns once, then gathers each row's own (padded at the end)."""
        allowed = [draw.allowed.token_ids for draw in draws if draw.allowed and draw.allowed.token_ids is not None]
        union, place = np.unique(np.concatenate(allowed), return_inverse=True)
        counts = np.array([len(token_ids) for token_ids in allowed])
        real = np.arange(counts.max()) < counts[:, None]
        columns = np.zeros(real.shape, dtype=np.int64)
        columns[real] = place
        device = features.device
        logits = self.head.columns(features, torch.from_numpy(union).to(device))
        logits = logits.gather(1, torch.from_numpy(columns).to(device))
        logits = logits.masked_fill(~torch.from_numpy(real).to(device), -torch.inf)
        chosen = choose_columns(_adjusted(logits, draws, allowed), draws).numpy()
        return union[columns[np.arange(len(draws)), chosen]].tolist()

    def _dense(self, features: Tensor, draws: list[Draw]) -> list[int]:
        logits = self.head.logits(features)
        masked = [(i, draw.allowed) for i, draw in enumerate(draws) if draw.allowed is not None]
        if masked:
            logits = self._masked(logits, [i for i, _ in masked], [allowed for _, allowed in masked])
        excluded = [(i, token_id) for i, draw in enumerate(draws) for token_id in draw.excluded]
        if excluded:
            index = torch.tensor(excluded, device=logits.device).T
            logits = logits.index_put((index[0], index[1]), logits.new_tensor(-torch.inf))
        return choose_columns(_adjusted(logits, draws), draws).tolist()

    def _masked(self, logits: Tensor, rows: list[int], allowed: list[AllowedTokens]) -> Tensor:
        """Logits [n, V] of the head with what `allowed[i]` leaves out of row `rows[i]` at -inf; may be the same."""
        if logits.device.type == "cpu" and logits.dtype == torch.float32:
            if not self.head.separable:
                logits = logits.clone()  # they are the features, which others read, too
            forbid_unmasked(logits.numpy(), [row.mask for row in allowed], rows)
            return logits
        allow = torch.from_numpy(unpack(allowed, logits.shape[1])).to(logits.device)
        if len(rows) == len(logits):
            return logits.masked_fill(~allow, -torch.inf)
        index = torch.tensor(rows, device=logits.device)
        return logits.index_copy(0, index, logits[index].masked_fill(~allow, -torch.inf))


def _adjusted(logits: Tensor, draws: Sequence[Draw], columns: Sequence[NDArray[np.int64]] | None = None) -> Tensor:
    """The logits after bias and penalties; untouched when no row has any."""
    adjustments = [
        (i, adjustment(draw.sampling, draw.history)) for i, draw in enumerate(draws) if draw.history is not None
    ]
    return adjust(logits, adjustments, columns) if adjustments else logits


def choose_columns(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """One column per row of masked logits [n, K]: the largest for temperature 0, otherwise drawn. CPU int64 [n]."""
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    chosen = torch.empty(len(draws), dtype=torch.int64)
    greedy = [i for i, draw in enumerate(draws) if draw.sampling.temperature == 0]
    drawn = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if greedy:
        chosen[greedy] = (logits if not drawn else logits[greedy]).argmax(-1).cpu()
    if drawn:
        chosen[drawn] = _draw(logits if not greedy else logits[drawn], [draws[i] for i in drawn]).cpu()
    return chosen


def _draw(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    device = logits.device
    temperature = torch.tensor([draw.sampling.temperature for draw in draws], dtype=logits.dtype, device=device)
    temperature = temperature.clamp(min=torch.finfo(logits.dtype).tiny)  # 1e-300 would round to 0
    # Subtracting the largest first: a tiny temperature then makes zeros, never infinities.
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature[:, None]).exp()
    weights = truncate(weights, [draw.sampling.top_k for draw in draws], [draw.sampling.top_p for draw in draws])
    weights = drop_unlikely(weights, [draw.sampling.min_p for draw in draws])
    uniform = uniforms(
        [draw.sampling.seed for draw in draws],
        [draw.choice_index for draw in draws],
        [draw.position for draw in draws],
        attempts=[draw.attempt for draw in draws],
    )
    return inverse_cdf(weights, torch.from_numpy(uniform).to(device))


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The column where the cumulative weight passes `uniform * total`; its weight is above 0.

    weights [n, K] >= 0, uniform float64 [n] in [0, 1). Sums are float64: in float32 the batch's shape decides
    near-uniform choices.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Rounding may lift u * total to total itself, past the last column.
    target = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def truncate(weights: Tensor, top_k: Sequence[int], top_p: Sequence[float]) -> Tensor:
    """Zeroes what top-k (0 = off), then top-p (1 = off) leave out; ties at either cut are kept. weights [n, K] >= 0.

    top-p keeps the likeliest tokens until their share reaches `top_p` of what top-k left (Holtzman et al. 2020).
    """
    rows = [i for i, (k, p) in enumerate(zip(top_k, top_p, strict=True)) if k or p < 1]
    if not rows:
        return weights
    device, width = weights.device, weights.shape[1]
    part = weights[rows]
    k = torch.tensor([min(top_k[i] or width, width) for i in rows], device=device)
    p = torch.tensor([top_p[i] for i in rows], dtype=torch.float64, device=device)
    largest = part.topk(min(width, max(_TOP, max(top_k)))).values  # descending; wide enough for every top-k

    limited = (k < width)[:, None]
    cut = largest.gather(1, (k - 1).clamp(max=largest.shape[1] - 1)[:, None])
    part = torch.where(limited & (part < cut), 0, part)
    total = part.sum(-1, keepdim=True, dtype=torch.float64)
    largest = torch.where(limited & (largest < cut), 0, largest)
    if bool((largest.sum(-1, keepdim=True, dtype=torch.float64) < p[:, None] * total)[p < 1].any()):
        largest = part.sort(-1, descending=True).values
    before = largest.cumsum(-1, dtype=torch.float64) - largest
    kept = (before < p[:, None] * total).sum(-1, keepdim=True)
    cut = torch.where((p < 1)[:, None], largest.gather(1, kept - 1), 0)
    part = torch.where(part < cut, 0, part)
    return weights.index_copy(0, torch.tensor(rows, device=device), part)


def drop_unlikely(weights: Tensor, min_p: Sequence[float]) -> Tensor:
    """Zeroes weights below `min_p` (0 = off) times the row's largest (Nguyen et al. 2024). weights [n, K] >= 0."""
    if not any(min_p):
        return weights
    share = torch.tensor(min_p, dtype=weights.dtype, device=weights.device)
    return torch.where(weights < share[:, None] * weights.amax(-1, keepdim=True), 0, weights)

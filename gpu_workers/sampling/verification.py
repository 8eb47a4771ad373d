"""Drafts that were drawn at random, verified so that the output has the target's distribution.

Speculative sampling (Leviathan et al. 2023; Chen et al. 2023), both distributions under the mask: the draft x ~ q is
kept with probability min(1, p(x) / q(x)); otherwise the token is drawn from max(p - q, 0), normalised. Whatever q is,
the token is distributed as p, provided that nothing else depends on the numbers drawn here: they have streams of their
own (`randomness.Stream`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What `token_id` was drawn from: `probabilities` float64 [k] of `token_ids` int64 [k], ascending."""

    token_id: int
    token_ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def over(self, columns: NDArray[np.int64] | None, width: int) -> tuple[NDArray[np.float64], int]:
        """The probabilities over columns float64 [width], and the draft's column; -1 if it has none.

        `columns`: the token ids (ascending) of the first columns; None: column = token id.
        """
        spread = np.zeros(width)
        if columns is None:
            inside = self.token_ids < width
            spread[self.token_ids[inside]] = self.probabilities[inside]
            return spread, self.token_id if self.token_id < width else -1
        known, place, ours = np.intersect1d(columns, self.token_ids, assume_unique=True, return_indices=True)
        spread[place] = self.probabilities[ours]
        at = np.flatnonzero(known == self.token_id)
        return spread, int(place[at[0]]) if len(at) else -1


@dataclass(frozen=True, slots=True)
class Verification:
    """Rows int64 [m] whose draft is verified: `proposed` float64 [m, K], the drafts' `columns` (-1: none) int64 [m] and
    `uniform` float64 [m].
    """

    rows: Tensor
    proposed: Tensor
    columns: Tensor
    uniform: Tensor

    def apply(self, weights: Tensor) -> Tensor:
        """Weights [n, K] >= 0 to draw from: all on the draft where it is kept, what is left of p where it is not."""
        target = weights[self.rows].double()
        target = target / target.sum(-1, keepdim=True)
        draft = self.columns[:, None].clamp(min=0)
        kept = self.uniform[:, None] * self.proposed.gather(1, draft) < target.gather(1, draft)
        rest = (target - self.proposed).clamp(min=0)
        # Where nothing is left, p is q up to rounding.
        kept = (kept | (rest.sum(-1, keepdim=True) == 0)) & (self.columns >= 0)[:, None]
        sure = torch.zeros_like(target).scatter(1, draft, 1.0)
        return weights.index_copy(0, self.rows, torch.where(kept, sure, rest).to(weights.dtype))

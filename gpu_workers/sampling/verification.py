"""Verification of randomly sampled drafts, so that the output has the distribution of the target model.

This is speculative sampling (Leviathan et al. 2023; Chen et al. 2023), with both distributions under the mask. The
target model has the distribution p, the drafter q. A draft x, sampled from q, is accepted with the probability min(1,
p(x) / q(x)). Otherwise the token is sampled from max(p - q, 0), normalized. So the token has the distribution p,
whatever q is. The random numbers must be independent of all others, so they have streams of their own
(`randomness.Stream`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A draft token (proposed next token), and the distribution from which it was sampled.

    Attributes:
        token_id: The draft token.
        token_ids: Tokens that the drafter can propose, int64 [k], ascending.
        probabilities: Probability of each of these tokens, float64 [k].
    """

    token_id: int
    token_ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def over(self, columns: NDArray[np.int64] | None, width: int) -> tuple[NDArray[np.float64], int]:
        """Return the draft distribution over the columns (second dimension) of a batch of logits.

        Args:
            columns: Token ID of each of the first columns, ascending. Later columns are padding with probability 0.
                None: each column is the token ID.
            width: Number of columns.

        Returns:
            Probability of each column, float64 [width], and the column of the draft token; -1 if the draft token has no
            column.
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
    """Randomly sampled drafts of m sequences, each of which the sampler accepts or replaces by another token.

    Attributes:
        rows: Indices of the m sequences among the n sequences of the weights, int64 [m].
        proposed: Probability of each column (second dimension of the weights) in the draft distribution, float64 [m,
            K].
        columns: Column of each draft token, int64 [m]; -1 if the draft token has no column.
        uniform: Random number in [0, 1) of each sequence, float64 [m].
    """

    rows: Tensor
    proposed: Tensor
    columns: Tensor
    uniform: Tensor

    def apply(self, weights: Tensor) -> Tensor:
        """Return weights such that a token sampled from them has the target model's distribution.

        Only the weights of sequences with a draft change. If the draft is accepted, its token gets the whole weight.
        Otherwise the weights become max(p - q, 0), with the target's probabilities p and the draft probabilities q.

        Args:
            weights: Weights of the target model (probabilities up to a factor per sequence), >= 0, [n, K]. Not changed.

        Returns:
            Weights from which to sample, [n, K], of the type of `weights`.
        """
        target = weights[self.rows].double()
        target = target / target.sum(-1, keepdim=True)
        draft = self.columns[:, None].clamp(min=0)
        kept = self.uniform[:, None] * self.proposed.gather(1, draft) < target.gather(1, draft)
        rest = (target - self.proposed).clamp(min=0)
        # If nothing is left of p - q, the distributions are equal up to rounding.
        kept = (kept | (rest.sum(-1, keepdim=True) == 0)) & (self.columns >= 0)[:, None]
        sure = torch.zeros_like(target).scatter(1, draft, 1.0)
        return weights.index_copy(0, self.rows, torch.where(kept, sure, rest).to(weights.dtype))

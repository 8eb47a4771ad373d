"""From the model's last hidden state to logits, for whole rows or only for the columns a grammar allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class OutputHead:
    """The output projection, cut to the tokens that exist.

    The runner hands over *features*: hidden states `[n, hidden]` when the model does nothing but a linear map after
    them (`separable`, checked at load), otherwise full logits `[n, V]`. Columns from `token_limit` on are padding of
    the embedding matrix: no token has those ids, so nobody ever sees them.
    """

    def __init__(self, projection: nn.Module, token_limit: int, *, separable: bool) -> None:
        self.token_limit = token_limit
        self.separable = separable
        self._projection = projection

    def logits(self, features: Tensor) -> Tensor:
        """All columns: [n, token_limit]."""
        full = self._projection(features) if self.separable else features
        return full[:, : self.token_limit]

    def columns(self, features: Tensor, token_ids: Tensor) -> Tensor:
        """Only the columns `token_ids` (int64 [k]): [n, k]."""
        if not self.separable:
            return features[:, token_ids]
        weight: Tensor = self._projection.weight  # type: ignore[assignment]
        bias: Tensor | None = getattr(self._projection, "bias", None)
        return torch.nn.functional.linear(features, weight[token_ids], None if bias is None else bias[token_ids])

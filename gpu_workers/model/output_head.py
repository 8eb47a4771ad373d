"""From the model's last hidden state to logits, for whole rows or only for the columns a grammar allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

# Up to here `_few_rows` is faster (docs/decisions/0020-the-output-head-of-few-rows.md).
_FEW_ROWS = 8
_FEW_NUMBERS = 4096


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
        if not self.separable:
            return features[:, : self.token_limit]
        weight, bias = self._linear_map()
        if features.device.type == "cpu" and _are_few(features):
            return _few_rows(features, weight[: self.token_limit], None if bias is None else bias[: self.token_limit])
        return linear(features, weight, bias)[:, : self.token_limit]

    def columns(self, features: Tensor, token_ids: Tensor) -> Tensor:
        """Only the columns `token_ids` (int64 [k]): [n, k]."""
        if not self.separable:
            return features[:, token_ids]
        weight, bias = self._linear_map()
        return linear(features, weight[token_ids], None if bias is None else bias[token_ids])

    def _linear_map(self) -> tuple[Tensor, Tensor | None]:
        """What a separable head consists of: weight [V, hidden], bias [V] or None."""
        weight: Tensor = self._projection.weight  # type: ignore[assignment]
        bias: Tensor | None = getattr(self._projection, "bias", None)
        return weight, bias


def _are_few(features: Tensor) -> bool:
    rows, hidden = features.shape
    return 0 < rows <= _FEW_ROWS and max(rows, _FEW_ROWS // 2) * hidden <= _FEW_NUMBERS


def _few_rows(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of a few rows [n, hidden] on a CPU, [n, V] contiguous: the weight is walked once for all of them.

    The BLAS of PyTorch takes a slow way through a long weight when it is asked for one row, or for `features` times the
    transposed weight; so it is asked for the transposed product, of two rows at least.
    """
    rows = len(features)
    columns = (weight @ (features if rows > 1 else features.repeat(2, 1)).t()).unbind(1)
    logits = torch.stack(columns[:rows])  # faster than `contiguous`
    return logits if bias is None else logits + bias

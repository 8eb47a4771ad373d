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

    `hidden_states` are `[n, H]`, the model's last ones, when it does nothing but a linear map after them (`separable`,
    checked at load). Otherwise the model's own logits `[n, V]` stand in for them, here and in all of the engine.
    Columns from `token_limit` on are padding of the embedding matrix: no token has those ids, so nobody ever sees them.
    """

    def __init__(self, projection: nn.Module, token_limit: int, *, separable: bool) -> None:
        self.token_limit = token_limit
        self.separable = separable
        self._projection = projection

    def logits(self, hidden_states: Tensor) -> Tensor:
        """All columns: [n, token_limit]."""
        if not self.separable:
            return hidden_states[:, : self.token_limit]
        weight, bias = self._linear_map()
        if hidden_states.device.type == "cpu" and _are_few(hidden_states):
            return _few_rows(
                hidden_states, weight[: self.token_limit], None if bias is None else bias[: self.token_limit]
            )
        return linear(hidden_states, weight, bias)[:, : self.token_limit]

    def columns(self, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """Only the columns `token_ids` (int64 [k]): [n, k]."""
        if not self.separable:
            return hidden_states[:, token_ids]
        weight, bias = self._linear_map()
        return linear(hidden_states, weight[token_ids], None if bias is None else bias[token_ids])

    def _linear_map(self) -> tuple[Tensor, Tensor | None]:
        """What a separable head consists of: weight [V, hidden], bias [V] or None."""
        weight: Tensor = self._projection.weight  # type: ignore[assignment]
        bias: Tensor | None = getattr(self._projection, "bias", None)
        return weight, bias


def _are_few(hidden_states: Tensor) -> bool:
    rows, hidden = hidden_states.shape
    return 0 < rows <= _FEW_ROWS and max(rows, _FEW_ROWS // 2) * hidden <= _FEW_NUMBERS


def _few_rows(hidden_states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of a few rows [n, hidden] on a CPU, [n, V] contiguous: the weight is walked once for all of them.

    The BLAS of PyTorch takes a slow way through a long weight when it is asked for one row, or for `hidden_states`
    times the transposed weight; so it is asked for the transposed product, of two rows at least.
    """
    rows = len(hidden_states)
    columns = (weight @ (hidden_states if rows > 1 else hidden_states.repeat(2, 1)).t()).unbind(1)
    logits = torch.stack(columns[:rows])  # faster than `contiguous`
    return logits if bias is None else logits + bias

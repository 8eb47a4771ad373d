"""Output head: computes logits from the last hidden state of the model, for all tokens or only for the allowed ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

# Up to here `_few_rows` is faster (docs/decisions/0020-the-output-head-of-few-rows.md).
_FEW_ROWS = 8
_FEW_NUMBERS = 4096


class OutputHead:
    """The output projection of a model, limited to tokens that exist.

    A head is *separable* if the logits are a plain linear map of the last hidden state [H]; `loader.verify` checks
    this. Otherwise, forward passes return logits [V] in place of hidden states in the whole engine. This class then
    only selects columns. Columns from `token_limit` on are padding of the embedding matrix and are never returned.

    Args:
        projection: The model's output embeddings, with weight [V, H] and perhaps bias [V].
        token_limit: One past the largest token ID.
        separable: True if the logits are a linear map of the last hidden state.

    Attributes:
        token_limit: One past the largest token ID.
        separable: True if the logits are a linear map of the last hidden state.
    """

    def __init__(self, projection: nn.Module, token_limit: int, *, separable: bool) -> None:
        self.token_limit = token_limit
        self.separable = separable
        self._projection = projection

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Return the logits of all tokens.

        Args:
            hidden_states: Hidden states [n, H], as forward passes return them; logits [n, V] if the head is not
                separable.

        Returns:
            Logits [n, token_limit], of the type of `hidden_states`.
        """
        if not self.separable:
            return hidden_states[:, : self.token_limit]
        weight, bias = self._linear_map()
        if hidden_states.device.type == "cpu" and _are_few(hidden_states):
            return _few_rows(
                hidden_states, weight[: self.token_limit], None if bias is None else bias[: self.token_limit]
            )
        return linear(hidden_states, weight, bias)[:, : self.token_limit]

    def columns(self, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """Return the logits of some tokens. Only these are computed.

        Args:
            hidden_states: Hidden states [n, H], as forward passes return them; logits [n, V] if the head is not
                separable.
            token_ids: The tokens, int64 [k], each below `token_limit`.

        Returns:
            Logits [n, k], in the order of `token_ids`, of the type of `hidden_states`.
        """
        if not self.separable:
            return hidden_states[:, token_ids]
        weight, bias = self._linear_map()
        return linear(hidden_states, weight[token_ids], None if bias is None else bias[token_ids])

    def _linear_map(self) -> tuple[Tensor, Tensor | None]:
        """Return weight [V, hidden] and bias [V] or None of a separable head."""
        weight: Tensor = self._projection.weight  # type: ignore[assignment]
        bias: Tensor | None = getattr(self._projection, "bias", None)
        return weight, bias


def _are_few(hidden_states: Tensor) -> bool:
    rows, hidden = hidden_states.shape
    return 0 < rows <= _FEW_ROWS and max(rows, _FEW_ROWS // 2) * hidden <= _FEW_NUMBERS


def _few_rows(hidden_states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `linear` of a few hidden states [n, hidden] on a CPU: [n, V], contiguous.

    The weight is read once for all of them. PyTorch's BLAS is slow for a large weight with one hidden state, and for
    `hidden_states` times the transposed weight. So this function computes the transposed product, with at least two
    hidden states.
    """
    rows = len(hidden_states)
    columns = (weight @ (hidden_states if rows > 1 else hidden_states.repeat(2, 1)).t()).unbind(1)
    logits = torch.stack(columns[:rows])  # faster than `contiguous`
    return logits if bias is None else logits + bias

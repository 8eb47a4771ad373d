"""Weights in 8 bits, by torchao. Checkpoints that say that they are quantised are transformers' to load."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def quantize_int8(model: PreTrainedModel) -> None:
    """Replaces the weights of every `nn.Linear` of the model, but for its output projection, in place.

    Per output row symmetric, from float32 or 16-bit weights. Weights only: with activations quantised by a scale of
    the batch, a row's result would depend on its neighbours.
    """
    # Takes seconds to import, and concerns nobody else.
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    head = model.get_output_embeddings()
    quantize_(model, Int8WeightOnlyConfig(), lambda module, _: type(module) is nn.Linear and module is not head)

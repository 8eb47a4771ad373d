"""Weight-only int8: a quarter of the memory of float32 weights, activations as they are.

Per output row symmetric (scale = largest magnitude / 127). Activations are not quantised: with a scale taken from the
batch, a row's result would depend on its neighbours. The output projection and embeddings keep their type.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class Int8Linear(nn.Module):
    """`nn.Linear` with int8 weights [out, in] and a scale for each output [out]."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        output = nn.functional.linear(inputs, self.weight.to(inputs.dtype)) * self.scale
        return output if self.bias is None else output + self.bias


def quantize_int8(model: PreTrainedModel) -> None:
    """Replaces every `nn.Linear` of the model, but for its output projection, in place."""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child is not head:
                setattr(module, name, Int8Linear(child))

"""Quantization of a model's weights to int8, by torchao.

Models that are saved with quantized weights are loaded by transformers instead.
"""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def quantize_int8(model: PreTrainedModel) -> None:
    """Quantize the weights of a model to int8, in place: every `nn.Linear` except the output projection.

    The quantization is symmetric, with one scale per output row. Activations are not quantized: with one scale for the
    whole batch, the result of one sequence would depend on the other sequences. Raises ImportError if torchao is not
    installed.

    Args:
        model: A model whose weights are float32, bfloat16 or float16.
    """
    # Imported here, because the import takes seconds and only this function needs it.
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    head = model.get_output_embeddings()
    quantize_(model, Int8WeightOnlyConfig(), lambda module, _: type(module) is nn.Linear and module is not head)

"""EAGLE-3 heads with random weights for the tiny models of `support`."""

from __future__ import annotations

import torch
from transformers import LlamaConfig

from gpu_workers.model.loader import LoadedModel
from gpu_workers.speculative.eagle_head import EagleHead, read_weights
from tests.gpu_workers import eagle_reference as reference
from tests.gpu_workers.support import END, WIDTH

IDS = torch.cat([torch.arange(20, 130), torch.tensor([END])])
"""The tokens that they can draft."""


def random_head(target: LoadedModel, seed: int = 0) -> EagleHead:
    config = LlamaConfig.from_dict(reference.settings(len(IDS), WIDTH))
    head = EagleHead(config, len(reference.LAYERS), reference.HIDDEN, target.model.get_input_embeddings())
    read_weights(head, reference.random_weights(IDS, WIDTH, seed))
    return head

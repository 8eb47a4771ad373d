"""The output head, whichever way it takes, against torch's own linear layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpu_workers.model.output_head import OutputHead

WIDTH, LIMIT = 96, 90


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 8, 9, 40])
@pytest.mark.parametrize("hidden", [24, 600, 1500])
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_logits_are_the_linear_layers(rows: int, hidden: int, bias: bool) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(hidden, WIDTH, bias=bias, dtype=torch.float64)
    hidden_states = torch.randn(rows, hidden, dtype=torch.float64)
    expected = layer(hidden_states)[:, :LIMIT]
    head = OutputHead(layer, LIMIT, separable=True)
    logits = head.logits(hidden_states)
    torch.testing.assert_close(logits, expected)
    some = torch.tensor([3, 89, 4])
    torch.testing.assert_close(head.columns(hidden_states, some), expected[:, some])
    # The sampler writes masks into them.
    logits.fill_(-torch.inf)
    torch.testing.assert_close(layer(hidden_states)[:, :LIMIT], expected)

"""How much probability masks take away, measured on a sample of the rows: it costs a row's full logits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from gpu_workers.model.output_head import OutputHead
from gpu_workers.sampling.allowed_tokens import AllowedTokens, unpack
from gpu_workers.sampling.sampler import Draw


class RejectionMeter:
    """Measures one row under a grammar every `interval` steps, or as soon after as there is one; 0: never.

    `masses`: what nobody has fetched yet. The engine thread appends, one reader pops.
    """

    def __init__(self, head: OutputHead, interval: int) -> None:
        self.masses: deque[float] = deque(maxlen=1024)
        self._head = head
        self._interval = interval
        self._next = 0

    def measure(self, hidden_states: Tensor, draws: Iterable[Draw], step: int) -> None:
        """Measures one of the draws, if it is time; hidden_states [n, H], one row per draw."""
        if not self.due(step):
            return
        for row, draw in zip(hidden_states, draws, strict=True):
            if draw.allowed is not None:
                self._next = step + self._interval
                self.masses.append(rejection_mass(self._head, row, draw.allowed))
                return

    def due(self, step: int) -> bool:
        """Whether a row of this step is to be drawn on the host, where it can be measured."""
        return self._interval > 0 and step >= self._next


@torch.inference_mode()
def rejection_mass(head: OutputHead, hidden_states: Tensor, allowed: AllowedTokens) -> float:
    """Probability that the model gives to forbidden tokens, in [0, 1]; hidden_states [H] of one row."""
    raw = head.logits(hidden_states[None]).double().softmax(-1)
    allow = unpack([allowed], raw.shape[1], raw.device)
    return float(raw.masked_fill(allow, 0).sum().clamp(0, 1))

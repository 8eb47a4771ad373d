"""Measures the rejection mass: the probability that the model gives to all disallowed tokens together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from gpu_workers.model.output_head import OutputHead
from gpu_workers.sampling.allowed_tokens import AllowedTokens, unpack
from gpu_workers.sampling.sampler import Draw


class RejectionMeter:
    """Measures the rejection mass (probability that the model gives to all disallowed tokens) of some sampled tokens.

    A measurement needs the logits of all tokens, which is slow. So only one token is measured every `interval` steps:
    the first one that is sampled under a mask.

    Args:
        head: Output head of the model.
        interval: Number of steps between two measurements; 0: nothing is measured.

    Attributes:
        masses: Measured values, in [0, 1], that have not been read; the latest 1,024. The engine thread appends, one
            reader removes.
    """

    def __init__(self, head: OutputHead, interval: int) -> None:
        self.masses: deque[float] = deque(maxlen=1024)
        self._head = head
        self._interval = interval
        self._next = 0

    def measure(self, hidden_states: Tensor, draws: Iterable[Draw], step: int) -> None:
        """Measure the first token that was sampled under a mask, if a measurement is due. Append the value to `masses`.

        Args:
            hidden_states: Hidden state from which each token was sampled, [n, H].
            draws: Sampling inputs of each token, in the order of `hidden_states`.
            step: Number of the current step; it increases from step to step.
        """
        if not self.due(step):
            return
        for row, draw in zip(hidden_states, draws, strict=True):
            if draw.allowed is not None:
                self._next = step + self._interval
                self.masses.append(rejection_mass(self._head, row, draw.allowed))
                return

    def due(self, step: int) -> bool:
        """Return whether a measurement is due in a step. If it is due, the host must sample a token under a mask.

        Args:
            step: Number of the step; it increases from step to step.
        """
        return self._interval > 0 and step >= self._next


@torch.inference_mode()
def rejection_mass(head: OutputHead, hidden_states: Tensor, allowed: AllowedTokens) -> float:
    """Return the rejection mass at one position: the probability, in [0, 1], of all disallowed tokens.

    Args:
        head: Output head of the model.
        hidden_states: Hidden state of the position, [H].
        allowed: Mask of the position.
    """
    raw = head.logits(hidden_states[None]).double().softmax(-1)
    allow = unpack([allowed], raw.shape[1], raw.device)
    return float(raw.masked_fill(allow, 0).sum().clamp(0, 1))

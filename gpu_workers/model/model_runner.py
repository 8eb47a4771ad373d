"""Runs one step of the model: a flat `[1, T]` forward pass over the KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gpu_workers.model.attention import AttentionPlan, DecodeGroup, Segment, decode_group, segment
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.transfers import to_device


@dataclass(frozen=True, slots=True)
class ScheduledTokens:
    """What one slot contributes to a step: `token_ids` that come after `past` tokens already in the slot.

    `wanted`: of how many tokens, counted from the last, the hidden states are wanted. 0 when more of the sequence is
    pending; otherwise 1 for its last token and 1 for each draft after it.
    """

    slot: int
    past: int
    token_ids: list[int]
    wanted: int


class ModelRunner:
    """The model on its KV pool.

    `separable`: the logits are a linear map of the last hidden state, so a step returns hidden states and the output
    head projects what sampling needs; otherwise a step returns the model's own logits in their place.
    """

    def __init__(self, model: PreTrainedModel, pool: KVPool, *, separable: bool) -> None:
        self._model = model
        self._pool = pool
        self._separable = separable

    @torch.inference_mode()
    def forward(self, decode: Sequence[ScheduledTokens], chunks: Sequence[ScheduledTokens]) -> Tensor:
        """Hidden states [n, H] of all wanted tokens, in the order scheduled.

        Keys and values of every token go into the pool. `decode` has a few tokens per slot (slots ascending) and
        attends as one group, `chunks` attend one by one.
        """
        flat, plan, kept = lay_out(self._pool, decode, chunks)
        return self._hidden_states(flat[:1], flat[1:], plan, kept)

    def _hidden_states(self, input_ids: Tensor, position_ids: Tensor, plan: AttentionPlan, kept: list[int]) -> Tensor:
        index = to_device(torch.tensor(kept, dtype=torch.int64), self._pool.device)
        arguments = {"input_ids": input_ids, "position_ids": position_ids, "use_cache": False, "attention_plan": plan}
        if self._separable:
            return self._model.base_model(**arguments).last_hidden_state[0, index]
        # An empty index means "all" to some models: ask for one row that nobody reads.
        wanted = index if kept else index.new_zeros(1)
        return self._model(**arguments, logits_to_keep=wanted).logits[0, : len(kept)]


def lay_out(
    pool: KVPool, decode: Sequence[ScheduledTokens], chunks: Sequence[ScheduledTokens]
) -> tuple[Tensor, AttentionPlan, list[int]]:
    """A flat pass: its token ids and positions, int64 [2, T], where they read and write, which of the T are wanted."""
    group: DecodeGroup | None = None
    if decode:
        group = decode_group(
            pool,
            [part.slot for part in decode],
            [part.past for part in decode],
            [len(part.token_ids) for part in decode],
        )
    segments: list[Segment] = []
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    kept: list[int] = []
    for i, part in enumerate((*decode, *chunks)):
        if i >= len(decode):
            segments.append(segment(pool, len(token_ids), len(part.token_ids), part.slot, part.past))
        token_ids += part.token_ids
        positions += range(part.past, part.past + len(part.token_ids))
        slots += [part.slot] * len(part.token_ids)
        kept += range(len(token_ids) - part.wanted, len(token_ids))
    # One host buffer, one copy to the device.
    flat = to_device(np.array([token_ids, positions, slots]), pool.device)
    return flat[:2], AttentionPlan(pool, flat[2], flat[1], group, tuple(segments)), kept

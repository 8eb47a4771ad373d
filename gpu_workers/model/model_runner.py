"""Runs one step of the model: a forward pass over the tokens of all sequences, concatenated to one input `[1, T]`."""

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
    """Tokens of one sequence in a step (one forward pass of the batch).

    Attributes:
        slot: Slot of the KV cache that the sequence owns.
        past: Number of tokens of the sequence whose keys and values are already in the slot.
        token_ids: Tokens of the sequence in this step; the first one has the position `past`.
        wanted: Number of tokens, at the end of `token_ids`, whose hidden states are returned: the last token of the
            sequence and each draft (proposed token) after it. 0 if the step does not reach the last token.
    """

    slot: int
    past: int
    token_ids: list[int]
    wanted: int


class ModelRunner:
    """Runs the forward passes of a model over its KV cache.

    Args:
        model: The model, with the attention function of this engine.
        pool: KV cache of the model.
        separable: True if the logits are a linear map of the last hidden state. Then a forward pass returns hidden
            states, and the output head computes the logits that sampling needs. Otherwise a forward pass returns the
            model's logits instead.
    """

    def __init__(self, model: PreTrainedModel, pool: KVPool, *, separable: bool) -> None:
        self._model = model
        self._pool = pool
        self._separable = separable

    @torch.inference_mode()
    def forward(self, decode: Sequence[ScheduledTokens], chunks: Sequence[ScheduledTokens]) -> Tensor:
        """Run one forward pass. The keys and values of every token are written into the KV cache.

        Args:
            decode: Sequences with a few tokens each, in ascending order of their slots. They attend as one padded
                group.
            chunks: Prompt chunks and other long inputs. Each attends alone.

        Returns:
            Hidden states [n, H] of the tokens that `ScheduledTokens.wanted` counts: first the tokens of `decode`, then
            the tokens of `chunks`. If `separable` is false, logits [n, V].
        """
        flat, plan, kept = lay_out(self._pool, decode, chunks)
        index = to_device(torch.tensor(kept, dtype=torch.int64), self._pool.device)
        arguments = {"input_ids": flat[:1], "position_ids": flat[1:], "use_cache": False, "attention_plan": plan}
        if self._separable:
            return self._model.base_model(**arguments).last_hidden_state[0, index]
        # Some models treat an empty index as "all", so compute one row that is dropped.
        wanted = index if kept else index.new_zeros(1)
        return self._model(**arguments, logits_to_keep=wanted).logits[0, : len(kept)]


def lay_out(
    pool: KVPool, decode: Sequence[ScheduledTokens], chunks: Sequence[ScheduledTokens]
) -> tuple[Tensor, AttentionPlan, list[int]]:
    """Build the inputs of a forward pass in which the tokens of all sequences are concatenated.

    Args:
        pool: The KV cache.
        decode: Sequences with a few tokens each, in ascending order of their slots. They attend as one padded group.
        chunks: Prompt chunks and other long inputs. Each attends alone.

    Returns:
        Tuple of three items for the T tokens of `decode`, then `chunks`:

        - Token IDs and positions, int64 [2, T], on the device.
        - Plan of the cache reads and writes.
        - Indices in [0, T), ascending, of the tokens whose hidden states are needed (`ScheduledTokens.wanted`).
    """
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

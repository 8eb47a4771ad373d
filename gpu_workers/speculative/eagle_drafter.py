"""Drafts (proposed next tokens) of an EAGLE-3 head, which predicts tokens from the target model's hidden states.

A *feature* is one vector per token, made of the target's hidden states before three of its layers (`eagle_head`). Each
forward pass of the target writes the features of its tokens. In this example, the target has processed t0 to t3, and
t4 is the last token of the sequence:

    tokens            t0   t1   t2   t3   t4
    target's slot     f0   f1   f2   f3              features, at the positions of keys and values
    head's slot       h0   h1   h2   h3   h4 ..      outputs of the head: h3 from f3 and t4, h4 from h3 and draft 1

The head has its own KV cache, with one slot for each slot of the target's KV cache. Before each use of a slot, its
tokens are compared with the tokens of the sequence, as for a draft model. A token that the target has not processed has
no feature; the head reads its own last output instead.

If decode steps run on the device, the head can draft inside them (`device_step.drafts`). This module drafts for all
other sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpu_workers.config import EngineConfig
from gpu_workers.model.attention import AttentionPlan
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.model.loader import LoadedModel, UnsupportedModelError
from gpu_workers.model.model_runner import ScheduledTokens, lay_out
from gpu_workers.sequence.drafts import Draft
from gpu_workers.sequence.sequence import Sequence
from gpu_workers.speculative.eagle_head import EagleHead, load_eagle_head
from gpu_workers.speculative.logits_drafter import LogitsDrafter, Row, common_length

# Maximum number of pending tokens, drafts included.
#
# With more, the head is too far from the last feature to be useful.
_LONGEST_PENDING = 8


class EagleDrafter(LogitsDrafter):
    """Proposes drafts (next tokens to verify) with an EAGLE-3 head, for the sequences of a target model.

    A *feature* is one vector per token, made of hidden states of the target model. The constructor adds hooks to the
    target, so that each of its forward passes writes features; a loaded model can have one head only. The constructor
    raises UnsupportedModelError if the head does not fit the target.

    Args:
        head: The head. It is moved to the target's device and dtype.
        target: The target model.
        config: Settings of the engine.

    Attributes:
        head: The head, on the target's device.
        features: Features that the target writes, [slots + 1, positions, H]: one per position of each slot. The last
            slot belongs to no sequence.
        pool: KV cache of the head, with as many slots as the target's.
    """

    def __init__(self, head: EagleHead, target: LoadedModel, config: EngineConfig) -> None:
        super().__init__(head.token_ids.cpu().numpy(), target.head.token_limit, target.max_model_len, config)
        self.head = head.to(device=target.model.device, dtype=target.model.dtype)
        self.features = record_features(target, self.head)
        self._chunk = config.long_prefill_token_threshold
        self.pool = KVPool(
            layers=1,
            slots=target.pool.slots,
            length=target.pool.length,
            kv_heads=head.kv_heads,
            head_dim=head.head_dim,
            dtype=target.model.dtype,
            device=target.pool.device,
        )
        self._held: dict[int, list[int]] = {}
        # By slot: output of the head, [H], that replaces the feature of the last token. `_ends` has its position.
        self._outputs: dict[int, Tensor] = {}
        self._ends: dict[int, int] = {}
        # By slot: drafts of a captured step, which follow the tokens in `_held`.
        self._ready: dict[int, list[int]] = {}

    def begin_round(self, sequence: Sequence) -> bool:
        """Prepare the head to draft for a sequence inside a decode step on the device, if three conditions are met.

        - The acceptance rate of the head's drafts for this sequence is at least `draft_cost`.
        - Drafts of this sequence are greedy.
        - The head's KV slot has the tokens of the sequence up to, and including, the first token that the step
          processes.

        Args:
            sequence: A sequence of the step.

        Returns:
            True if the conditions are met. The step must then let the head draft, which overwrites the later positions
            of the head's KV slot.
        """
        rate, known = self._rates.get(sequence), sequence.length + 1
        if sequence.slot is None or rate is None or rate.value < self._cost or self._draws(sequence):
            return False
        if common_length(self._held.get(sequence.slot, []), sequence.token_ids, known) < known:
            return False
        self._held[sequence.slot] = sequence.token_ids[:known]
        return True

    def keep(self, sequence: Sequence, drawn: list[int], drafts: list[int]) -> None:
        """Store drafts that the head made inside a decode step on the device, for the next `propose`.

        Args:
            sequence: The sequence.
            drawn: Tokens that the step has sampled. They are not in `sequence.token_ids` yet.
            drafts: Token IDs of the drafts, in order. They follow the tokens in `drawn`.
        """
        if sequence.slot is not None:
            self._held[sequence.slot] = [*sequence.token_ids, *drawn]
            self._ready[sequence.slot] = drafts

    def propose(self, sequences: list[Sequence]) -> None:
        """Set the `drafts` (proposed next tokens) of sequences.

        If `keep` has stored drafts from the last decode step on the device, these drafts are used. For the other
        sequences, the head makes new drafts.

        Args:
            sequences: Running sequences with slots; changed in place.
        """
        super().propose([sequence for sequence in sequences if not self._propose_ready(sequence)])

    def _propose_ready(self, sequence: Sequence) -> bool:
        """Propose the drafts of a captured step. Return False if there are none, or if other drafts precede them."""
        assert sequence.slot is not None
        ready = self._ready.pop(sequence.slot, None)
        if ready is None or self._held[sequence.slot] != sequence.token_ids:
            return False
        if (row := self._row(sequence)) is None:
            return True
        if row.drafts:
            return False
        for token_id in ready[: row.room]:
            row.worth *= row.rate.value
            ends = row.worth < self._cost or token_id in sequence.text.ending_token_ids
            if ends or not self._add(row, Draft(token_id, row.rate)):
                break
        if row.drafts:
            sequence.use_drafts(row.drafts, row.states)
        return True

    def _first(self, rows: list[Row]) -> tuple[list[Row], Tensor]:
        """Run the head over tokens with new features, at most one chunk, then over pending tokens."""
        rows = [row for row in rows if row.sequence.length > 0]
        scheduled, alive = [], []
        for row in sorted(rows, key=lambda row: row.slot):
            tokens, length = row.sequence.token_ids, row.sequence.length
            # Position p depends on the tokens up to p + 1; the last one is repeated for its output.
            past = max(0, common_length(self._held.get(row.slot, []), tokens, length) - 1)
            end = min(past + self._chunk, length)
            scheduled.append(ScheduledTokens(row.slot, past, tokens[past + 1 : end + 1], wanted=1))
            self._held[row.slot] = tokens[: end + 1]
            if end == length and row.sequence.pending + len(row.drafts) <= _LONGEST_PENDING:
                alive.append(row)
        if not scheduled:
            return [], torch.zeros(0)
        short = [part for part in scheduled if len(part.token_ids) <= _LONGEST_PENDING]
        long = [part for part in scheduled if len(part.token_ids) > _LONGEST_PENDING]
        self._take_in(short, long, None)
        pending = {row.slot: row.token_ids[row.sequence.length :] for row in alive}
        for ahead in range(1, _LONGEST_PENDING):
            if behind := [row for row in alive if len(pending[row.slot]) > ahead]:
                self._go_over(behind, [pending[row.slot][ahead] for row in behind])
        return alive, self._logits(alive) if alive else torch.zeros(0)

    def _next(self, rows: list[Row]) -> Tensor:
        self._go_over(rows, [row.drafts[-1].token_id for row in rows])
        return self._logits(rows)

    def _go_over(self, rows: list[Row], token_ids: list[int]) -> None:
        """Run the head over one more token per sequence, which the target has not processed. Slots ascend."""
        scheduled = [
            ScheduledTokens(row.slot, self._ends[row.slot], [token_id], wanted=1)
            for row, token_id in zip(rows, token_ids, strict=True)
        ]
        self._take_in(scheduled, [], torch.stack([self._outputs[row.slot] for row in rows]))

    def _take_in(self, decode: list[ScheduledTokens], chunks: list[ScheduledTokens], features: Tensor | None) -> None:
        """Run the head. `features` [T, H] have the order of the tokens; None: the target has written them."""
        flat, plan, kept = lay_out(self.pool, decode, chunks)
        if features is None:
            features = self.features[plan.slots, plan.positions]
        outputs = self.head.over_slots(flat[0], features, plan)[kept]
        for part, output in zip((*decode, *chunks), outputs, strict=True):
            self._outputs[part.slot] = output
            self._ends[part.slot] = part.past + len(part.token_ids)

    def _logits(self, rows: list[Row]) -> Tensor:
        return self.head.logits(torch.stack([self._outputs[row.slot] for row in rows]))


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the decoder layers of a transformers model, first layer first.

    Args:
        model: The model.

    Raises:
        UnsupportedModelError: The base model has no module list `layers`.
    """
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UnsupportedModelError(f"{type(model).__name__}: an EAGLE-3 head needs a model with a list `layers`")
    return layers


def record_features(target: LoadedModel, head: EagleHead) -> Tensor:
    """Make every forward pass of the target model write features for an EAGLE-3 head into a new tensor.

    A *feature* is one vector per token, made of the inputs of the layers `head.layers`. A hook before each of these
    layers records its input. The hook before the last of them computes the features, and writes them at the slots and
    positions of the step's tokens. Steps in CUDA graphs write features, too.

    UnsupportedModelError is raised if the target model has no list `layers`.

    Args:
        target: The target model. Hooks are added to its layers, and the tensor belongs to its KV cache.
        head: The head, on the target's device.

    Returns:
        The features, [slots + 1, positions, H]. The last slot belongs to no sequence.
    """
    written = target.pool.keep_features(head.hidden_size)
    noted: list[Tensor] = []

    def note(layer: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if layer == head.layers[0]:
                noted.clear()  # an earlier pass may have failed half-way
            noted.append(arguments[0] if arguments else keywords["hidden_states"])
            if layer == head.layers[-1]:
                plan: AttentionPlan = keywords["attention_plan"]
                written[plan.slots, plan.positions] = head.features(noted)[0]

        return hook

    layers = decoder_layers(target.model)
    for layer in head.layers:
        layers[layer].register_forward_pre_hook(note(layer), with_kwargs=True)
    return written


def load_eagle(config: EngineConfig, target: LoadedModel) -> EagleDrafter | None:
    """Load the EAGLE-3 head that the config names, and prepare the target model for it.

    UnsupportedModelError is raised if the head's files are invalid or do not fit the target model.

    Args:
        config: Settings of the engine.
        target: The target model. From now on, its forward passes write features (inputs of the head).

    Returns:
        The drafter; None if the config names no head.
    """
    if config.eagle_head is None:
        return None
    settings = target.model.config.get_text_config()
    embeddings = target.model.get_input_embeddings()
    head = load_eagle_head(config.eagle_head, len(decoder_layers(target.model)), settings.hidden_size, embeddings)
    return EagleDrafter(head, target, config)

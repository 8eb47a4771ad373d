"""EAGLE-3 in the engine: the target's passes leave features behind, and the head drafts from them.

    tokens            t0   t1   t2   t3   t4         t4 is pending: the target's next step feeds it
    target's slot     f0   f1   f2   f3              features, written by the target's layers as keys and values are
    head's slot       h0   h1   h2   h3   h4 ..      of feature and next token; from h4 on: of its own outputs

Where steps are captured, the head drafts in them (`device_step.drafts`), and what is here serves the other rows.

The head has a KV pool of its own. As with a draft model, what a slot of it holds is compared with the sequence's
tokens before each use. Pending tokens that a grammar forced, and drafts that others made, have no features yet: the
head goes over them as it goes over its own drafts.
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

_LONGEST_PENDING = 8
"""After more pending tokens, drafts included, the head is too far from the last feature to be worth its time."""


class EagleDrafter(LogitsDrafter):
    """Proposes drafts with an EAGLE-3 head. Makes the target write features: one head for a loaded model."""

    def __init__(self, head: EagleHead, target: LoadedModel, config: EngineConfig) -> None:
        super().__init__(head.token_ids.cpu().numpy(), target.head.token_limit, target.max_length, config)
        self.head = head.to(device=target.model.device, dtype=target.model.dtype)
        self.features = record_features(target, self.head)
        self._chunk = config.prefill_chunk
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
        self._outputs: dict[int, Tensor] = {}
        """By slot: what stands in for the feature of the last token taken in, [H]; and its position in `_ends`."""
        self._ends: dict[int, int] = {}
        self._ready: dict[int, list[int]] = {}
        """By slot: what a captured step has drafted behind the tokens that `_held` names."""

    def begin_round(self, sequence: Sequence) -> bool:
        """Whether a captured step may draft behind the sequence's tokens: the head's slot holds all that is before.

        If so, what comes behind is that step's to write.
        """
        rate, known = self._rates.get(sequence), sequence.length + 1
        if sequence.slot is None or rate is None or rate.value < self._cost or self._draws(sequence):
            return False
        if common_length(self._held.get(sequence.slot, []), sequence.token_ids, known) < known:
            return False
        self._held[sequence.slot] = sequence.token_ids[:known]
        return True

    def keep(self, sequence: Sequence, drawn: list[int], drafts: list[int]) -> None:
        """Takes what a captured step has drafted behind the sequence's tokens and those that it has drawn."""
        if sequence.slot is not None:
            self._held[sequence.slot] = [*sequence.token_ids, *drawn]
            self._ready[sequence.slot] = drafts

    def propose(self, sequences: list[Sequence]) -> None:
        """Drafts made by a captured step first: they cost nothing any more."""
        super().propose([sequence for sequence in sequences if not self._propose_ready(sequence)])

    def _propose_ready(self, sequence: Sequence) -> bool:
        """Proposes what is ready; False where there is nothing, or where drafts of others go before."""
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
            ends = row.worth < self._cost or token_id in sequence.ending_token_ids
            if ends or not self._add(row, Draft(token_id, row.rate)):
                break
        if row.drafts:
            sequence.use_drafts(row.drafts, row.states)
        return True

    def _first(self, rows: list[Row]) -> tuple[list[Row], Tensor]:
        """Takes in the tokens whose feature is new, a chunk at most, and then those that are pending."""
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
        """One more token of each row, which the target has not seen; slots ascend."""
        scheduled = [
            ScheduledTokens(row.slot, self._ends[row.slot], [token_id], wanted=1)
            for row, token_id in zip(rows, token_ids, strict=True)
        ]
        self._take_in(scheduled, [], torch.stack([self._outputs[row.slot] for row in rows]))

    def _take_in(self, decode: list[ScheduledTokens], chunks: list[ScheduledTokens], features: Tensor | None) -> None:
        """A pass of the head; `features` [T, H] in the order of the tokens, None: those that the target wrote."""
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
    """The layers of a transformers model. Raises UnsupportedModelError where they are not in `layers`."""
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UnsupportedModelError(f"{type(model).__name__}: an EAGLE-3 head needs a model with a list `layers`")
    return layers


def record_features(target: LoadedModel, head: EagleHead) -> Tensor:
    """From now on every pass of the target writes features into its pool; returns where, [slots + 1, length, H].

    Before each layer that the head names, its input is noted; before the last of them, features are made and written
    to the places that the step's attention plan names: so they are part of a captured step, too.
    """
    written = target.pool.keep_features(head.hidden_size)
    noted: list[Tensor] = []

    def note(layer: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if layer == head.layers[0]:
                noted.clear()  # a pass before may have failed half-way
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
    """The head that `config` names, if it names one. Raises UnsupportedModelError when it does not fit the target."""
    if config.eagle_head is None:
        return None
    settings = target.model.config.get_text_config()
    embeddings = target.model.get_input_embeddings()
    head = load_eagle_head(config.eagle_head, len(decoder_layers(target.model)), settings.hidden_size, embeddings)
    return EagleDrafter(head, target, config)

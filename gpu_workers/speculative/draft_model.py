"""A small second model that drafts for the first: greedily, under the grammar's mask, for all rows together.

It has a KV pool of its own with the same slots. What a slot of it holds is compared with the sequence's tokens before
each use, so rejected drafts, rollbacks and new owners of a slot need no message. Greedy drafts are deterministic: the
target draws exactly the tokens it would draw without them (Leviathan et al. 2023, with a point mass as the draft's
choice). Drafts drawn at random (`draft_sampling`) are verified by `verification`.
"""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_workers.config import EngineConfig
from gpu_workers.model.loader import LoadedModel, UnsupportedModelError, load
from gpu_workers.model.model_runner import ScheduledTokens
from gpu_workers.sampling.allowed_tokens import AllowedTokens
from gpu_workers.sampling.distribution import draw_settings, draw_weights, inverse_cdf
from gpu_workers.sampling.randomness import Stream, uniforms
from gpu_workers.sampling.verification import Proposal
from gpu_workers.sequence.drafts import AcceptanceRate, Draft
from gpu_workers.sequence.sequence import Sequence

_PRIOR = 0.7


@dataclass(slots=True)
class _Row:
    """One sequence while drafts are made for it."""

    sequence: Sequence
    rate: AcceptanceRate
    state: int
    room: int
    worth: float
    drafts: list[Draft]
    states: list[int]


class DraftModel:
    """Proposes drafts with a model that has the target's tokenizer.

    `draft_to_target`: int64 [k], ascending, the target's ids that the model may propose: a pruned vocabulary, whose
    columns alone are computed; None: all of them. The grammar's mask is mapped through it.
    """

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, draft_to_target: NDArray[np.int64] | None = None
    ) -> None:
        self._loaded = loaded
        self._cost = config.draft_cost
        self._limit = config.max_drafts
        self._random = config.draft_sampling == "random"
        self._chunk = config.prefill_chunk
        limit = loaded.head.token_limit
        ids = np.arange(limit) if draft_to_target is None else draft_to_target
        if not len(ids) or ids.min() < 0 or ids.max() >= limit:
            raise UnsupportedModelError(f"the draft vocabulary must hold token ids from 0 to {limit - 1}")
        self._ids = ids
        self._columns = None if draft_to_target is None else torch.from_numpy(ids).to(loaded.pool.device)
        self._held: dict[int, list[int]] = {}
        self._rates: weakref.WeakKeyDictionary[Sequence, AcceptanceRate] = weakref.WeakKeyDictionary()

    def propose(self, sequences: list[Sequence]) -> None:
        """Sets the `drafts` of these running sequences, as many as are worth it."""
        rows = [row for sequence in sequences if (row := self._row(sequence)) is not None]
        alive = [row for row in rows if self._fed(row)]
        hidden_states = self._catch_up(rows, alive)
        while alive:
            alive = self._extend(alive, hidden_states)
            if alive:
                alive.sort(key=lambda row: row.sequence.slot or 0)
                hidden_states = self._step(alive)
        for row in rows:
            row.sequence.use_drafts(row.drafts, row.states)

    def _row(self, sequence: Sequence) -> _Row | None:
        if (rate := self._rates.get(sequence)) is None:
            rate = self._rates[sequence] = AcceptanceRate(_PRIOR)
        if rate.value < self._cost:
            rate.recover()
            return None
        room = min(self._limit, sequence.draft_room, self._loaded.max_length - len(sequence.token_ids) - 1)
        if room < 1:
            return None
        constraint = sequence.constraint
        return _Row(sequence, rate, -1 if constraint is None else constraint.state, room, 1.0, [], [])

    def _fed(self, row: _Row) -> bool:
        """Whether one more pass completes what the draft model has not seen of this sequence."""
        return len(row.sequence.token_ids) - self._known(row.sequence) <= self._chunk

    def _known(self, sequence: Sequence) -> int:
        """How many tokens of the sequence its slot holds; at least the last one is fed again, for its hidden state."""
        assert sequence.slot is not None
        held = self._held.get(sequence.slot, [])
        tokens = sequence.token_ids
        common = min(len(held), len(tokens) - 1)
        if held[:common] != tokens[:common]:
            common = next(i for i in range(common) if held[i] != tokens[i])
        return common

    def _catch_up(self, rows: list[_Row], alive: list[_Row]) -> Tensor:
        """Feeds what is missing, a chunk at most; hidden states of the rows that are `alive`."""
        scheduled = []
        for row in rows:
            past, tokens = self._known(row.sequence), row.sequence.token_ids
            assert row.sequence.slot is not None
            chunk = tokens[past : past + self._chunk]
            scheduled.append(
                ScheduledTokens(row.sequence.slot, past, chunk, wanted=int(past + len(chunk) == len(tokens)))
            )
            self._held[row.sequence.slot] = tokens[: past + len(chunk)]
        return self._loaded.runner.forward([], scheduled) if scheduled else torch.zeros(0)

    def _step(self, rows: list[_Row]) -> Tensor:
        """Feeds each row's last draft."""
        scheduled = []
        for row in rows:
            assert row.sequence.slot is not None
            held = self._held[row.sequence.slot]
            token_id = row.drafts[-1].token_id
            scheduled.append(ScheduledTokens(row.sequence.slot, len(held), [token_id], wanted=1))
            held.append(token_id)
        return self._loaded.runner.forward(scheduled, [])

    @torch.inference_mode()
    def _extend(self, rows: list[_Row], hidden_states: Tensor) -> list[_Row]:
        """Adds a token to each row, the likeliest that is allowed or a random one; returns the rows to go on with."""
        head = self._loaded.head
        logits = head.logits(hidden_states) if self._columns is None else head.columns(hidden_states, self._columns)
        scores = logits.float().cpu().numpy()
        going_on = []
        for row, score in zip(rows, scores, strict=True):
            constraint = row.sequence.constraint
            allowed: AllowedTokens | None = None
            if constraint is not None:
                if (allowed := constraint.row(row.state)) is None:
                    continue
                score = np.where(self._allowed(allowed), score, -np.inf)
            row.worth *= row.rate.value
            if row.worth < self._cost or (draft := self._choose(row, score)) is None:
                continue
            if constraint is not None:
                if not (path := constraint.walk(row.state, [draft.token_id])):
                    continue
                row.state = path[0][1]
            row.drafts.append(draft)
            row.states.append(row.state)
            if len(row.drafts) < row.room:
                going_on.append(row)
        return going_on

    def _choose(self, row: _Row, score: NDArray[np.float32]) -> Draft | None:
        """A draft by the masked `score` float32 [k] of this model's vocabulary; None: nothing that goes on.

        Whether there is a draft must not depend on what is drawn, so tokens that end the output are left out before.
        """
        score = np.where(np.isin(self._ids, list(row.sequence.ending_token_ids)), -np.inf, score)
        best = int(score.argmax())
        if score[best] == -np.inf:
            return None
        sampling = row.sequence.request.sampling
        if not self._random or sampling.temperature == 0 or sampling.banned_words is not None:
            return Draft(int(self._ids[best]), row.rate)
        logits = torch.from_numpy(score)[None].double()
        weights = draw_weights(logits, draw_settings([sampling], logits.device))
        position = row.sequence.output_length + len(row.drafts)
        uniform = uniforms([sampling.seed], [row.sequence.request.choice_index], [position], Stream.DRAFT)
        token_id = int(self._ids[int(inverse_cdf(weights, torch.from_numpy(uniform)))])
        return Draft(token_id, row.rate, Proposal(token_id, self._ids, (weights / weights.sum())[0].numpy()))

    def _allowed(self, row: AllowedTokens) -> NDArray[np.bool_]:
        """The mask over this model's vocabulary, bool [k]; ids past the mask's width are forbidden."""
        words = np.append(row.mask, np.uint32(0))
        word = words[np.minimum(self._ids >> 5, len(row.mask))]
        return (word >> (self._ids & 31).astype(np.uint32)) & 1 != 0


def load_draft_model(config: EngineConfig, target: LoadedModel) -> DraftModel | None:
    """The draft model that `config` names, if it names one. Raises UnsupportedModelError when it does not fit."""
    if config.draft_model is None:
        return None
    loaded = load(config.draft_model, config)
    if loaded.tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise UnsupportedModelError(f"the draft model {config.draft_model} has another tokenizer than the model")
    ids = None
    if config.draft_vocabulary is not None:
        ids = np.unique(np.array(json.loads(Path(config.draft_vocabulary).read_text()), np.int64))
    return DraftModel(loaded, config, ids)

"""A small second model that drafts for the first: under the grammar's mask, for all rows together.

It has a KV pool of its own with the same slots. What a slot of it holds is compared with the sequence's tokens before
each use, so rejected drafts, rollbacks and new owners of a slot need no message.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_workers.config import EngineConfig
from gpu_workers.model.loader import LoadedModel, UnsupportedModelError, load
from gpu_workers.model.model_runner import ScheduledTokens
from gpu_workers.speculative.logits_drafter import LogitsDrafter, Row, common_length


class DraftModel(LogitsDrafter):
    """Proposes drafts with a model that has the target's tokenizer.

    `draft_to_target`: int64 [k], ascending, the target's ids that the model may propose: a pruned vocabulary, whose
    columns alone are computed; None: all of them.
    """

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, draft_to_target: NDArray[np.int64] | None = None
    ) -> None:
        limit = loaded.head.token_limit
        ids = np.arange(limit) if draft_to_target is None else draft_to_target
        super().__init__(ids, limit, loaded.max_length, config)
        self._loaded = loaded
        self._chunk = config.prefill_chunk
        self._columns = None if draft_to_target is None else torch.from_numpy(ids).to(loaded.pool.device)
        self._held: dict[int, list[int]] = {}

    def _first(self, rows: list[Row]) -> tuple[list[Row], Tensor]:
        """Feeds what is missing, a chunk at most; alive is who is complete then."""
        alive, scheduled = [], []
        for row in rows:
            tokens = row.token_ids
            # At least the last one is fed again, for its hidden state.
            past = common_length(self._held.get(row.slot, []), tokens, len(tokens) - 1)
            chunk = tokens[past : past + self._chunk]
            complete = past + len(chunk) == len(tokens)
            scheduled.append(ScheduledTokens(row.slot, past, chunk, wanted=int(complete)))
            self._held[row.slot] = tokens[: past + len(chunk)]
            if complete:
                alive.append(row)
        if not scheduled:
            return [], torch.zeros(0)
        return alive, self._logits(self._loaded.runner.forward([], scheduled))

    def _next(self, rows: list[Row]) -> Tensor:
        scheduled = []
        for row in rows:
            held = self._held[row.slot]
            token_id = row.drafts[-1].token_id
            scheduled.append(ScheduledTokens(row.slot, len(held), [token_id], wanted=1))
            held.append(token_id)
        return self._logits(self._loaded.runner.forward(scheduled, []))

    def _logits(self, hidden_states: Tensor) -> Tensor:
        head = self._loaded.head
        return head.logits(hidden_states) if self._columns is None else head.columns(hidden_states, self._columns)


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

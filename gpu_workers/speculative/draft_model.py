"""A second, smaller model that proposes drafts (next tokens to verify) for the sequences of the target model.

All sequences are processed in one batch, under the masks of their grammars. The draft model has its own KV cache, with
one slot for each slot of the target's KV cache. Before each use of a slot, its tokens are compared with the tokens of
the sequence, and only the tokens after the common prefix are computed. So the draft model needs no message about
rejected drafts, rollbacks or a new owner of a slot.
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
    """Proposes drafts (next tokens to verify) with a second, smaller model that has the target model's tokenizer.

    The constructor raises UnsupportedModelError if `draft_to_target` is empty or has unknown token IDs.

    Args:
        loaded: The draft model.
        config: Settings of the engine.
        draft_to_target: Token IDs that the draft model may propose, int64 [k], ascending. Logits are computed only for
            these tokens. None: all tokens.
    """

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, draft_to_target: NDArray[np.int64] | None = None
    ) -> None:
        limit = loaded.head.token_limit
        ids = np.arange(limit) if draft_to_target is None else draft_to_target
        super().__init__(ids, limit, loaded.max_model_len, config)
        self._loaded = loaded
        self._chunk = config.long_prefill_token_threshold
        self._columns = None if draft_to_target is None else torch.from_numpy(ids).to(loaded.pool.device)
        self._held: dict[int, list[int]] = {}

    def _first(self, rows: list[Row]) -> tuple[list[Row], Tensor]:
        """Feed the missing tokens of each sequence, at most one chunk.

        Returns:
            Sequences without missing tokens, and their logits [n, k].
        """
        alive, scheduled = [], []
        for row in rows:
            tokens = row.token_ids
            # At least the last token is processed again, for its hidden state.
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
    """Load the draft model that the config names.

    Raises OSError if the file `draft_vocabulary` cannot be read, and ValueError if it is not a JSON list of integers.

    Args:
        config: Settings of the engine. `draft_vocabulary` names a JSON file with the token IDs that may be proposed;
            None: all tokens.
        target: The target model, for which drafts are proposed.

    Returns:
        The draft model; None if the config names none.

    Raises:
        UnsupportedModelError: The draft model has another tokenizer, the engine cannot run it, or the file has unknown
            token IDs or none.
    """
    if config.draft_model is None:
        return None
    loaded = load(config.draft_model, config)
    if loaded.tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise UnsupportedModelError(f"the draft model {config.draft_model} has another tokenizer than the model")
    ids = None
    if config.draft_vocabulary is not None:
        ids = np.unique(np.array(json.loads(Path(config.draft_vocabulary).read_text()), np.int64))
    return DraftModel(loaded, config, ids)

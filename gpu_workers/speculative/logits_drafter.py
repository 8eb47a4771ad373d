"""Drafts (proposed next tokens) from logits, for all sequences in one batch, one token after another.

Each draft is the most likely token under the grammar's mask (greedy), or is sampled at random (`draft_sampling`). A
sequence may already have drafts that cost no forward pass, from forced text and n-grams. These come first, up to the
first one with a lower acceptance rate than drafts from logits.

With greedy drafts, the target model samples exactly the tokens that it would sample without drafts (Leviathan et al.
2023, with a point mass as the draft distribution). Randomly sampled drafts are verified by `sampling.verification`.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_workers.config import EngineConfig
from gpu_workers.model.loader import UnsupportedModelError
from gpu_workers.sampling.allowed_tokens import AllowedTokens
from gpu_workers.sampling.distribution import draw_settings, draw_weights, inverse_cdf
from gpu_workers.sampling.randomness import Stream, uniforms
from gpu_workers.sampling.verification import Proposal
from gpu_workers.sequence.drafts import AcceptanceRate, Draft
from gpu_workers.sequence.sequence import Sequence

_PRIOR = 0.7


@dataclass(slots=True)
class Row:
    """One sequence while drafts (proposed next tokens) are made for it.

    Attributes:
        sequence: The sequence.
        rate: Acceptance rate of drafts from logits, for this sequence.
        state: Grammar state after all drafts; -1 without a grammar.
        room: Maximum number of drafts, the existing ones included.
        worth: Estimated probability that all drafts are accepted.
        drafts: Drafts from forced text and n-grams, then drafts from logits.
        states: `states[i]` is the grammar state after `drafts[i]`; -1 without a grammar.
    """

    sequence: Sequence
    rate: AcceptanceRate
    state: int
    room: int
    worth: float
    drafts: list[Draft]
    states: list[int]

    @property
    def slot(self) -> int:
        """Slot of the KV cache that the sequence owns."""
        assert self.sequence.slot is not None
        return self.sequence.slot

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the sequence, prompt included, then its drafts."""
        return [*self.sequence.token_ids, *(draft.token_id for draft in self.drafts)]


class LogitsDrafter(ABC):
    """Base class of drafters that compute logits: a draft model or an EAGLE-3 head.

    The logits are for a *draft vocabulary*, a subset of the tokens. Drafts are chosen under the grammar's mask. Without
    a mask (it is not available yet, or `draft_masks` is off), the chosen token may be disallowed; the drafts of the
    sequence then end before this token. The constructor raises UnsupportedModelError if the draft vocabulary is empty
    or has IDs that the target model does not have.

    Args:
        token_ids: Token IDs that may be proposed (the draft vocabulary), int64 [k], ascending.
        token_limit: One past the largest token ID of the target model.
        max_model_len: Maximum number of tokens of a sequence.
        config: Settings of the engine.
    """

    def __init__(
        self, token_ids: NDArray[np.int64], token_limit: int, max_model_len: int, config: EngineConfig
    ) -> None:
        if not len(token_ids) or token_ids.min() < 0 or token_ids.max() >= token_limit:
            raise UnsupportedModelError(f"the draft vocabulary must hold token ids from 0 to {token_limit - 1}")
        self._ids = token_ids
        self._max_model_len = max_model_len
        self._config = config
        self._cost = config.draft_cost
        self._rates: weakref.WeakKeyDictionary[Sequence, AcceptanceRate] = weakref.WeakKeyDictionary()

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence]) -> None:
        """Add drafts from logits to the `drafts` (proposed next tokens) of sequences.

        Earlier drafts of a sequence are kept up to the first one with a lower acceptance rate than drafts from logits.
        Drafts are added while the estimated probability that all of them are accepted is at least `draft_cost`. If no
        draft is added to a sequence, its `drafts` do not change.

        Args:
            sequences: Running sequences with slots; changed in place.
        """
        rows = [row for sequence in sequences if (row := self._row(sequence)) is not None]
        alive, logits = self._first(rows)
        while alive:
            alive = self._extend(alive, logits)
            if alive:
                alive.sort(key=lambda row: row.slot)
                logits = self._next(alive)
        for row in rows:
            if row.drafts and row.drafts[-1].rate is row.rate:
                row.sequence.use_drafts(row.drafts, row.states)

    @abstractmethod
    def _first(self, rows: list[Row]) -> tuple[list[Row], Tensor]:
        """Process the new tokens of `rows`, drafts included. Return the rows to extend now, and their logits [n, k]."""

    @abstractmethod
    def _next(self, rows: list[Row]) -> Tensor:
        """Process the last draft of each row.

        Return logits [n, k] for the token after it. The slots of `rows` ascend.
        """

    def _row(self, sequence: Sequence) -> Row | None:
        if (rate := self._rates.get(sequence)) is None:
            rate = self._rates[sequence] = AcceptanceRate(_PRIOR)
        if rate.value < self._cost:
            rate.recover()
            return None
        room = min(
            self._config.num_speculative_tokens, sequence.draft_room, self._max_model_len - len(sequence.token_ids) - 1
        )
        # Cheaper drafts are kept up to the first that is accepted less often than drafts from logits.
        better = takewhile(lambda draft: draft.rate is None or draft.rate.value >= rate.value, sequence.drafts)
        drafts, constraint = list(better), sequence.constraint
        if room <= len(drafts):
            return None
        worth = math.prod(1.0 if draft.rate is None else draft.rate.value for draft in drafts)
        if constraint is None:
            return Row(sequence, rate, -1, room, worth, drafts, [-1] * len(drafts))
        states = [state for _, state in constraint.walk(constraint.state, [draft.token_id for draft in drafts])]
        if len(states) < len(drafts):
            return None  # another thread uses the automaton
        return Row(sequence, rate, states[-1] if states else constraint.state, room, worth, drafts, states)

    def _extend(self, rows: list[Row], logits: Tensor) -> list[Row]:
        """Add the most likely allowed token, or a random one, to each row. Return the rows to extend further."""
        scores = logits.float().cpu().numpy()
        going_on = []
        for row, score in zip(rows, scores, strict=True):
            constraint = row.sequence.constraint
            if constraint is not None and self._config.draft_masks:
                if (allowed := constraint.table.known(row.state)) is not None:
                    score = np.where(self._allowed(allowed), score, -np.inf)
                elif self._draws(row.sequence):
                    # Compute the mask for the next step. Without it, a disallowed draft could not be verified.
                    constraint.row(row.state)
                    continue
            row.worth *= row.rate.value
            if row.worth < self._cost or (draft := self._choose(row, score)) is None:
                continue
            if self._add(row, draft) and len(row.drafts) < row.room:
                going_on.append(row)
        return going_on

    def _add(self, row: Row, draft: Draft) -> bool:
        """Add a draft if the grammar allows it. Return whether it was added."""
        if (constraint := row.sequence.constraint) is not None:
            if not (path := constraint.walk(row.state, [draft.token_id])):
                return False
            row.state = path[0][1]
        row.drafts.append(draft)
        row.states.append(row.state)
        return True

    def _choose(self, row: Row, score: NDArray[np.float32]) -> Draft | None:
        """Return a draft for the masked `score`, float32 [k] over the draft vocabulary; None if there is no draft.

        A greedy draft is the most likely token, unless it ends the output. A random draft is sampled from the tokens
        that do not end the output: whether there is a draft must not depend on the sample.
        """
        ends = np.isin(self._ids, list(row.sequence.text.ending_token_ids))
        if not self._draws(row.sequence):
            best = int(score.argmax())
            return None if ends[best] or score[best] == -np.inf else Draft(int(self._ids[best]), row.rate)
        score = np.where(ends, -np.inf, score)
        if score.max() == -np.inf:
            return None
        sampling = row.sequence.request.sampling
        logits = torch.from_numpy(score)[None].double()
        weights = draw_weights(logits, draw_settings([sampling], logits.device))
        position = row.sequence.output_length + len(row.drafts)
        uniform = uniforms([sampling.seed], [row.sequence.request.choice_index], [position], Stream.DRAFT)
        token_id = int(self._ids[int(inverse_cdf(weights, torch.from_numpy(uniform)))])
        return Draft(token_id, row.rate, Proposal(token_id, self._ids, (weights / weights.sum())[0].numpy()))

    def _draws(self, sequence: Sequence) -> bool:
        """Return whether drafts of this sequence are sampled at random."""
        sampling = sequence.request.sampling
        may_draw = sampling.temperature > 0 and sampling.banned_words is None
        return may_draw and self._config.draft_sampling == "random"

    def _allowed(self, row: AllowedTokens) -> NDArray[np.bool_]:
        """Return the mask over the draft vocabulary, bool [k]. IDs beyond the width of the mask are disallowed."""
        words = np.append(row.mask, np.uint32(0))
        word = words[np.minimum(self._ids >> 5, len(row.mask))]
        return (word >> (self._ids & 31).astype(np.uint32)) & 1 != 0


def common_length(one: list[int], other: list[int], limit: int) -> int:
    """Return the length of the common prefix of two lists of token IDs, at most `limit`.

    Args:
        one: Token IDs.
        other: Token IDs.
        limit: Maximum of the returned length.
    """
    common = min(len(one), len(other), limit)
    return common if one[:common] == other[:common] else next(i for i in range(common) if one[i] != other[i])

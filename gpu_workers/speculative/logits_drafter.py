"""Drafts from logits, one token after another for all rows together: the likeliest tokens under the grammar's mask.

They go behind drafts that cost nothing, of forced text and n-grams, in place of those that come true less often.

Greedy drafts are deterministic: the target draws exactly the tokens it would draw without them (Leviathan et al. 2023,
with a point mass as the draft's choice). Drafts drawn at random (`draft_sampling`) are verified by `verification`.
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
    """One sequence while drafts are made for it, `drafts` holding the cheaper ones first.

    `states`: its grammar's after each of them, `state`: after the last; `worth`: the chance that all of them come true.
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
        assert self.sequence.slot is not None
        return self.sequence.slot

    @property
    def token_ids(self) -> list[int]:
        """The sequence's tokens and the drafts."""
        return [*self.sequence.token_ids, *(draft.token_id for draft in self.drafts)]


class LogitsDrafter(ABC):
    """Proposes drafts by logits over a draft vocabulary, whatever they are computed from.

    `token_ids`: int64 [k], ascending, the target's ids that may be proposed. The grammar's mask is mapped through it.
    Where a state's mask is not known yet, or `draft_masks` is off, what the grammar forbids is proposed as well: that
    is where a row's drafts end.
    """

    def __init__(self, token_ids: NDArray[np.int64], token_limit: int, max_length: int, config: EngineConfig) -> None:
        if not len(token_ids) or token_ids.min() < 0 or token_ids.max() >= token_limit:
            raise UnsupportedModelError(f"the draft vocabulary must hold token ids from 0 to {token_limit - 1}")
        self._ids = token_ids
        self._max_length = max_length
        self._cost = config.draft_cost
        self._limit = config.max_drafts
        self._random = config.draft_sampling == "random"
        self._masks = config.draft_masks
        self._rates: weakref.WeakKeyDictionary[Sequence, AcceptanceRate] = weakref.WeakKeyDictionary()

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence]) -> None:
        """Adds to the `drafts` of these running sequences, or puts better ones there, as many as are worth it."""
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
        """Takes in what is new in `rows`, drafts too: those that can be gone on with now, and their logits [n, k]."""

    @abstractmethod
    def _next(self, rows: list[Row]) -> Tensor:
        """Takes in each row's last draft, one of ours; logits [n, k] of what follows. Slots of the rows ascend."""

    def _row(self, sequence: Sequence) -> Row | None:
        if (rate := self._rates.get(sequence)) is None:
            rate = self._rates[sequence] = AcceptanceRate(_PRIOR)
        if rate.value < self._cost:
            rate.recover()
            return None
        room = min(self._limit, sequence.draft_room, self._max_length - len(sequence.token_ids) - 1)
        # What forced text and n-grams gave, for as long as it comes true at least as often as ours.
        better = takewhile(lambda draft: draft.rate is None or draft.rate.value >= rate.value, sequence.drafts)
        drafts, constraint = list(better), sequence.constraint
        if room <= len(drafts):
            return None
        worth = math.prod(1.0 if draft.rate is None else draft.rate.value for draft in drafts)
        if constraint is None:
            return Row(sequence, rate, -1, room, worth, drafts, [-1] * len(drafts))
        states = [state for _, state in constraint.walk(constraint.state, [draft.token_id for draft in drafts])]
        if len(states) < len(drafts):
            return None  # its automaton is at work in another thread
        return Row(sequence, rate, states[-1] if states else constraint.state, room, worth, drafts, states)

    def _extend(self, rows: list[Row], logits: Tensor) -> list[Row]:
        """Adds a token to each row, the likeliest that is allowed or a random one; returns the rows to go on with."""
        scores = logits.float().cpu().numpy()
        going_on = []
        for row, score in zip(rows, scores, strict=True):
            constraint = row.sequence.constraint
            if constraint is not None and self._masks:
                if (allowed := constraint.known_row(row.state)) is not None:
                    score = np.where(self._allowed(allowed), score, -np.inf)
                elif self._draws(row.sequence):
                    constraint.row(row.state)  # for the next time: what it forbids could not be verified
                    continue
            row.worth *= row.rate.value
            if row.worth < self._cost or (draft := self._choose(row, score)) is None:
                continue
            if self._add(row, draft) and len(row.drafts) < row.room:
                going_on.append(row)
        return going_on

    def _add(self, row: Row, draft: Draft) -> bool:
        """Adds a draft where the grammar goes on with it; whether it does."""
        if (constraint := row.sequence.constraint) is not None:
            if not (path := constraint.walk(row.state, [draft.token_id])):
                return False
            row.state = path[0][1]
        row.drafts.append(draft)
        row.states.append(row.state)
        return True

    def _choose(self, row: Row, score: NDArray[np.float32]) -> Draft | None:
        """A draft by the masked `score` float32 [k] of the draft vocabulary; None: nothing that goes on.

        The likeliest token, but none where that ends the output. A random one is drawn from those that do not: whether
        there is a draft must not depend on what is drawn.
        """
        ends = np.isin(self._ids, list(row.sequence.ending_token_ids))
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
        """Whether drafts of this sequence are drawn at random."""
        sampling = sequence.request.sampling
        return self._random and sampling.temperature > 0 and sampling.banned_words is None

    def _allowed(self, row: AllowedTokens) -> NDArray[np.bool_]:
        """The mask over the draft vocabulary, bool [k]; ids past the mask's width are forbidden."""
        words = np.append(row.mask, np.uint32(0))
        word = words[np.minimum(self._ids >> 5, len(row.mask))]
        return (word >> (self._ids & 31).astype(np.uint32)) & 1 != 0


def common_length(one: list[int], other: list[int], limit: int) -> int:
    """How many of the first `limit` items two lists have in common."""
    common = min(len(one), len(other), limit)
    return common if one[:common] == other[:common] else next(i for i in range(common) if one[i] != other[i])

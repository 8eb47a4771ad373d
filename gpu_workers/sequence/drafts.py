"""Drafts: cheap guesses at the next tokens, checked by one forward pass.

A row feeds `[last, d1 .. dk]` and gets hidden states at k + 1 positions. Tokens are then drawn from them one position
after another, exactly as without drafts, for as long as the drawn token is the drafted one: the output is the same
token for token at every temperature, and only the KV length ever has to go back.

Guesses are made under the grammar's mask, from text that the grammar forces and from what followed the same few tokens
earlier in prompt and output (prompt look-up: Saxena 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_workers.guided.masks import Constraint
from gpu_workers.sampling.verification import Proposal

_MEMORY = 0.15
_RECOVERY = 0.01


@dataclass(slots=True)
class AcceptanceRate:
    """How often drafts of one source come true, for one request: a moving average that starts at `prior`.

    While it is too low to draft at all it recovers slowly, so that the source is tried again.
    """

    prior: float
    value: float = field(init=False)

    def __post_init__(self) -> None:
        self.value = self.prior

    def update(self, accepted: bool) -> None:
        self.value += _MEMORY * (accepted - self.value)

    def recover(self) -> None:
        self.value += _RECOVERY * max(0.0, self.prior - self.value)


@dataclass(frozen=True, slots=True)
class Draft:
    """One drafted token. `rate` is None where the grammar allows no other token; `proposal`: if drawn at random."""

    token_id: int
    rate: AcceptanceRate | None
    proposal: Proposal | None = None


class NgramIndex:
    """Where each run of `shortest` to `longest` tokens was last seen, and so what may follow it again."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._following: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Learns the tokens that are new at the end of `token_ids`."""
        for position in range(min(self._indexed, len(token_ids)), len(token_ids)):
            for size in self._sizes:
                if position >= size:
                    self._following[tuple(token_ids[position - size : position])] = position
        self._indexed = len(token_ids)

    def following(self, tail: Sequence[int]) -> int | None:
        """Where the text went on after the longest known end of `tail`; None if it was never seen."""
        for size in self._sizes:
            if len(tail) >= size and (position := self._following.get(tuple(tail[-size:]))) is not None:
                return position
        return None

    @property
    def reach(self) -> int:
        """The longest run that is looked up."""
        return self._sizes.start


class Drafter:
    """Proposes drafts for one sequence, as many as are worth their place in a step.

    A draft is worth it while the probability that it and all before it come true is at least `cost`: what one more
    token in a forward pass costs, relative to one more pass.
    """

    def __init__(self, *, cost: float, limit: int, ngram: int) -> None:
        self._cost = cost
        self._limit = limit
        self._ngrams = NgramIndex(min(2, ngram), ngram) if ngram else None
        self._forced_rate = AcceptanceRate(0.9)
        # The last token of a forced text may really be a longer one, joined with what comes after.
        self._forced_end_rate = AcceptanceRate(0.5)
        self._ngram_rate = AcceptanceRate(0.6)

    def propose(self, token_ids: list[int], constraint: Constraint | None, room: int) -> list[Draft]:
        """Drafts after `token_ids`, at most `room`; `constraint` stands behind them and remembers the way."""
        if self._ngrams is not None:
            self._ngrams.extend(token_ids)
        room = min(room, self._limit)
        drafts: list[Draft] = []
        states: list[int] = []
        worth = 1.0
        while len(drafts) < room:
            pieces = self._next(token_ids, drafts, constraint, states)
            taken = 0
            for draft, state in pieces[: room - len(drafts)]:
                worth *= 1.0 if draft.rate is None else draft.rate.value
                if worth < self._cost:
                    break
                drafts.append(draft)
                states.append(state)
                taken += 1
            if taken < len(pieces) or not pieces:
                break
        if not drafts:
            self._ngram_rate.recover()
            self._forced_rate.recover()
            self._forced_end_rate.recover()
        if constraint is not None:
            constraint.follow((draft.token_id, state) for draft, state in zip(drafts, states, strict=True))
            constraint.prefetch()
        return drafts

    def _next(
        self, token_ids: list[int], drafts: list[Draft], constraint: Constraint | None, states: list[int]
    ) -> list[tuple[Draft, int]]:
        """More drafts after `drafts`, with the grammar states after them (-1 without a grammar)."""
        if constraint is not None:
            state = states[-1] if states else constraint.state
            if (forced := constraint.forced_text(state)) is not None and forced.token_ids:
                rates: list[AcceptanceRate | None] = [None] * forced.sole
                if spelled := len(forced.token_ids) - forced.sole:
                    rates += [*[self._forced_rate] * (spelled - 1), self._forced_end_rate]
                drafts_ahead = map(Draft, forced.token_ids, rates)
                return list(zip(drafts_ahead, forced.states, strict=True))
        if self._ngrams is None:
            return []
        reach = self._ngrams.reach
        tail = [*token_ids[-reach:], *(draft.token_id for draft in drafts[-reach:])]
        if (position := self._ngrams.following(tail)) is None:
            return []
        guess = token_ids[position : position + self._limit]
        if constraint is None:
            return [(Draft(token_id, self._ngram_rate), -1) for token_id in guess]
        return [(Draft(token_id, self._ngram_rate), after) for token_id, after in constraint.walk(state, guess)]

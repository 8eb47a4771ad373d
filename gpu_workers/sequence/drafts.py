"""Drafts: cheap guesses at the next tokens of a sequence, which one forward pass verifies (speculative decoding).

A forward pass over the last token and the drafts, `[last, d1 .. dk]`, gives hidden states at k + 1 positions. Tokens
are sampled at these positions one after another, exactly as without drafts, until a sampled token differs from its
draft. So drafts do not change the output, at any temperature. Keys and values of rejected drafts are dropped from the
KV cache.

This module has two sources of drafts. The first one is forced text: the grammar allows no other text. The second one is
prompt lookup (Saxena 2023): it searches prompt and output for an earlier occurrence of the last few tokens, and
proposes the tokens that followed there. All drafts are tokens that the grammar allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_workers.config import EngineConfig
from gpu_workers.guided.masks import Constraint
from gpu_workers.sampling.verification import Proposal

_MEMORY = 0.15
_RECOVERY = 0.01


class AcceptanceRate:
    """Acceptance rate of one kind of draft (such as forced text) in one request, as a moving average.

    Attributes:
        prior: Initial value of the average, in [0, 1].
        value: Current estimate of the probability that a draft of this kind is accepted, in [0, 1].
    """

    def __init__(self, prior: float) -> None:
        self.prior = self.value = prior

    def update(self, accepted: bool) -> None:
        """Include one verified draft in the average.

        Args:
            accepted: True if the sampled token was equal to the draft.
        """
        self.value += _MEMORY * (accepted - self.value)

    def recover(self) -> None:
        """Move the average a small step up toward `prior`, so that drafts of this kind are tried again after a while.

        Call this method in steps without drafts. An average that is at or above `prior` does not change.
        """
        self.value += _RECOVERY * max(0.0, self.prior - self.value)


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft: a guess of an output token, which the next forward pass verifies.

    Attributes:
        token_id: The token.
        rate: Acceptance rate of drafts of this kind. The verification of the draft updates it. None if the grammar
            allows no other token, so that the draft is always accepted.
        proposal: Distribution from which the draft was sampled; None if the draft was not sampled at random.
    """

    token_id: int
    rate: AcceptanceRate | None
    proposal: Proposal | None = None


class NgramIndex:
    """Index of the n-grams (n consecutive tokens) of one sequence, for prompt lookup.

    The index maps each n-gram to the position after its last occurrence.

    Args:
        shortest: Minimum n of the indexed n-grams, at least 1.
        longest: Maximum n of the indexed n-grams.

    Attributes:
        reach: Maximum length, in tokens, of the indexed n-grams.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.reach = longest
        self._sizes = range(longest, shortest - 1, -1)
        self._following: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Index the n-grams of the tokens that were appended since the previous call.

        Args:
            token_ids: All tokens of the sequence, prompt included. If tokens were removed since the previous call,
                n-grams that contain them stay in the index.
        """
        for position in range(min(self._indexed, len(token_ids)), len(token_ids)):
            for size in self._sizes:
                if position >= size:
                    self._following[tuple(token_ids[position - size : position])] = position
        self._indexed = len(token_ids)

    def following(self, tail: Sequence[int]) -> int | None:
        """Return the position after the last occurrence of an n-gram: the longest indexed one with which `tail` ends.

        Args:
            tail: Last tokens of the sequence, followed by its drafts.

        Returns:
            Index into the tokens that were passed to `extend`; None if `tail` ends with no indexed n-gram. For example,
            with the tokens [5, 6, 7, 5, 6] and the tail [5, 6], the index is 2: token 7 followed.
        """
        for size in self._sizes:
            if len(tail) >= size and (position := self._following.get(tuple(tail[-size:]))) is not None:
                return position
        return None


class Drafter:
    """Proposes draft tokens for one sequence, from forced text (the grammar allows no other text) and prompt lookup.

    If text is forced at a position, its tokens are drafted, otherwise the tokens from prompt lookup. Drafts are added
    while the estimated probability that all of them are accepted is at least `draft_cost`.

    Args:
        config: Settings of the engine: `draft_cost`, `num_speculative_tokens` and `prompt_lookup_max`.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._cost = config.draft_cost
        self._limit = config.num_speculative_tokens
        longest = config.prompt_lookup_max
        self._ngrams = NgramIndex(min(2, longest), longest) if longest else None
        self._forced_rate = AcceptanceRate(0.9)
        # The model may use a longer token at the end, which joins the forced text with the text after it.
        self._forced_end_rate = AcceptanceRate(0.5)
        self._ngram_rate = AcceptanceRate(0.6)

    def propose(self, token_ids: list[int], constraint: Constraint | None, room: int) -> tuple[list[Draft], list[int]]:
        """Return draft tokens (guesses at the next tokens) that may follow `token_ids`.

        Args:
            token_ids: Tokens of the sequence, prompt included.
            constraint: Grammar state of the sequence, after `token_ids`; None without a grammar.
            room: Maximum number of drafts. If `num_speculative_tokens` is smaller, it applies.

        Returns:
            The drafts in order, and the grammar states after them (-1 without a grammar). Both are empty if no draft is
            likely enough to be accepted.
        """
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
        return drafts, states

    def _next(
        self, token_ids: list[int], drafts: list[Draft], constraint: Constraint | None, states: list[int]
    ) -> list[tuple[Draft, int]]:
        """Return more drafts after `drafts`, with the grammar states after them (-1 without a grammar)."""
        if constraint is not None:
            state = states[-1] if states else constraint.state
            if (forced := constraint.table.forced_text(state)) is not None and forced.token_ids:
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

"""Continuous batching: which sequences hold a slot, and what goes into the next step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gpu_workers.engine.prefix_cache import PrefixCache
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.model.model_runner import ScheduledTokens
from gpu_workers.sequence.sequence import Sequence, State

GROUP_TOKENS = 8
"""Feeds up to this long attend as one padded group; a longer one is cheaper alone."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass. `sequences` are those of `decode` (by slot, a few tokens each) and then of `chunks`.

    `drafts[i]` of the i-th item of `scheduled` are drafts, not tokens of the sequence.
    """

    decode: list[ScheduledTokens]
    chunks: list[ScheduledTokens]
    sequences: list[Sequence]
    drafts: list[int]

    @property
    def scheduled(self) -> list[ScheduledTokens]:
        return self.decode + self.chunks


class Scheduler:
    """The queue, the sequences that hold a slot, and each one's slot and length.

    A slot has one owner, a plan has at most `step_tokens` tokens, and every sequence that can decode is in it.

    First come, first served. Decoding goes first, so that a long prompt never delays running streams; prompts take what
    is left of the step's token budget, oldest first, in chunks; drafts take what is left by them.
    """

    def __init__(
        self, pool: KVPool, *, step_tokens: int, prefill_chunk: int, shortest_prefix: int = 16, patience: int = 8
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._pool = pool
        self._step_tokens = step_tokens
        self._prefill_chunk = prefill_chunk
        self._patience = patience
        self._prefixes = PrefixCache(pool, shortest_prefix)
        self.reused_tokens = 0
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. A part of a search that resumes goes first: its beginning is still in the cache."""
        if sequence.request.sampling.probe and sequence.request.emitted_token_ids:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)

    def admit(self) -> None:
        """Gives free slots to waiting sequences, oldest first.

        At most half of the slots go to sequences whose grammar is not there yet: slow compilations must not keep
        everybody else out. For the same reason a sequence that waits for its mask for `patience` steps while
        others wait for a slot goes back to the queue, and comes back when its mask is there.
        """
        if not self.waiting:
            return
        if not self._pool.free_slots:
            for sequence in list(self.running):
                sequence.blocked_steps = sequence.blocked_steps + 1 if sequence.blocked else 0
                if sequence.blocked_steps > self._patience:
                    self._preempt(sequence)
        without_grammar = sum(sequence.state is State.AWAITING_GRAMMAR for sequence in self.running)
        for sequence in list(self.waiting):
            if sequence.blocked:
                continue
            if sequence.state is State.AWAITING_GRAMMAR:
                if without_grammar >= max(1, self._pool.slots // 2):
                    continue
                without_grammar += 1
            if not self._pool.free_slots:
                return
            self._enter(sequence)

    def plan(self) -> StepPlan:
        runnable = [sequence for sequence in self.running if sequence.runnable]
        budget = self._step_tokens - sum(sequence.pending == 1 for sequence in runnable)
        shares: list[tuple[Sequence, int]] = []
        for sequence in runnable:
            tokens = 1
            if sequence.pending > 1:
                tokens = min(sequence.pending, self._prefill_chunk, budget)
                budget -= tokens
            if tokens:
                shares.append((sequence, tokens))
        decode: list[tuple[ScheduledTokens, Sequence, int]] = []
        chunks: list[tuple[ScheduledTokens, Sequence, int]] = []
        for sequence, tokens in shares:
            drafts = min(len(sequence.drafts), budget) if tokens == sequence.pending else 0
            budget -= drafts
            part = _scheduled_tokens(sequence, tokens, drafts)
            in_group = part.wanted and len(part.token_ids) <= GROUP_TOKENS
            (decode if in_group else chunks).append((part, sequence, drafts))
        decode.sort(key=lambda planned: planned[0].slot)
        planned = decode + chunks
        return StepPlan(
            [part for part, _, _ in decode],
            [part for part, _, _ in chunks],
            [sequence for _, sequence, _ in planned],
            [drafts for _, _, drafts in planned],
        )

    def commit(self, plan: StepPlan) -> None:
        """The step has run: its tokens are in the cache."""
        for sequence, part, drafts in zip(plan.sequences, plan.scheduled, plan.drafts, strict=True):
            sequence.length += len(part.token_ids) - drafts

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Forgets a sequence, running or waiting, and frees its slot; `keep`: what is in it is worth keeping."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
            return
        self._leave(sequence, keep=keep)

    def make_room(self) -> bool:
        """When nothing can move but what waits for a slot: whoever is blocked leaves at once. Whether anybody did."""
        blocked = [sequence for sequence in self.running if sequence.blocked]
        if self._pool.free_slots or all(sequence.blocked for sequence in self.waiting):
            return False
        for sequence in blocked:
            self._preempt(sequence)
        return bool(blocked)

    def _enter(self, sequence: Sequence) -> None:
        acquired = self._prefixes.acquire(sequence, self.running)
        assert acquired is not None
        self.waiting.remove(sequence)
        sequence.slot, sequence.length = acquired
        sequence.written = sequence.length
        self.reused_tokens += sequence.length
        self.running.append(sequence)
        sequence.times.note("admitted")

    def _preempt(self, sequence: Sequence) -> None:
        """Nothing is lost but keys and values, and those only if somebody else needs the slot."""
        self._leave(sequence, keep=True)
        sequence.suspend()
        self.waiting.append(sequence)
        self.preemptions += 1

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        assert sequence.slot is not None
        self.running.remove(sequence)
        self._prefixes.release(sequence.slot, sequence.token_ids[: sequence.length], sequence.written, keep=keep)
        sequence.slot = None


def _scheduled_tokens(sequence: Sequence, tokens: int, drafts: int) -> ScheduledTokens:
    assert sequence.slot is not None
    past, wanted = sequence.length, drafts + 1 if tokens == sequence.pending else 0
    token_ids = sequence.token_ids[past : past + tokens]
    token_ids += [draft.token_id for draft in sequence.drafts[:drafts]]
    # Noted before the step runs: one that fails half-way may have written them all.
    sequence.written = max(sequence.written, past + len(token_ids))
    return ScheduledTokens(sequence.slot, past, token_ids, wanted)

"""Continuous batching: assigns slots of the KV cache to sequences, and selects the tokens of the next forward pass."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gpu_workers.config import EngineConfig
from gpu_workers.engine.prefix_cache import PrefixCache
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.model.model_runner import ScheduledTokens
from gpu_workers.sequence.sequence import Sequence, State

# Maximum number of tokens of a sequence that attends in the padded decode group. Longer inputs run faster alone.
GROUP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The tokens of one step (one forward pass of the batch).

    Attributes:
        decode: Tokens of each sequence that gets at most `GROUP_TOKENS` tokens in this step and samples a token after
            them. The items are in ascending order of their KV cache slots, and attend as one group.
        chunks: All other inputs, mainly prompt chunks. Each attends alone.
        sequences: The sequence of each item of `decode`, then of each item of `chunks`.
        drafts: `drafts[i]` is the number of drafts at the end of `scheduled[i]`; 0 if it has none. Drafts are proposed
            tokens that the step verifies.
    """

    decode: list[ScheduledTokens]
    chunks: list[ScheduledTokens]
    sequences: list[Sequence]
    drafts: list[int]

    @property
    def scheduled(self) -> list[ScheduledTokens]:
        """Tokens of all sequences in the step, one item per sequence: `decode`, then `chunks`."""
        return self.decode + self.chunks


class Scheduler:
    """The queue of waiting sequences, and the running sequences, each of which holds a slot of the KV cache.

    Waiting sequences get slots first come, first served. A step has at most `max_num_batched_tokens` tokens. Every
    sequence that decodes gets one token first, so a long prompt does not delay running streams. Prompts get the rest of
    the tokens in chunks, oldest first. Drafts (proposed tokens that the step verifies) use what remains.

    Args:
        pool: The KV cache with its slots.
        config: Settings of the engine: the limits of tokens in one step (`max_num_batched_tokens`,
            `long_prefill_token_threshold`), `min_prefix_tokens` and `preempt_patience`.

    Attributes:
        waiting: Sequences without a slot, in the order in which they get one.
        running: Sequences with a slot, in the order in which they got it.
        reused_tokens: Number of tokens so far whose keys and values were reused from the prefix cache.
        preemptions: Number of times so far that a sequence has lost its slot to a waiting sequence.
    """

    def __init__(self, pool: KVPool, config: EngineConfig) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._pool = pool
        self._config = config
        self._prefixes = PrefixCache(pool, config.min_prefix_tokens)
        self.reused_tokens = 0
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Add a sequence to the queue of sequences that wait for a slot of the KV cache.

        The sequence goes to the end of the queue. A resumed generation of beam search or conditional sampling goes to
        the front, because its prefix is still cached.

        Args:
            sequence: A sequence without a slot.
        """
        if sequence.request.sampling.probe and sequence.request.emitted_token_ids:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)

    def admit(self) -> None:
        """Give free slots to waiting sequences, oldest first.

        - Sequences whose grammar has not arrived get at most half of the slots (at least one). So slow compilations do
          not block other requests.
        - If no slot is free, each running sequence whose token mask has been missing for more than `patience` steps
          loses its slot and goes back to the queue. It gets a slot again only after its mask is ready.
        """
        if not self.waiting:
            return
        if not self._pool.free_slots:
            for sequence in list(self.running):
                sequence.blocked_steps = sequence.blocked_steps + 1 if sequence.blocked else 0
                if sequence.blocked_steps > self._config.preempt_patience:
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
        """Select at most `max_num_batched_tokens` tokens for the next step (forward pass of the batch).

        A *pending* token has no keys and values in the KV cache yet. The pending token of each decoding sequence comes
        first. Chunks of prompts use the rest of the tokens, and drafts (proposed tokens that the step verifies) use
        what remains after them. Call `commit` after the step has run.

        Returns:
            The tokens of each sequence in the step; empty if no sequence can run.
        """
        runnable = [sequence for sequence in self.running if sequence.runnable]
        budget = self._config.max_num_batched_tokens - sum(sequence.pending == 1 for sequence in runnable)
        shares: list[tuple[Sequence, int]] = []
        for sequence in runnable:
            tokens = 1
            if sequence.pending > 1:
                tokens = min(sequence.pending, self._config.long_prefill_token_threshold, budget)
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
        """Record that a step has run: the keys and values of its tokens, except drafts, now count as computed.

        Args:
            plan: Plan of the step. The `length` of each of its sequences (number of computed tokens) is increased.
        """
        for sequence, part, drafts in zip(plan.sequences, plan.scheduled, plan.drafts, strict=True):
            sequence.length += len(part.token_ids) - drafts

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Remove a running or waiting sequence, and free its slot of the KV cache if it has one.

        Args:
            sequence: The sequence.
            keep: If true, the slot keeps the keys and values as a prefix for later requests. If false, they are set to
                zero.
        """
        if sequence.slot is None:
            self.waiting.remove(sequence)
            return
        self._leave(sequence, keep=keep)

    def make_room(self) -> bool:
        """Preempt all running sequences that wait for a token mask, if a sequence in the queue could use their slots.

        A preempted sequence loses its slot and goes back to the queue. Call this method only if no sequence made
        progress in a step. It does nothing if a slot is free, or if no sequence in the queue could run.

        Returns:
            True if at least one sequence was preempted.
        """
        blocked = [sequence for sequence in self.running if sequence.blocked]
        if self._pool.free_slots or all(sequence.blocked for sequence in self.waiting):
            return False
        for sequence in blocked:
            self._preempt(sequence)
        return bool(blocked)

    def _enter(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        sequence.slot, sequence.length = self._prefixes.acquire(sequence, self.running)
        sequence.written = sequence.length
        self.reused_tokens += sequence.length
        self.running.append(sequence)
        sequence.times.note("admitted")

    def _preempt(self, sequence: Sequence) -> None:
        """Take the slot from a sequence and queue it.

        Its keys and values are kept until another sequence needs the slot.
        """
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
    # Recorded before the step runs, because a step that fails half-way may have written all of these positions.
    sequence.written = max(sequence.written, past + len(token_ids))
    return ScheduledTokens(sequence.slot, past, token_ids, wanted)

"""Continuous batching: which sequences hold a slot, and what goes into the next step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gpu_workers.kv_pool import KVPool
from gpu_workers.model_runner import Feed
from gpu_workers.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass. `sequences` are those of `decode` (by slot, one token each) and then of `chunks`."""

    decode: list[Feed]
    chunks: list[Feed]
    sequences: list[Sequence]

    @property
    def completed(self) -> list[Sequence]:
        """The sequences whose last token is in this step, in the order of their features."""
        feeds = self.decode + self.chunks
        return [sequence for sequence, feed in zip(self.sequences, feeds, strict=True) if feed.completes]


class Scheduler:
    """Owns the queue, the running list, and each sequence's slot and length.

    First come, first served. Decoding goes first, so that a long prompt never holds up running streams; prompts take
    what is left of the step's token budget, oldest first, in chunks.
    """

    def __init__(self, pool: KVPool, *, step_tokens: int, prefill_chunk: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._pool = pool
        self._step_tokens = step_tokens
        self._prefill_chunk = prefill_chunk

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def admit(self) -> None:
        """Gives free slots to waiting sequences, oldest first.

        At most half of the slots go to sequences whose grammar is not there yet: slow compilations must not keep
        everybody else out.
        """
        if not (self.waiting and self._pool.free_slots):
            return
        without_grammar = sum(sequence.awaits_grammar for sequence in self.running)
        for sequence in list(self.waiting):
            if sequence.awaits_grammar:
                if without_grammar >= max(1, self._pool.slots // 2):
                    continue
                without_grammar += 1
            slot = self._pool.acquire()
            if slot is None:
                return
            self.waiting.remove(sequence)
            sequence.slot = slot
            self.running.append(sequence)

    def plan(self) -> StepPlan:
        runnable = [sequence for sequence in self.running if sequence.runnable]
        decoding = [sequence for sequence in runnable if sequence.pending == 1]
        decoding.sort(key=_slot)
        decode = [_feed(sequence, 1) for sequence in decoding]
        budget = self._step_tokens - len(decode)
        chunks, filling = [], []
        for sequence in runnable:
            tokens = min(sequence.pending, self._prefill_chunk, budget)
            if sequence.pending > 1 and tokens > 0:
                chunks.append(_feed(sequence, tokens))
                filling.append(sequence)
                budget -= tokens
        return StepPlan(decode, chunks, decoding + filling)

    def commit(self, plan: StepPlan) -> None:
        """The step has run: its tokens are in the cache."""
        for sequence, feed in zip(plan.sequences, plan.decode + plan.chunks, strict=True):
            sequence.length += len(feed.token_ids)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, running or waiting, and frees its slot."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        # A step that failed half-way may have written tokens it never committed.
        self._pool.release(sequence.slot, len(sequence.token_ids))
        sequence.slot = None


def _slot(sequence: Sequence) -> int:
    assert sequence.slot is not None
    return sequence.slot


def _feed(sequence: Sequence, tokens: int) -> Feed:
    token_ids = sequence.token_ids[sequence.length : sequence.length + tokens]
    return Feed(_slot(sequence), sequence.length, token_ids, completes=tokens == sequence.pending)

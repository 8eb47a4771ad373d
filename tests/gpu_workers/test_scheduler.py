"""Slots and plans: random lives of random sequences against the scheduler's invariants."""

from __future__ import annotations

import asyncio

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_workers.config import EngineConfig
from gpu_workers.engine.scheduler import Scheduler
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.output import Outbox, OutputStream
from gpu_workers.sequence.drafts import Draft
from gpu_workers.sequence.sequence import Sequence
from tests.gpu_workers.support import byte_vocabulary, request

LENGTH = 64


def make_pool(slots: int) -> KVPool:
    return KVPool(
        layers=1, slots=slots, length=LENGTH, kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu")
    )


def make_sequence(prompt: int, grammar: str | None = None) -> Sequence:
    stream = OutputStream(prompt, Outbox())
    sequence = Sequence(request([1] * prompt, grammar=grammar), [1] * prompt, byte_vocabulary(), LENGTH, stream)
    sequence.settle()
    return sequence


@settings(max_examples=60)
@given(st.data())
def test_random_lives(data: st.DataObject) -> None:
    """Decoding is never held up, budgets hold, nobody loses tokens, a slot has one owner, all come back."""
    slots = data.draw(st.integers(1, 5))
    chunk = data.draw(st.integers(1, 9))
    budget = slots + data.draw(st.integers(1, 9))
    pool = make_pool(slots)
    config = EngineConfig(max_num_seqs=slots, max_num_batched_tokens=budget, long_prefill_token_threshold=chunk)
    scheduler = Scheduler(pool, config)

    async def live() -> None:
        expected: list[Sequence] = []
        for _ in range(data.draw(st.integers(1, 30))):
            for prompt in data.draw(st.lists(st.integers(1, 20), max_size=3)):
                expected.append(make_sequence(prompt))
                scheduler.add(expected[-1])
            scheduler.admit()
            assert len(scheduler.running) == min(len(expected), slots)
            assert scheduler.running == expected[: len(scheduler.running)]  # first come, first served
            assert len({sequence.slot for sequence in scheduler.running}) == len(scheduler.running)
            for sequence in scheduler.running:
                sequence.drafts = [Draft(9, None)] * data.draw(st.integers(0, 12))
            plan = scheduler.plan()
            assert sum(len(part.token_ids) for part in plan.scheduled) <= budget
            assert all(
                len(part.token_ids) - drafts <= chunk for part, drafts in zip(plan.scheduled, plan.drafts, strict=True)
            )
            decoding = {sequence.slot for sequence in scheduler.running if sequence.pending == 1}
            assert decoding <= {part.slot for part in plan.scheduled}
            assert [part.slot for part in plan.decode] == sorted(part.slot for part in plan.decode)
            assert plan.scheduled or not any(sequence.pending for sequence in scheduler.running)
            completed = []
            for sequence, part, drafts in zip(plan.sequences, plan.scheduled, plan.drafts, strict=True):
                assert part.slot == sequence.slot and part.past == sequence.length
                own = len(part.token_ids) - drafts
                assert part.token_ids == sequence.token_ids[sequence.length :][:own] + [9] * drafts
                assert part.wanted == (drafts + 1 if own == sequence.pending else 0)
                assert part.wanted or not drafts
                if part.wanted:
                    completed.append(sequence)
            scheduler.commit(plan)
            assert all(sequence.pending == 0 for sequence in completed)
            for sequence in completed:
                sequence.append(7)
                sequence.settle()
            for sequence in list(expected):
                if sequence.finish_reason or data.draw(st.integers(0, 9)) == 0:
                    scheduler.remove(sequence)
                    expected.remove(sequence)
        for sequence in expected:
            scheduler.remove(sequence)

    asyncio.run(live())
    assert pool.free_slots == slots and not scheduler.running and not scheduler.waiting


def test_the_lowest_slot_is_taken_first_and_comes_back_clean() -> None:
    pool = make_pool(3)
    assert [pool.acquire() for _ in range(4)] == [0, 1, 2, None]
    pool.keys[0][1, :, :5] = torch.nan
    pool.release(1, 5)
    pool.release(0, 0)
    assert not pool.keys[0].any()
    assert [pool.acquire(), pool.acquire()] == [0, 1]


def test_sequences_that_wait_for_grammars_take_half_of_the_slots() -> None:
    async def live() -> list[int]:
        scheduler = Scheduler(make_pool(4), EngineConfig(max_num_seqs=4))
        sequences = [make_sequence(3, grammar) for grammar in ("late", None, "late", "late", None)]
        for sequence in sequences:
            scheduler.add(sequence)
            scheduler.admit()
        # Without its grammar, a draft could not be verified.
        assert [sequence.draft_room > 0 for sequence in sequences] == [False, True, False, False, True]
        return [sequences.index(sequence) for sequence in scheduler.running]

    assert asyncio.run(live()) == [0, 1, 2, 4]

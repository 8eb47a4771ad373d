"""Tenants take turns; the oracle is a simulation by lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar_workers.service.fair_queue import FairQueue, QueueFullError


def drained(queue: FairQueue[int]) -> list[tuple[str, int]]:
    return [queue.get() for _ in range(len(queue))]


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_each_tenant_keeps_its_order_and_waits_one_turn_of_the_others(tenants: list[str]) -> None:
    queue: FairQueue[int] = FairQueue(capacity=100, tenant_capacity=100)
    for number, tenant in enumerate(tenants):
        queue.put(tenant, number)
    taken = drained(queue)
    assert sorted(number for _, number in taken) == list(range(len(tenants)))
    for tenant in set(tenants):
        own = [number for owner, number in taken if owner == tenant]
        assert own == sorted(own)
        places = [place for place, (owner, _) in enumerate(taken) if owner == tenant]
        # Before the k-th item of a tenant, every other one had at most k + 1 turns.
        for turn, place in enumerate(places):
            others = [owner for owner, _ in taken[:place] if owner != tenant]
            assert all(others.count(other) <= turn + 1 for other in set(others))


def test_a_late_single_item_overtakes_a_flood() -> None:
    queue: FairQueue[int] = FairQueue(capacity=2000, tenant_capacity=1000)
    for number in range(1000):
        queue.put("flood", number)
    queue.put("other", 7)
    assert ("other", 7) in [queue.get() for _ in range(2)]


def test_bounds_name_who_is_full() -> None:
    queue: FairQueue[int] = FairQueue(capacity=3, tenant_capacity=2)
    queue.put("a", 1)
    queue.put("a", 2)
    with pytest.raises(QueueFullError, match="of this client"):
        queue.put("a", 3)
    queue.put("b", 4)
    with pytest.raises(QueueFullError, match="3 compilations are waiting"):
        queue.put("c", 5)
    assert len(queue) == 3


def test_what_was_taken_goes_back_in_front() -> None:
    queue: FairQueue[int] = FairQueue(capacity=1, tenant_capacity=1)
    queue.put("a", 1)
    taken = queue.get()
    queue.put("b", 2)
    queue.put_back(*taken)
    assert drained(queue) == [("a", 1), ("b", 2)]
    with pytest.raises(KeyError):
        queue.get()


def test_unwanted_items_are_dropped() -> None:
    queue: FairQueue[int] = FairQueue(capacity=9, tenant_capacity=9)
    for number in range(6):
        queue.put("ab"[number % 2], number)
    queue.keep(lambda number: number % 2 == 1 and number > 1)
    assert drained(queue) == [("b", 3), ("b", 5)]

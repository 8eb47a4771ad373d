"""Threads in which tenants take turns."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from grammar_workers.service import tenant_threads
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.tenant_threads import TenantThreads

pytestmark = pytest.mark.anyio


async def test_one_tenant_leaves_a_thread_to_the_others() -> None:
    threads = TenantThreads("test")
    gate = threading.Event()
    long = [asyncio.create_task(threads.run("a", gate.wait)) for _ in range(20)]
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(threads.run("b", lambda: 7), 60) == 7
        assert not any(task.done() for task in long)
    finally:
        gate.set()
    assert all(await asyncio.gather(*long))


async def test_tenants_take_turns_and_cancelled_calls_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_threads, "_MOST_THREADS", 2)
    # Two calls may run at once, but one thread runs them, so they run in the order in which they were started.
    monkeypatch.setattr(tenant_threads, "ThreadPoolExecutor", lambda most, **_: ThreadPoolExecutor(1))
    threads = TenantThreads("test")
    gate, order = threading.Event(), list[str]()
    first = [asyncio.create_task(threads.run(tenant, gate.wait)) for tenant in "ab"]
    await asyncio.sleep(0)
    calls = [asyncio.create_task(threads.run(name[0], order.append, name)) for name in ("c1", "c2", "c3", "d1")]
    await asyncio.sleep(0)
    calls[1].cancel()
    gate.set()
    await asyncio.gather(*first, *calls, return_exceptions=True)
    assert order == ["c1", "d1", "c3"]


async def test_what_a_call_raises_is_raised_and_the_next_ones_run() -> None:
    threads = TenantThreads("test")
    with pytest.raises(ZeroDivisionError):
        await threads.run("a", lambda: 1 // 0)
    assert await threads.run("a", lambda: 1) == 1


async def test_the_calls_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_threads, "_MOST_WAITING_OF_ONE", 2)
    threads = TenantThreads("test")
    gate = threading.Event()
    calls = [asyncio.create_task(threads.run("a", gate.wait)) for _ in range(20)]
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert any(isinstance(result, QueueFullError) for result in results)
    assert any(result is True for result in results)

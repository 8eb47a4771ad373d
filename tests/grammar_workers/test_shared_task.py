"""Work in flight that several callers wait for."""

from __future__ import annotations

import asyncio
import gc

import pytest

from grammar_workers.shared_task import SharedTask

pytestmark = pytest.mark.anyio


async def test_everybody_gets_the_result_and_one_who_leaves_takes_it_from_nobody() -> None:
    go = asyncio.Event()
    shared: SharedTask[int] = SharedTask()

    async def work() -> int:
        await go.wait()
        return shared.waiters

    shared.start(work())
    callers = [asyncio.create_task(shared.result()) for _ in range(3)]
    await asyncio.sleep(0)
    assert shared.waiters == 3
    callers[0].cancel()
    await asyncio.wait(callers[:1])
    assert callers[0].cancelled()
    go.set()
    assert await asyncio.gather(*callers[1:]) == [2, 2]
    assert await shared.result() == 2 and shared.waiters == 0


async def test_a_failure_is_everybodys_and_nobody_has_to_hear_of_it() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def work() -> int:
        raise ValueError

    shared: SharedTask[int] = SharedTask()
    shared.start(work())
    for answer in await asyncio.gather(shared.result(), shared.result(), return_exceptions=True):
        assert isinstance(answer, ValueError)
    alone: SharedTask[int] = SharedTask()
    alone.start(work())
    await asyncio.sleep(0.01)
    del shared, alone, answer
    gc.collect()
    assert reported == []


async def test_cancelling() -> None:
    shared: SharedTask[None] = SharedTask()
    shared.start(asyncio.sleep(60))
    caller = asyncio.create_task(shared.result())
    await asyncio.sleep(0)
    shared.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert shared.waiters == 0

"""Work in flight that several callers wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SharedTask(Generic[Result]):
    """A task that everybody awaits who wants its result meanwhile. For one event loop.

    A caller that is cancelled leaves the task to the others. Whether a task without `waiters` goes on is for its owner
    to say.
    """

    def __init__(self) -> None:
        self.waiters = 0
        """Who awaits `result` now."""
        self._task: asyncio.Task[Result] | None = None

    def start(self, work: Coroutine[Any, Any, Result]) -> None:
        """Once, before anybody awaits `result`; `work` may look at `waiters`."""
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(_retrieve_exception)

    async def result(self) -> Result:
        """What the work returns or raises."""
        assert self._task is not None
        self.waiters += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self.waiters -= 1

    def cancel(self) -> None:
        """End the work, where it has not ended."""
        assert self._task is not None
        self._task.cancel()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting the failure of a task whose last waiter has left."""
    if not task.cancelled():
        task.exception()

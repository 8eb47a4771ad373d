"""Asynchronous task that several callers await, such as one compilation for several requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SharedTask(Generic[Result]):
    """Asynchronous task that several callers await. All callers must use the same event loop.

    Call `start` once. Then each caller awaits `result`. If a caller is canceled, the task continues. To stop the task,
    call `cancel`, for example when `waiters` is 0.

    Attributes:
        waiters: Number of callers that await `result` now.
    """

    def __init__(self) -> None:
        # Number of callers that await `result` now.
        self.waiters = 0
        self._task: asyncio.Task[Result] | None = None

    def start(self, work: Coroutine[Any, Any, Result]) -> None:
        """Start the task. Call this method once, before the first call of `result`.

        Args:
            work: Coroutine that the task runs.
        """
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(_retrieve_exception)

    async def result(self) -> Result:
        """Wait for the task. Return its value, or raise its exception.

        If this call is canceled, the task continues. If the task is canceled, asyncio.CancelledError is raised.

        Returns:
            The return value of the task.
        """
        assert self._task is not None
        self.waiters += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self.waiters -= 1

    def cancel(self) -> None:
        """Cancel the task for all callers. If the task has ended already, this has no effect."""
        assert self._task is not None
        self._task.cancel()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Prevent asyncio from reporting the failure of a task whose waiters were all canceled."""
    if not task.cancelled():
        task.exception()

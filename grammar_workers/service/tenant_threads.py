"""A few threads in which tenants take turns, for work of a request that would hold up an event loop."""

from __future__ import annotations

import asyncio
import functools
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from grammar_workers.service.fair_queue import FairQueue
from grammar_workers.service.memory_guard import GUARD

_Result = TypeVar("_Result")
_MOST_THREADS = 4
_MOST_WAITING, _MOST_WAITING_OF_ONE = 4096, 1024


class TenantThreads:
    """Runs functions in threads of its own. Used by one event loop.

    One tenant has all threads but one at most, so that its long calls leave one to the others. `may_end`: the memory
    guard may end a call at any place.
    """

    def __init__(self, name: str, *, may_end: bool = False) -> None:
        self._may_end = may_end
        self._name = name
        self._most = min(_MOST_THREADS, max(2, os.cpu_count() or 1))
        self._threads = ThreadPoolExecutor(self._most, thread_name_prefix=name)
        self._waiting: FairQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = FairQueue(
            _MOST_WAITING, _MOST_WAITING_OF_ONE
        )
        self._running: Counter[str] = Counter()

    async def run(self, tenant: str, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what `function` returns. Raises QueueFullError, and what `function` raises."""
        result: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.put(tenant, (result, function, arguments))
        self._begin()
        return await result

    def _begin(self) -> None:
        """Give waiting calls to threads, as many as may run."""
        loop = asyncio.get_running_loop()
        while self._running.total() < self._most:
            try:
                tenant, (result, function, arguments) = self._waiting.get(self._may_run)
            except KeyError:
                return
            if result.done():  # cancelled
                continue
            self._running[tenant] += 1
            if self._may_end:
                function = functools.partial(GUARD.call, f"{self._name} for tenant {tenant}", function)
            running = loop.run_in_executor(self._threads, function, *arguments)
            running.add_done_callback(functools.partial(self._end, tenant, result))

    def _may_run(self, tenant: str) -> bool:
        return self._running[tenant] < self._most - 1

    def _end(self, tenant: str, result: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        self._running -= Counter((tenant,))  # zeros are dropped: names of tenants may be the clients' choice
        error = done.exception()
        if not result.done():
            if error is None:
                result.set_result(done.result())
            else:
                result.set_exception(error)
        self._begin()

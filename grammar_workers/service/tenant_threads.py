"""Thread pool that serves tenants in rotation. It runs calls that would block an event loop."""

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
    """Thread pool that serves tenants in rotation (fair queueing). All calls must come from the same event loop.

    There are 2 to 4 threads. Calls of one tenant never use all of them, so other tenants need not wait for long calls.

    Args:
        name: Prefix of the names of the threads, and of the names of calls in the log.
        may_end: True: the memory guard may raise MemoryError in a call (see `MemoryGuard.call`). False: it may not.
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
        """Run a function in a thread of the pool. Return its value, or raise its exception.

        QueueFullError is raised if too many calls wait, of this tenant or in total. If the caller is canceled, a
        waiting call is dropped, and a running call continues.

        Args:
            tenant: Tenant of the request.
            function: Function to call.
            arguments: Positional arguments of the function.

        Returns:
            The value that the function returns.
        """
        result: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.put(tenant, (result, function, arguments))
        self._begin()
        return await result

    def _begin(self) -> None:
        """Start as many waiting calls as may run."""
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

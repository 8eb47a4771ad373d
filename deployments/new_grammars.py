"""How many grammars that a router has not seen ready one tenant may bring at a time.

A new grammar costs every tier: it is compiled, sent, loaded, and its first mask rows are made. One tenant's thousands
would take the CPUs of everybody, though each queue on the way is fair. They wait here, where waiting costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

from ray.util.metrics import Histogram

from deployments.errors import ApiError
from grammar_workers.lru import LeastRecentlyUsed

LONGEST_TURN_S = 1.0
"""After it the next may go: a grammar that takes long holds nobody up."""

MOST_WAITING = 1024
"""Of one tenant, in one router."""

PAUSE = 3.0
"""After a turn while others are active, in lengths of the turn."""

ACTIVE_S = 5.0
"""So long after its last request with a grammar a tenant counts as active."""


@dataclasses.dataclass
class _Line:
    """One tenant's: `users` have a turn or wait for one, first come, first served."""

    turns: asyncio.Semaphore
    users: int = 0
    waiting: int = 0


class NewGrammars:
    """Gives each tenant `at_once` turns. Lives in one event loop.

    While others are active, each turn is followed by a pause of `PAUSE` times its length: the more a tenant's grammars
    hold up the server, the more slowly they come, and most of the time belongs to others.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._known: LeastRecentlyUsed[bool] = LeastRecentlyUsed(0, lambda _: 0)
        self._under_way: set[str] = set()
        self._lines: dict[str, _Line] = {}
        self._waits = Histogram(
            "turnstile_new_grammar_wait_seconds",
            "Seconds a request with a new grammar waited for its tenant's turn.",
            boundaries=[0.01, 0.1, 1.0, 10.0, 100.0],
        )
        self._active: LeastRecentlyUsed[bool] = LeastRecentlyUsed(0, lambda _: 0, time_to_live_s=ACTIVE_S)

    def learn(self, key: str) -> None:
        """This grammar is ready: it needs no turn any more."""
        self._known.put(key, True)

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str, key: str, timeout_s: float | None) -> AsyncIterator[None]:
        """A turn for a grammar, until the block ends or for `LONGEST_TURN_S`; none is needed for one that is known or
        under way. Raises `ApiError`: 429 where too many wait, 408 after `timeout_s`.
        """
        self._active.put(tenant, True)
        if key in self._known or key in self._under_way:
            yield
            return
        line = self._lines.setdefault(tenant, _Line(asyncio.Semaphore(self._at_once)))
        line.users += 1
        try:
            loop = asyncio.get_running_loop()
            came = loop.time()
            await _wait(line, timeout_s)
            began = loop.time()
            self._waits.observe(began - came)
            self._under_way.add(key)
            over = contextlib.ExitStack()
            over.callback(line.turns.release)
            timer = loop.call_later(LONGEST_TURN_S, over.close)
            try:
                yield
            finally:
                self._under_way.discard(key)
                timer.cancel()
                pause = PAUSE * (loop.time() - began) if len(self._active) > (tenant in self._active) else 0.0
                loop.call_later(pause, over.close)  # which does nothing the second time
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[tenant]


async def _wait(line: _Line, timeout_s: float | None) -> None:
    if line.waiting >= MOST_WAITING:
        raise ApiError.full(f"{MOST_WAITING} new grammars of this tenant are waiting")
    line.waiting += 1
    try:
        async with asyncio.timeout(timeout_s):
            await line.turns.acquire()
    except TimeoutError as error:
        message = f"the output was not complete within {timeout_s:g} s"
        raise ApiError(408, message, param="timeout_s", code="deadline_exceeded") from error
    finally:
        line.waiting -= 1

"""How many grammars that a router has not seen ready one tenant may bring at a time.

A new grammar costs every tier: it is compiled, sent, loaded, and its first mask rows are made. One tenant's thousands
would take the CPUs of everybody, though each queue on the way is fair. They wait here, where waiting costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

from cachetools import TTLCache
from ray.util.metrics import Histogram

from deployments.http.errors import ApiError
from deployments.http.limits import counted

LONGEST_TURN_S = 1.0
"""After it the next may go: a grammar that takes long holds nobody up."""

MOST_WAITING = 1024
"""Of one tenant, in one router."""

PAUSE, LONGEST_PAUSE = 4.0, 15.0
"""Of a long line after a turn while others are active, in lengths of the turn: at least, and while others wait for a
first token."""

LONG_LINE = 8
"""With more waiting, a tenant's grammars get what time the others leave."""

ACTIVE_S = 5.0
"""So long after its last request has been answered to its end a tenant counts as active."""

KNOWN_S = 3600.0
"""So long after it was ready last a grammar needs no turn."""

REMEMBERED_BYTES = 16 << 20
"""Of what compilers have said about known grammars. A longer answer than a sixteenth of it is not remembered."""
_ENTRY_BYTES = 512
"""Bytes that an entry takes in addition to the answer."""

MOST_REMEMBERED = 16_384
"""Active tenants, and pairs of a known grammar and a tenant."""


def _size(answer: bytes) -> int:
    return len(answer) + _ENTRY_BYTES


class _Line:
    """One tenant's: `users` have a turn or wait for one, first come, first served."""

    def __init__(self, at_once: int) -> None:
        self.turns = asyncio.Semaphore(at_once)
        self.among_others = asyncio.Semaphore((at_once + 1) // 2)
        self.users = 0
        self.waiting = 0

    @property
    def is_long(self) -> bool:
        return self.waiting > LONG_LINE


class _Turn:
    """Has `over` called when it ends, at the latest after `LONGEST_TURN_S`."""

    def __init__(self, tenant: str, line: _Line, over: contextlib.ExitStack) -> None:
        loop = asyncio.get_running_loop()
        self.tenant = tenant
        self.line = line
        self.over = over
        self.began = loop.time()
        self.timer = loop.call_later(LONGEST_TURN_S, over.close)


class NewGrammars:
    """Gives each tenant `at_once` turns, half of them while others are active. Lives in one event loop.

    Where a tenant has a long line then, each of its turns is followed by a pause, which lasts until nobody else waits
    for a first token: its grammars are for the time that is left. But a pause has an end, `LONGEST_PAUSE` times the
    turn: somebody else always waits where many are served.
    """

    def __init__(self, at_once: int, routers: int = 1) -> None:
        self._at_once = at_once
        self._routers = routers
        self._known: TTLCache[str, bytes] = TTLCache(REMEMBERED_BYTES, KNOWN_S, getsizeof=_size)
        self._told: TTLCache[tuple[str, str], bool] = TTLCache(MOST_REMEMBERED, KNOWN_S)
        self._under_way: dict[str, _Turn] = {}
        self._lines: dict[str, _Line] = {}
        self._waits = Histogram(
            "turnstile_new_grammar_wait_seconds",
            "Seconds a request with a new grammar waited for its tenant's turn.",
            boundaries=[0.01, 0.1, 1.0, 10.0, 100.0],
        )
        self._served: Counter[str] = Counter()  # generations that have not ended, by tenant
        self._active: TTLCache[str, bool] = TTLCache(MOST_REMEMBERED, ACTIVE_S)
        self._awaiting: Counter[str] = Counter()  # a first token, by tenant
        self._arrived = asyncio.Event()
        self._pauses: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Number of new grammars, of all tenants, that wait for a turn."""
        return sum(line.waiting for line in self._lines.values())

    def known(self, key: str, tenant: str | None = None) -> dict[str, Any] | None:
        """Return the compiler's last answer about this ready grammar; None if it never told `tenant` so."""
        told = self._known.get(key) if tenant is None or (key, tenant) in self._told else None
        return None if told is None else json.loads(told)

    def forget(self, key: str) -> None:
        """This grammar may not be ready any more."""
        self._known.pop(key, None)

    def learn(self, key: str, answer: dict[str, Any], tenant: str) -> None:
        """This grammar is ready, a compiler tells `tenant`: it needs no turn any more, and one that it has ends."""
        self._told[key, tenant] = True
        told = json.dumps(answer).encode()
        if _size(told) <= REMEMBERED_BYTES // 16:
            self._known[key] = told
        if (turn := self._under_way.get(key)) is not None:
            self._end(turn)

    @contextlib.contextmanager
    def served(self, tenant: str) -> Iterator[None]:
        """The tenant is active while something is generated for it, however long ago it asked."""
        with counted(self._served, tenant):
            try:
                yield
            finally:
                self._active[tenant] = True

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str, key: str | None, at_once: int | None = None) -> AsyncIterator[None]:
        """A turn for a grammar, until it is ready (`learn`), but not beyond the block, which ends with the first token,
        nor `LONGEST_TURN_S`; none is needed for one that is known or under way, or where there is none (None). Raises
        `ApiError` 429 where too many wait.

        `at_once`: the tenant's own limit, of all routers together, where it is smaller than the general one.
        """
        self._active[tenant] = True
        if key is None or key in self._known or key in self._under_way:
            with self._awaiting_token(tenant):
                yield
            return
        most = self._at_once if at_once is None else min(self._at_once, max(1, at_once // self._routers))
        line = self._lines.setdefault(tenant, _Line(most))
        line.users += 1
        try:
            came = asyncio.get_running_loop().time()
            turn = _Turn(tenant, line, await self._wait(line, tenant))
            self._waits.observe(turn.began - came)
            if key in self._known or self._under_way.setdefault(key, turn) is not turn:
                self._end(turn)  # another request has brought the same grammar in the meantime
            try:
                with self._awaiting_token(tenant):
                    yield
            finally:
                if self._under_way.get(key) is turn:
                    del self._under_way[key]
                self._end(turn)
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[tenant]

    async def _wait(self, line: _Line, tenant: str) -> contextlib.ExitStack:
        """What ends the turn that this waits for."""
        if line.waiting >= MOST_WAITING:
            raise ApiError.full(f"{MOST_WAITING} new grammars of this tenant are waiting")
        line.waiting += 1
        try:
            with contextlib.ExitStack() as over:
                await line.turns.acquire()
                over.callback(line.turns.release)
                if self._others_are_active(tenant):
                    await line.among_others.acquire()
                    over.callback(line.among_others.release)
                return over.pop_all()
        finally:
            line.waiting -= 1

    def _others_are_active(self, tenant: str) -> bool:
        return any(len(active) > (tenant in active) for active in (self._served, self._active))

    @contextlib.contextmanager
    def _awaiting_token(self, tenant: str) -> Iterator[None]:
        try:
            with counted(self._awaiting, tenant):
                yield
        finally:
            if tenant not in self._awaiting:
                self._arrived.set()
                self._arrived = asyncio.Event()

    def _end(self, turn: _Turn) -> None:
        """Ends a turn, after a pause where its line is long. Does nothing the second time."""
        if turn.timer.cancelled():
            return
        turn.timer.cancel()
        if turn.line.is_long and self._others_are_active(turn.tenant):
            turn_s = asyncio.get_running_loop().time() - turn.began
            task = asyncio.create_task(self._pause(turn, turn_s))
            self._pauses.add(task)
            task.add_done_callback(self._pauses.discard)
        else:
            turn.over.close()

    async def _pause(self, turn: _Turn, turn_s: float) -> None:
        with turn.over, contextlib.suppress(TimeoutError):
            await asyncio.sleep(PAUSE * turn_s)
            async with asyncio.timeout((LONGEST_PAUSE - PAUSE) * turn_s):
                while turn.line.is_long and self._awaiting.keys() - {turn.tenant}:
                    await self._arrived.wait()

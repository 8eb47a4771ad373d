"""Admission of uncached grammars: limits how many uncached grammars of one tenant are in progress at a time.

A grammar (compiled constraint) is *uncached* if no compiler has reported it as ready to this router in the last hour.
An uncached grammar costs CPU time in every deployment: it is compiled, sent and loaded, and its first masks are
computed. Without a limit, one tenant with thousands of uncached grammars could take the CPUs from all other tenants. So
uncached grammars wait in the router, where waiting costs no CPU time.

An *admission* (method `turn`) is the permission to compile one grammar. It ends when the grammar is ready or the first
token has arrived, and after `LONGEST_TURN_S` at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from cachetools import TTLCache
from ray.util.metrics import Histogram

from deployments.http.errors import ApiError
from deployments.http.limits import counted

# Maximum duration of an admission in seconds. Then the next grammar of the tenant is admitted, so that a slow
# compilation does not delay it.
LONGEST_TURN_S = 1.0

# Maximum number of waiting grammars per tenant, in one router.
MOST_WAITING = 1024

# Expected wait in seconds above which a grammar is rejected while other tenants are active. So the client learns at
# once when to try again.
LONGEST_WAIT_S = 10.0
# Maximum value of the header `Retry-After` of such a rejection, in seconds. OpenAI's clients ignore larger values.
LONGEST_RETRY_S = 60.0
# Number of the latest admissions from which the wait is estimated, and seconds for which the estimate is kept.
_LATEST = 32
_PACE_S = 60.0

# Pause after an admission of a tenant with a long queue while other tenants are active, as multiples of the duration
# of the admission. The pause lasts at least `PAUSE`, and at most `LONGEST_PAUSE` while another tenant waits for a first
# token.
PAUSE, LONGEST_PAUSE = 1.0, 4.0

# Number of waiting grammars above which the queue of a tenant is long. Grammars of a long queue get only the time that
# other tenants leave.
LONG_LINE = 8

# Seconds for which a tenant counts as active after its last request has arrived, or has been answered completely.
ACTIVE_S = 5.0

# Seconds for which a grammar needs no admission after a compiler has last reported it as ready.
KNOWN_S = 3600.0

# Maximum size in bytes of the cached responses of compilers about ready grammars. A response that is larger than a
# sixteenth of this size is not cached.
REMEMBERED_BYTES = 16 << 20
# Bytes of a cache entry in addition to the response.
_ENTRY_BYTES = 512

# Maximum number of active tenants, and of cached pairs of grammar and tenant.
MOST_REMEMBERED = 16_384


def _size(answer: bytes) -> int:
    return len(answer) + _ENTRY_BYTES


class _Pace:
    """Pace of a tenant's admissions, from which the wait of its next grammar is estimated. It outlives the queue."""

    def __init__(self) -> None:
        # Seconds between two admissions, if a grammar waited for all of this time.
        self._intervals: deque[float] = deque(maxlen=_LATEST)
        self._admitted = -math.inf  # time of the last admission
        self._among_others = False
        self._promised = 0.0  # time until which `Retry-After` of earlier rejections reaches

    def admitted(self, came: float, now: float, among_others: bool) -> None:
        """Record an admission.

        Args:
            came: Time at which the grammar began to wait.
            now: Present time.
            among_others: Whether other tenants are active, so that admissions are fewer.
        """
        if among_others != self._among_others:
            self._intervals.clear()
        elif came <= self._admitted:
            self._intervals.append(now - self._admitted)
        self._admitted, self._among_others = now, among_others

    def wait_s(self, waiting: int, among_others: bool) -> float:
        """Return the expected wait in seconds behind `waiting` grammars; 0 as long as it is unknown."""
        # A tenant that is alone now is admitted faster than it was among others.
        if not self._intervals or (self._among_others and not among_others):
            return 0.0
        return waiting * sum(self._intervals) / len(self._intervals)

    def retry_after_s(self, wait_s: float, now: float) -> float:
        """Return the seconds after which a rejected request may come again. Each rejected request gets a later time."""
        interval_s = self.wait_s(1, self._among_others)
        self._promised = min(max(now + wait_s, self._promised + interval_s), now + LONGEST_RETRY_S)
        return self._promised - now


class _Line:
    """Queue of one tenant, first come, first served.

    Attributes:
        users: Number of requests that are admitted or waiting.
        waiting: Waiting grammars: grammar key -> number of requests.
    """

    def __init__(self, at_once: int) -> None:
        self.turns = asyncio.Semaphore(at_once)
        self.among_others = asyncio.Semaphore((at_once + 1) // 2)
        self.users = 0
        self.waiting: Counter[str] = Counter()

    @property
    def is_long(self) -> bool:
        return self.waiting.total() > LONG_LINE


class _Turn:
    """One admission. `over` is closed when it ends, at the latest after `LONGEST_TURN_S`."""

    def __init__(self, tenant: str, line: _Line, over: contextlib.ExitStack) -> None:
        loop = asyncio.get_running_loop()
        self.tenant = tenant
        self.line = line
        self.over = over
        self.began = loop.time()
        self.timer = loop.call_later(LONGEST_TURN_S, over.close)


class NewGrammars:
    """Admission control for uncached grammars, and cache of the compilers' responses about ready grammars.

    A grammar is a compiled constraint. It is *uncached* if no compiler has reported it as ready to this router in the
    last hour. An *admission* is the permission to compile one grammar. A tenant (client) may have `at_once` admissions
    at a time. While other tenants are active, the tenant may have only half as many (rounded up).

    While other tenants are active, a tenant with more than 8 waiting grammars (`LONG_LINE`) pauses after each
    admission. The pause lasts as long as the admission (`PAUSE`). If another tenant then waits for a first token, the
    pause is extended to at most 4 times the admission (`LONGEST_PAUSE`). An object must be used in one event loop only.

    Args:
        at_once: Maximum number of admissions of a tenant at a time, in this router.
        routers: Number of router replicas. A tenant's own limit (`at_once` of `turn`) is divided by this number.
    """

    def __init__(self, at_once: int, routers: int = 1) -> None:
        self._at_once = at_once
        self._routers = routers
        self._known: TTLCache[str, bytes] = TTLCache(REMEMBERED_BYTES, KNOWN_S, getsizeof=_size)
        self._told: TTLCache[tuple[str, str], bool] = TTLCache(MOST_REMEMBERED, KNOWN_S)
        self._under_way: dict[str, _Turn] = {}
        self._lines: dict[str, _Line] = {}
        self._paces: TTLCache[str, _Pace] = TTLCache(MOST_REMEMBERED, _PACE_S)
        boundaries = [0.01, 0.1, 1.0, 10.0, 100.0]
        self._waits = (
            Histogram(
                "turnstile_uncached_grammar_wait_seconds",
                "Seconds that a request with an uncached grammar waited for the admission of its tenant.",
                boundaries=boundaries,
            ),
            Histogram(
                "turnstile_new_grammar_wait_seconds",
                "Deprecated name of `turnstile_uncached_grammar_wait_seconds`.",
                boundaries=boundaries,
            ),
        )
        self._served: Counter[str] = Counter()  # generations that have not ended, by tenant
        self._active: TTLCache[str, bool] = TTLCache(MOST_REMEMBERED, ACTIVE_S)
        self._awaiting: Counter[str] = Counter()  # requests that wait for a first token, by tenant
        self._arrived = asyncio.Event()
        self._pauses: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Number of uncached grammars of all tenants that wait for an admission (permission to compile)."""
        return sum(line.waiting.total() for line in self._lines.values())

    def known(self, key: str, tenant: str | None = None) -> dict[str, Any] | None:
        """Return a compiler's last response about a ready grammar (compiled constraint), from the cache.

        Args:
            key: Grammar key.
            tenant: Name of a tenant (client). The response is returned only if a compiler has reported the grammar as
                ready to this tenant in the last hour. None: a report to any tenant is enough.

        Returns:
            A copy of the response (see `GrammarCompiler.compile`). None: the cache has no such response.
        """
        told = self._known.get(key) if tenant is None or (key, tenant) in self._told else None
        return None if told is None else json.loads(told)

    def forget(self, key: str) -> None:
        """Remove the compiler's response about a grammar from the cache, because the grammar may no longer be ready.

        Args:
            key: Grammar key. A key that is not in the cache has no effect.
        """
        self._known.pop(key, None)

    def learn(self, key: str, answer: dict[str, Any], tenant: str) -> None:
        """Cache a compiler's response about a ready grammar, and end the grammar's admission (permission to compile).

        Args:
            key: Grammar key.
            answer: Response of `GrammarCompiler.compile` with the status `ready`, as JSON data. A response of more than
                1 MiB is not cached.
            tenant: Name of the tenant to which the response was sent.
        """
        self._told[key, tenant] = True
        told = json.dumps(answer).encode()
        if _size(told) <= REMEMBERED_BYTES // 16:
            self._known[key] = told
        if (turn := self._under_way.get(key)) is not None:
            self._end(turn)

    @contextlib.contextmanager
    def served(self, tenant: str) -> Iterator[None]:
        """Return a context in which a tenant (client) counts as active. Run a generation of the tenant in this context.

        The tenant also counts as active for 5 seconds (`ACTIVE_S`) after the block. While a tenant is active, every
        other tenant may compile only half as many uncached grammars (constraints) at a time.

        Args:
            tenant: Name of the tenant.
        """
        with counted(self._served, tenant):
            try:
                yield
            finally:
                self._active[tenant] = True

    @contextlib.asynccontextmanager
    async def turn(
        self, tenant: str, key: str | None, at_once: int | None = None, left_s: float | None = None
    ) -> AsyncIterator[None]:
        """Return a context that waits for an admission (permission to compile a grammar), and holds it in its block.

        The caller ends the block when the first token of the response has arrived. The admission ends earlier if the
        grammar becomes ready (`learn`), or after one second (`LONGEST_TURN_S`). The block starts without an admission
        if the request has no grammar, if the grammar is cached, or if another request has an admission for the grammar.

        `ApiError` 429 is raised at once if 1024 grammars (`MOST_WAITING`) of the tenant already wait in this router, or
        if the grammar would wait too long: longer than `left_s`, or, while other tenants are active, longer than 10
        seconds (`LONGEST_WAIT_S`). The wait is estimated from the tenant's admissions in the last minute. If there were
        none, or if the grammar is already waiting for another request, the grammar is not rejected for its wait.

        Args:
            tenant: Name of the tenant (client).
            key: Grammar key. None: the request has no grammar (constraint).
            at_once: The tenant's own limit on admissions at a time, in all routers together. This router enforces the
                limit divided by the number of routers, at least 1, in addition to the limit of the constructor. None:
                only the limit of the constructor applies.
            left_s: Seconds until the request's deadline. None: no deadline.
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
            pace = self._paces.setdefault(tenant, _Pace())
            self._check_wait(line, pace, key, tenant, left_s)
            turn = _Turn(tenant, line, await self._wait(line, tenant, key))
            self._paces[tenant] = pace  # kept for another minute
            for histogram in self._waits:
                histogram.observe(turn.began - came)
            if key in self._known or self._under_way.setdefault(key, turn) is not turn:
                self._end(turn)  # another request has brought the same grammar in the meantime
            else:
                pace.admitted(came, turn.began, self._others_are_active(tenant))
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

    def _check_wait(self, line: _Line, pace: _Pace, key: str, tenant: str, left_s: float | None) -> None:
        """Raise `ApiError` 429 if the queue of the tenant is full, or if a grammar would wait too long in it."""
        now, among_others = asyncio.get_running_loop().time(), self._others_are_active(tenant)
        longest_s = math.inf if left_s is None else left_s
        if among_others:
            longest_s = min(longest_s, LONGEST_WAIT_S)
        wait_s = pace.wait_s(len(line.waiting), among_others)
        is_late = wait_s > longest_s and key not in line.waiting
        if is_late or line.waiting.total() >= MOST_WAITING:
            what = f"{len(line.waiting)} new grammars of this tenant are waiting already"
            raise ApiError.full(what, retry_after_s=pace.retry_after_s(wait_s, now))

    async def _wait(self, line: _Line, tenant: str, key: str) -> contextlib.ExitStack:
        """Wait for the admission. Return the stack whose closing ends it."""
        with counted(line.waiting, key), contextlib.ExitStack() as over:
            await line.turns.acquire()
            over.callback(line.turns.release)
            if self._others_are_active(tenant):
                await line.among_others.acquire()
                over.callback(line.among_others.release)
            return over.pop_all()

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
        """End an admission, after a pause if the queue is long. The second call has no effect."""
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

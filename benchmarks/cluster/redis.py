"""One Redis: a core and a link that calls queue for, and processes that leave it alone while it fails."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from benchmarks.cluster.events import Process, Simulation
from benchmarks.cluster.measured import Measured
from grammar_workers.artifacts.store import GrammarStore
from grammar_workers.artifacts.store.circuit_breaker import CircuitBreaker
from grammar_workers.artifacts.store.locks import LEASE_S
from grammar_workers.artifacts.store.redis_client import CONNECT_TIMEOUT_S, SLOW_S, SOCKET_TIMEOUT_S

ROUND_TRIP_S = 0.0005
"""Of a network inside one data centre, kernel and client included."""
LINK_BYTES_S = 1.25e9
"""10 Gbit/s."""


class Client:
    """What one process knows about Redis: the store's own breaker, and how patient it is."""

    def __init__(self, simulation: Simulation) -> None:
        self.breaker = CircuitBreaker(clock=simulation.clock)
        self.patience_s = SLOW_S
        client: Any = self  # the store sets `patience_s` of it
        self._store = GrammarStore((), (), redis_client=client)

    def found_elsewhere(self, seconds: float) -> None:
        self._store.found_elsewhere(seconds)


class RedisServer:
    """Values by key (their sizes), locks by key, and how busy it has been."""

    def __init__(self, simulation: Simulation, measured: Measured) -> None:
        self.values: dict[str, int] = {}
        self.locks: dict[str, tuple[str, float]] = {}
        self.is_down = False
        self.calls = 0
        self.sent = 0
        self.busy_s = 0.0
        self.failures = 0
        self.calls_by_second: Counter[int] = Counter()
        self.bytes_by_second: Counter[int] = Counter()
        self._simulation = simulation
        self._measured = measured
        self._core_free = self._link_free = 0.0

    def get(self, client: Client, key: str) -> Process:
        """The size of a value; 0 where there is none, None where Redis cannot be asked."""
        size = self.values.get(key, 0)
        answered = yield from self._call(client, size)
        return size if answered else None

    def put(self, client: Client, key: str, size: int) -> Process:
        if (yield from self._call(client, size)):
            self.values[key] = size

    def acquire(self, client: Client, key: str, owner: str) -> Process:
        """Whether the lock is the owner's now; None where Redis cannot be asked."""
        if not (yield from self._call(client, 0)):
            return None
        holder, until = self.locks.get(key, ("", 0.0))
        if holder and until > self._simulation.now:
            return False
        self.locks[key] = owner, math.inf
        return True

    def release(self, client: Client, key: str, owner: str) -> Process:
        if (yield from self._call(client, 0)) and self.locks.get(key, ("", 0.0))[0] == owner:
            del self.locks[key]

    def abandon(self, owner: str) -> None:
        """The owner of locks has died, and renews them no more."""
        until = self._simulation.now + LEASE_S
        self.locks.update({key: (owner, until) for key, (holder, _) in self.locks.items() if holder == owner})

    def _call(self, client: Client, size: int) -> Process:
        """Whether there was an answer."""
        if not client.breaker.allows():
            return False
        now = self._simulation.now
        if self.is_down:
            self.failures += 1
            yield CONNECT_TIMEOUT_S
            client.breaker.failed()
            return False
        took = self._measured.redis_call_s + size * self._measured.redis_byte_s
        self.calls += 1
        self.sent += size
        self.busy_s += took
        self.calls_by_second[int(now)] += 1
        self.bytes_by_second[int(now)] += size
        self._core_free = max(now, self._core_free) + took
        self._link_free = max(self._link_free, self._core_free) + size / LINK_BYTES_S
        seconds = self._link_free + ROUND_TRIP_S - now
        yield min(seconds, SOCKET_TIMEOUT_S)
        if seconds > client.patience_s:
            self.failures += 1
            client.breaker.failed()
        else:
            client.breaker.succeeded()
        return seconds <= SOCKET_TIMEOUT_S

"""A compiler replica: one event loop for calls, a memory, the node's files, and a pool of compile processes.

Follows `grammar_workers.service.service`, whose parts it uses where they need neither processes nor sockets: lanes, the
memory's bounds, the intervals and the leases.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

from benchmarks.cluster.events import Process, Signal, Simulation
from benchmarks.cluster.measured import Grammar, Measured
from benchmarks.cluster.redis import Client, RedisServer
from grammar_workers.artifacts.store.single_flight import POLL_S
from grammar_workers.artifacts.store.store import MEMORY_CAPACITY_BYTES
from grammar_workers.lru import LeastRecentlyUsed
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.lanes import Lanes, Run
from grammar_workers.service.pool import SLICE_S

FILE_S = 0.0001
LOOK_S = 0.05
QUEUE, TENANT_QUEUE = 4096, 1024
"""As those of `CompilePool`."""


@dataclasses.dataclass(eq=False, slots=True)
class _Job:
    key: str
    done: Signal
    tenant: str = ""


class Compiler:
    """`files`: the keys that the node has; `processes` compilations run at a time, each on a core of its own."""

    def __init__(
        self,
        simulation: Simulation,
        measured: Measured,
        redis: RedisServer,
        grammar_of: Callable[[str], Grammar],
        name: str,
        files: set[str],
        processes: int,
    ) -> None:
        self.name = name
        self.client = Client(simulation)
        self.memory: LeastRecentlyUsed[int] = LeastRecentlyUsed(
            MEMORY_CAPACITY_BYTES, lambda size: size, clock=simulation.clock
        )
        self.is_dead = False
        self.productions: dict[str, Signal] = {}
        self.sources: Counter[str] = Counter()
        self.compiled: list[str] = []
        self.calls = 0
        self.loop_busy_s = self.compile_busy_s = 0.0
        self.lock_waits = self.refused = self.most_waiters = 0
        self._waiters: Counter[str] = Counter()
        self._simulation = simulation
        self._measured = measured
        self._redis = redis
        self._grammar_of = grammar_of
        self._files = files
        self._lanes: Lanes[_Job] = Lanes(processes, QUEUE, TENANT_QUEUE)
        self._loop_free = 0.0

    def answers_after(self) -> float:
        """Seconds from now until the event loop has come to a call that arrives now."""
        self.calls += 1
        self.loop_busy_s += self._measured.lookup_s
        self._loop_free = max(self._loop_free, self._simulation.now) + self._measured.lookup_s
        return self._loop_free - self._simulation.now

    def production(self, key: str) -> Signal:
        """Happens with where the artifact came from; None where it was refused, or the compiler has died."""
        if (signal := self.productions.get(key)) is None:
            signal = self.productions[key] = Signal()
            self._simulation.start(self._produce(key, signal))
        self._waiters[key] += 1
        self.most_waiters = max(self.most_waiters, self._waiters[key])
        return signal

    def die(self) -> None:
        """Everything under way is lost; its locks stay until their leases end."""
        self.is_dead = True
        for signal in self.productions.values():
            self._simulation.happen(signal)
        self.productions.clear()
        self._redis.abandon(self.name)

    def _produce(self, key: str, signal: Signal) -> Process:
        began = self._simulation.now
        source = yield from self._artifact(key)
        if self.is_dead:
            return
        if source == "compiled":
            self.client.found_elsewhere(self._simulation.now - began)
        if source is None:
            self.refused += 1
        else:
            self.sources[source] += 1
            self.memory.put(key, self._grammar_of(key).stored)
            self._files.add(key)
        del self.productions[key], self._waiters[key]
        self._simulation.happen(signal, source)

    def _artifact(self, key: str) -> Process:
        yield FILE_S
        if key in self._files:
            return "file"
        if (yield from self._redis.get(self.client, key)):
            return "redis"
        waited = False
        while True:
            leads = yield from self._redis.acquire(self.client, key, self.name)
            stored = yield from self._redis.get(self.client, key)
            if stored or leads is not False or self.is_dead:
                break
            waited = True
            yield POLL_S
        self.lock_waits += waited
        if not stored and not self.is_dead:
            job = _Job(key, Signal())
            try:
                self._lanes.put(job)
            except QueueFullError:
                return None
            self._dispatch()
            if not (yield job.done) or self.is_dead:
                return None
            self.compiled.append(key)
            yield from self._redis.put(self.client, key, self._grammar_of(key).stored)
        if leads and not self.is_dead:
            yield from self._redis.release(self.client, key, self.name)
        return "redis" if stored else "compiled"

    def _dispatch(self) -> None:
        while not self.is_dead and (run := self._lanes.take()) is not None:
            self._simulation.start(self._compile(run))

    def _compile(self, run: Run[_Job]) -> Process:
        left = self._grammar_of(run.job.key).compile_s
        step = SLICE_S
        ends = True
        while ends and left > 0:
            took = min(step, left)
            self.compile_busy_s += took
            yield took
            left -= took
            step = LOOK_S
            try:
                ends = left <= 0 or self._lanes.outlasts_slice(run)
            except QueueFullError:
                self._simulation.happen(run.job.done, False)
                ends = False
        self._lanes.end(run)
        if ends:
            self._simulation.happen(run.job.done, True)
        self._dispatch()

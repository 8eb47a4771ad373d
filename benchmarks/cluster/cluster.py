"""Routers, compilers, Redis, nodes and model replicas under a workload, with faults; see the results file for what is
left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
from tqdm import tqdm

from benchmarks.cluster.compiler import FILE_S, Compiler
from benchmarks.cluster.events import Process, Signal, Simulation
from benchmarks.cluster.measured import Measured
from benchmarks.cluster.redis import Client, RedisServer
from benchmarks.cluster.ring import Ring
from benchmarks.cluster.workload import Grammars, Workload, key_of
from gpu_workers.config import EngineConfig
from grammar_workers.lru import TIME_TO_LIVE_S

HOP_S = 0.001
"""A call by a Serve handle, there or back, beside the CPU of the one who is called."""
RETRY_S = 0.1
"""The pause before a call is made again whose compiler has died."""


@dataclasses.dataclass(frozen=True)
class Faults:
    """What happens, in seconds from the start: `None` does not."""

    compilers_die: float | None = None
    compilers_lost: int = 1
    compilers_back_after: float = 30.0
    redis_gone: tuple[float, float] | None = None
    replica_joins_every: float | None = None
    cold_files: bool = False


@dataclasses.dataclass
class Replica:
    """`warm`: had served for an hour when the simulation began. `held`: keys that it is known to have; `files`: those
    of its node.
    """

    warm: bool
    client: Client
    files: set[str]
    held: set[str] = dataclasses.field(default_factory=set)
    fetching: dict[str, Signal] = dataclasses.field(default_factory=dict)
    sources: Counter[str] = dataclasses.field(default_factory=Counter)
    loaded_bytes: int = 0


def held_before(rates: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Probabilities that a replica holds each automaton, by how often it is asked for a second and its bytes.

    It holds what was asked for last, up to a time since then at which memory is full, or everything expires (Che, Tung
    and Wang, "Hierarchical Web caching systems", 2002).
    """
    capacity = EngineConfig().automaton_cache_mb << 20
    shortest, longest = 0.0, TIME_TO_LIVE_S
    while longest - shortest > 0.1:
        time = (shortest + longest) / 2
        fits = -np.expm1(-rates * time) @ sizes <= capacity
        shortest, longest = (time, longest) if fits else (shortest, time)
    return -np.expm1(-rates * longest)


class Cluster:
    """`replicas` model replicas, `per_node` on a node, behind `compilers` on a node each; everything seeded.

    `remember_s`: what if each of as many routers as compilers answered about a grammar from memory, so long after a
    compiler has said that it is ready? Routers do not; 0.
    """

    def __init__(
        self,
        measured: Measured,
        workload: Workload,
        *,
        replicas: int = 1000,
        per_node: int = 8,
        compilers: int = 64,
        processes: int = 1,
        faults: Faults = Faults(),
        grammars: Grammars,
        remember_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.workload = workload
        self.measured = measured
        self.random = np.random.default_rng(seed)
        self.grammars = grammars
        self.simulation = Simulation()
        self.redis = RedisServer(self.simulation, measured)
        self.keys = [key_of(number) for number in range(workload.known)]
        self.popularity = workload.popularity()
        self.redis.values = {key: self.grammars.of(key).stored for key in self.keys}
        self.faults = faults
        self._processes = processes
        known_files = set() if faults.cold_files else set(self.keys)
        self.compilers = {f"compiler-{n}": self._compiler(f"compiler-{n}") for n in range(compilers)}
        self.ended: list[Compiler] = []
        self.ring = Ring(self.compilers)
        for key in () if faults.cold_files else self.keys:
            self.compilers[self.ring.owner(key)].memory.put(key, self.grammars.of(key).stored)
        nodes = [set(known_files) for _ in range(math.ceil(replicas / per_node))]
        warm = not faults.cold_files
        self.replicas = [Replica(warm, Client(self.simulation), nodes[n // per_node]) for n in range(replicas)]
        self.joined: list[Replica] = []
        loaded = np.array([self.grammars.of(key).loaded for key in self.keys])
        self._asked_before = held_before(workload.rate / replicas * self.popularity, loaded)
        self._remember_s = remember_s
        self._remembered: dict[tuple[int, str], float] = {}
        self.waits: list[float] = []
        self.refused = 0
        self.retries = 0
        self.moved = 0.0

    def run(self, seconds: float, title: str) -> None:
        """Requests for so many seconds; those that are under way then are answered."""
        times, numbers = self.workload.draw(seconds, self.random)
        self._plan_faults(seconds)
        simulation = self.simulation
        for time, number in tqdm(zip(times.tolist(), numbers.tolist(), strict=True), title, len(times), disable=None):
            simulation.run(time)
            self._request(self.keys[number] if number < len(self.keys) else key_of(number), number)
        simulation.run(seconds + 120.0)

    # -- one request -------------------------------------------------------------------------------------------------

    def _request(self, key: str, number: int) -> None:
        """The router asks the compiler and a replica at once; the answer begins when both have the grammar."""
        replica = self.replicas[int(self.random.integers(len(self.replicas)))]
        compiler = self.compilers[self.ring.owner(key)]
        has_it = key in replica.held or self._held_before(replica, key, number)
        if self._remember_s and has_it and self._remembers(key):
            self.waits.append(HOP_S)
            return
        if has_it and compiler.memory.get(key) is not None:
            compiler.sources["process"] += 1
            self.waits.append(2 * HOP_S + compiler.answers_after())
            return
        self.simulation.start(self._cold_request(key, replica, has_it))

    def _remembers(self, key: str) -> bool:
        """Whether the router of this request need not ask; else it does so now."""
        place = int(self.random.integers(len(self.compilers))), key
        if self._remembered.get(place, -self._remember_s) + self._remember_s > self.simulation.now:
            return True
        self._remembered[place] = self.simulation.now
        return False

    def _held_before(self, replica: Replica, key: str, number: int) -> bool:
        """Whether a warm replica had a key at the start, drawn where it is asked for first."""
        if not replica.warm or number >= len(self.keys) or self.random.random() >= self._asked_before[number]:
            return False
        replica.held.add(key)
        return True

    def _cold_request(self, key: str, replica: Replica, has_it: bool) -> Process:
        began = self.simulation.now
        loaded = Signal()
        if not has_it:
            if (fetch := replica.fetching.get(key)) is None:
                fetch = replica.fetching[key] = loaded
                self.simulation.start(self._load(key, replica, loaded))
            loaded = fetch
        source = yield from self._ask_compiler(key)
        if not has_it:
            yield loaded
        if source is None:
            self.refused += 1
        else:
            self.waits.append(self.simulation.now - began)

    def _ask_compiler(self, key: str) -> Process:
        """`compile` and `get`: where the compiler has the artifact from, None where it refuses for want of room."""
        while True:
            compiler = self.compilers[self.ring.owner(key)]
            yield HOP_S + compiler.answers_after()
            if compiler.is_dead:
                source = None
            elif compiler.memory.get(key) is not None:
                compiler.sources["process"] += 1
                source = "process"
            else:
                source = yield compiler.production(key)
            if source is not None or not compiler.is_dead:
                yield HOP_S
                return source
            self.retries += 1
            yield RETRY_S

    def _load(self, key: str, replica: Replica, loaded: Signal) -> Process:
        grammar = self.grammars.of(key)
        yield HOP_S + FILE_S
        if key in replica.files:
            source = "file"
        elif (yield from self.redis.get(replica.client, key)):
            source = "redis"
        else:
            began = self.simulation.now
            source = "compiler" if (yield from self._ask_compiler(key)) else None
            replica.client.found_elsewhere(self.simulation.now - began)
        if source is not None:
            yield grammar.load_s
            replica.sources[source] += 1
            replica.held.add(key)
            replica.loaded_bytes += grammar.loaded
            if source == "redis":
                replica.files.add(key)
        del replica.fetching[key]
        self.simulation.happen(loaded)

    # -- faults ------------------------------------------------------------------------------------------------------

    def _plan_faults(self, seconds: float) -> None:
        faults, start = self.faults, self.simulation.start
        if faults.compilers_die is not None:
            start(self._lose_compilers(), faults.compilers_die)
        if faults.redis_gone is not None:
            start(self._lose_redis(*faults.redis_gone))
        if faults.replica_joins_every is not None:
            for time in np.arange(faults.replica_joins_every / 2, seconds, faults.replica_joins_every):
                start(self._join(), float(time))

    def _lose_compilers(self) -> Process:
        """They are killed; Serve starts others, under other names and so in other places of the ring."""
        names = list(self.compilers)[: self.faults.compilers_lost]
        before = [self.ring.owner(key) for key in self.keys]
        self.ended += [self.compilers.pop(name) for name in names]
        for dead in self.ended:
            dead.die()
        self.ring.change(self.compilers)
        yield self.faults.compilers_back_after
        self.compilers |= {f"{name}-again": self._compiler(f"{name}-again") for name in names}
        self.ring.change(self.compilers)
        after = [self.ring.owner(key) for key in self.keys]
        self.moved = sum(old != new for old, new in zip(before, after, strict=True)) / len(before)

    def _lose_redis(self, begin: float, end: float) -> Process:
        """It comes back empty."""
        yield begin
        self.redis.is_down = True
        yield end - begin
        self.redis.is_down = False
        self.redis.values.clear()
        self.redis.locks.clear()

    def _join(self) -> Process:
        """On a node of its own, which has no files."""
        replica = Replica(False, Client(self.simulation), set())
        self.replicas.append(replica)
        self.joined.append(replica)
        yield 0.0

    def _compiler(self, name: str) -> Compiler:
        of = self.grammars.of
        return Compiler(self.simulation, self.measured, self.redis, of, name, set(), self._processes)

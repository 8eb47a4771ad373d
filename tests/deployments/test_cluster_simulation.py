"""`benchmarks.cluster`: the simulation meets the measured point, and its parts do what the real ones do."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np

from benchmarks.cluster.cluster import Cluster, Faults, held_before
from benchmarks.cluster.events import Process, Signal, Simulation
from benchmarks.cluster.measured import measured
from benchmarks.cluster.outcome import Outcome, outcome
from benchmarks.cluster.ring import Ring
from benchmarks.cluster.two_compilers import MEASURED, TOLERANCE, deviation, simulated
from benchmarks.cluster.workload import Grammars, Workload, key_of
from grammar_workers.artifacts.store.locks import LEASE_S

SECONDS = 10.0


def run(workload: Workload, faults: Faults | None = None, *, heavy: bool = False) -> tuple[Cluster, Outcome]:
    grammars = Grammars(measured().heavy_grammars if heavy else measured().grammars)
    cluster = Cluster(measured(), workload, replicas=40, compilers=8, faults=faults or Faults(), grammars=grammars)
    cluster.run(SECONDS, "test")
    return cluster, outcome(cluster, SECONDS)


def test_one_and_two_compilers_are_as_fast_as_measured() -> None:
    rates = {many: simulated(many) for many in MEASURED}
    assert deviation(rates) < TOLERANCE, rates


def test_processes_wait_for_time_and_for_signals() -> None:
    simulation = Simulation()
    signal = Signal()
    seen = []

    def waits() -> Process:
        value = yield signal
        seen.append((simulation.now, value))

    def tells() -> Process:
        yield 2.0
        simulation.happen(signal, "yes")
        simulation.happen(signal, "no")

    for process in (waits(), waits(), tells()):
        simulation.start(process)
    simulation.start(waits(), after_s=3.0)
    simulation.run(2.5)
    assert seen == [(2.0, "yes")] * 2 and simulation.now == 2.5
    simulation.run(4.0)
    assert seen[2] == (3.0, "yes")


def test_a_ring_moves_the_keys_of_what_leaves_and_no_others() -> None:
    names = [f"compiler-{n}" for n in range(16)]
    keys = [key_of(n) for n in range(4000)]
    ring = Ring(names)
    before = {key: ring.owner(key) for key in keys}
    assert set(before.values()) == set(names)
    ring.change(names[1:])
    assert {key for key in keys if ring.owner(key) != before[key]} == {k for k in keys if before[k] == names[0]}


def test_popularity_and_unseen_grammars() -> None:
    workload = Workload(1000, unseen=0.2, known=100)
    times, numbers = workload.draw(100, np.random.default_rng(1))
    assert len(times) == len(numbers) and bool((np.diff(times) >= 0).all())
    new = numbers[numbers >= 100]
    assert len(set(new.tolist())) == len(new) and abs(len(new) / len(numbers) - 0.2) < 0.01
    counts = Counter(numbers.tolist())
    assert abs(counts[0] / counts[9] - 10) < 1


def test_replicas_hold_what_fits_by_the_time_since_it_was_asked_for() -> None:
    rates = np.array([1.0, 1e-5])
    assert held_before(rates, np.array([1000, 1000])).round(3).tolist() == [1.0, 0.035]
    crowded = held_before(np.full(1000, 1.0), np.full(1000, 1 << 20))
    assert abs(crowded.sum() - 512) < 60


def test_each_unseen_grammar_is_compiled_once_and_what_is_known_never() -> None:
    cluster, found = run(Workload(200, unseen=0.3, known=500))
    new = {key for compiler in cluster.compilers.values() for key in compiler.compiled}
    assert found.compiled == len(new) > 400 and found.compiled_again == 0
    assert not new & set(cluster.keys)
    assert found.refused == 0 and found.requests == len(cluster.waits)


def test_a_release_is_compiled_once_however_many_wait() -> None:
    _, found = run(Workload(400, unseen=0.0, known=500, burst_every_s=10, burst_times=4))
    assert found.compiled == 1 and found.compiled_again == 0
    assert found.most_waiting > 1


def test_what_a_dying_compiler_had_begun_is_compiled_elsewhere() -> None:
    dies = Faults(compilers_die=5, compilers_back_after=2)
    cluster, found = run(Workload(400, unseen=0.6, known=500), dies, heavy=True)
    assert found.retries > 0 and found.refused == 0
    assert LEASE_S < found.longest_s < 2 * LEASE_S
    assert 0.02 < cluster.moved < 0.5


def test_without_redis_what_compilers_remember_is_not_compiled_again() -> None:
    gone = Faults(redis_gone=(2, 8))
    _, found = run(Workload(200, unseen=0.1, known=500), gone)
    assert found.compiled_again == 0 and found.refused == 0
    _, worse = run(Workload(200, unseen=0.1, known=500), dataclasses.replace(gone, compilers_die=4))
    assert worse.compiled_again > 0


def test_a_replica_that_joins_loads_what_it_is_asked_for() -> None:
    cluster, found = run(Workload(400, unseen=0.0, known=500), Faults(replica_joins_every=5))
    loaded = sum((replica.sources for replica in cluster.joined), Counter())
    assert set(loaded) == {"redis"} and found.compiled == 0
    assert loaded["redis"] == sum(len(replica.held) for replica in cluster.joined)

"""The measured point that the simulation is held against: `benchmarks.scale_out`, one compiler and two.

There heavy schemas are shared out evenly, and a compiler is given more while fewer than 16 of its own are under way.
The simulation knows nothing of what compilers on one machine take from each other: there both of them, their processes
and Redis had two cores with one memory; here each has its own. So it is held against the rate of one compiler, and
against how much faster two are, apart.
"""

from __future__ import annotations

import dataclasses
import statistics

from benchmarks.cluster.compiler import Compiler
from benchmarks.cluster.events import Process, Simulation
from benchmarks.cluster.measured import measured
from benchmarks.cluster.redis import RedisServer
from benchmarks.cluster.workload import Grammars, key_of

MEASURED = {1: 26.9, 2: 47.5}
"""Schemas a second on idle cores, by compilers."""
COMPILE_S = 0.033
"""Median of the same run: the grammars measured later are scaled to it."""
TOLERANCE = 0.15
IN_FLIGHT = 16


def deviation(rates: dict[int, float]) -> float:
    """By how much the rate of one compiler, or that of two over it, differs from the measured one at most; relative."""
    differences = (rates[1] / MEASURED[1], (rates[2] / rates[1]) / (MEASURED[2] / MEASURED[1]))
    return max(abs(one - 1) for one in differences)


def simulated(compilers: int, schemas: int = 60, rounds: int = 9) -> float:
    """Schemas a second, median of the rounds."""
    return statistics.median(_round(compilers, schemas, number) for number in range(rounds))


def _round(compilers: int, schemas: int, number: int) -> float:
    heavy = measured().heavy_grammars
    scale = COMPILE_S / statistics.median(one.compile_s for one in heavy)
    grammars = Grammars(tuple(dataclasses.replace(one, compile_s=one.compile_s * scale) for one in heavy))
    simulation = Simulation()
    redis = RedisServer(simulation, measured())
    keys = [key_of(number * schemas + n) for n in range(schemas)]
    ended = []

    def feed(compiler: Compiler, own: list[str]) -> Process:
        while own:
            key = own.pop()
            yield compiler.answers_after()
            yield compiler.production(key)
        ended.append(simulation.now)

    for n in range(compilers):
        compiler = Compiler(simulation, measured(), redis, grammars.of, f"compiler-{n}", set(), 1)
        own = keys[n::compilers]
        for _ in range(IN_FLIGHT):
            simulation.start(feed(compiler, own))
    simulation.run(1e6)
    return schemas / max(ended)

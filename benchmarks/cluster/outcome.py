"""What a simulated cluster has shown."""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.cluster.cluster import Cluster
from benchmarks.cluster.compiler import Compiler
from benchmarks.cluster.redis import LINK_BYTES_S


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Times in seconds; `busy`: shares of the simulated time."""

    requests: int
    refused: int
    p50_s: float
    p99_s: float
    longest_s: float
    loops_busy: tuple[float, float]
    """Event loops of the compilers: mean, and the busiest one."""
    cores_busy: tuple[float, float]
    """Cores of their compile processes: the same."""
    redis_busy: float
    link_busy: float
    """Of the busiest second."""
    redis_calls_s: int
    redis_bytes_s: int
    """Of their busiest seconds."""
    most_waiting: int
    """Calls for one grammar under way in one compiler at a time."""
    compiled: int
    compiled_again: int
    """Of grammars that had been compiled before."""
    lock_waits: int
    retries: int

    @property
    def uneven_calls(self) -> float:
        """The busiest event loop over the mean."""
        return self.loops_busy[1] / self.loops_busy[0]

    @property
    def uneven_compilations(self) -> float:
        return self.cores_busy[1] / max(self.cores_busy[0], 1e-9)

    @property
    def fullest(self) -> tuple[str, float]:
        """The part of the cluster that is nearest to its limit, and its share of it."""
        parts = {
            "the busiest compiler's event loop": self.loops_busy[1],
            "the busiest compiler's compile processes": self.cores_busy[1],
            "Redis, its core": self.redis_busy,
            "Redis, its link": self.link_busy,
        }
        return max(parts.items(), key=lambda part: part[1])


def outcome(cluster: Cluster, seconds: float, processes: int = 1) -> Outcome:
    """Of a cluster that has run for so many seconds."""
    compilers: list[Compiler] = [*cluster.compilers.values(), *cluster.ended]
    waits = np.array(cluster.waits)
    loops = np.array([compiler.loop_busy_s for compiler in compilers]) / seconds
    cores = np.array([compiler.compile_busy_s for compiler in compilers]) / seconds / processes
    compiled = [key for compiler in compilers for key in compiler.compiled]
    again = len(compiled) - len(set(compiled) - set(cluster.keys))
    most_bytes = max(cluster.redis.bytes_by_second.values(), default=0)
    return Outcome(
        requests=len(waits) + cluster.refused,
        refused=cluster.refused,
        p50_s=float(np.quantile(waits, 0.5)),
        p99_s=float(np.quantile(waits, 0.99)),
        longest_s=float(waits.max()),
        loops_busy=(float(loops.mean()), float(loops.max())),
        cores_busy=(float(cores.mean()), float(cores.max())),
        redis_busy=cluster.redis.busy_s / seconds,
        link_busy=most_bytes / LINK_BYTES_S,
        redis_calls_s=max(cluster.redis.calls_by_second.values(), default=0),
        redis_bytes_s=most_bytes,
        most_waiting=max(compiler.most_waiters for compiler in compilers),
        compiled=len(compiled),
        compiled_again=again,
        lock_waits=sum(compiler.lock_waits for compiler in compilers),
        retries=cluster.retries,
    )

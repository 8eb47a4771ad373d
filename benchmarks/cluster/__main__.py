"""A thousand model replicas and 64 compilers, simulated: what do faults cost, and what breaks first?

    python -m benchmarks.cluster [--replicas 1000] [--compilers 64] [--rate 4000] [--seconds 60]

1. The measured point: one and two compilers under the load of `benchmarks.scale_out`, simulated.
2. Scenarios at `--rate` requests with a grammar a second: shares of unseen grammars, bursts, replicas that join,
   compilers that die and others that come instead, Redis gone for 5 minutes, files of all nodes cold.
3. The rate grows until the slowest hundredth of the requests waits for its grammar for more than a second, or is
   refused; and which part was full then. The same if routers remembered for 5 s that a grammar is ready.

What is drawn and paid with was measured (`measured.json`, by `benchmarks.cluster.measure`). Exit status 1 when the
measured point is missed by more than its tolerance.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from benchmarks.cluster.cluster import Cluster, Faults
from benchmarks.cluster.measured import measured
from benchmarks.cluster.outcome import Outcome, outcome
from benchmarks.cluster.two_compilers import MEASURED, TOLERANCE, deviation, simulated
from benchmarks.cluster.workload import Grammars, Workload

COLUMNS = (
    "requests",
    "grammar p50 ms",
    "p99 ms",
    "longest ms",
    "loops busy, mean / most",
    "cores busy, mean / most",
    "Redis calls/s",
    "MB/s",
    "waiting for one",
    "compiled",
    "again",
    "refused",
)
HEAVY = "heavy"
BROKEN_S = 1.0
REMEMBER_S = 5.0
RAISED_S = 15.0
"""How long each of the raised rates lasts."""


def scenarios(rate: float, seconds: float) -> Iterator[tuple[str, Workload, Faults, float]]:
    """Name, workload, faults and how long. Grammars are heavy ones where the name says so."""
    for unseen in (0.01, 0.05, 0.1, 0.3):
        yield f"{unseen:.0%} unseen", Workload(rate, unseen), Faults(), seconds
    plain = Workload(rate)
    yield "bursts of three times as many", Workload(rate, burst_every_s=30), Faults(), seconds
    yield "a replica joins each minute", plain, Faults(replica_joins_every=60), 2 * seconds
    yield f"30% unseen, {HEAVY}", Workload(rate, 0.3), Faults(), seconds
    die = Faults(compilers_die=seconds / 3, compilers_lost=8)
    yield f"30% unseen, {HEAVY}; 8 compilers die, others come after 30 s", Workload(rate, 0.3), die, seconds
    yield "Redis gone for 5 minutes", plain, Faults(redis_gone=(30, 330)), 360
    both = Faults(compilers_die=90, compilers_lost=8, redis_gone=(30, 330))
    yield "the same, and 8 compilers die meanwhile", plain, both, 360
    yield "files and memories cold", plain, Faults(cold_files=True), seconds


def row(name: str, found: Outcome) -> str:
    shares = [f"{mean:.0%} / {most:.0%}" for mean, most in (found.loops_busy, found.cores_busy)]
    times = [f"{1000 * one:,.1f}" for one in (found.p50_s, found.p99_s, found.longest_s)]
    redis = [f"{found.redis_calls_s:,}", f"{found.redis_bytes_s / 1e6:.1f}"]
    counts = [f"{one:,}" for one in (found.most_waiting, found.compiled, found.compiled_again, found.refused)]
    return "| " + " | ".join([name, f"{found.requests:,}", *times, *shares, *redis, *counts]) + " |"


def broken(found: Outcome) -> bool:
    return found.p99_s > BROKEN_S or found.refused > 0.01 * found.requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1000, help="model replicas, 8 to a node (default 1000)")
    parser.add_argument("--compilers", type=int, default=64, help="of one compile process each (default 64)")
    parser.add_argument("--rate", type=float, default=4000, help="requests with a grammar a second (default 4000)")
    parser.add_argument("--seconds", type=float, default=60, help="simulated, of most scenarios (default 60)")
    options = parser.parse_args()
    size = {"replicas": options.replicas, "compilers": options.compilers}

    rates = {many: simulated(many) for many in MEASURED}
    missed = deviation(rates) > TOLERANCE
    print("| compilers | measured schemas/s | simulated | measured over one | simulated |\n" + "|---" * 5 + "|")
    for many, rate in rates.items():
        ratios = f"{MEASURED[many] / MEASURED[1]:.2f} | {rate / rates[1]:.2f}"
        print(f"| {many} | {MEASURED[many]} | {rate:.1f} | {ratios} |")
    print()

    print("| " + " | ".join(("scenario", *COLUMNS)) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|", flush=True)
    notes = []
    for name, workload, faults, seconds in scenarios(options.rate, options.seconds):
        grammars = Grammars(measured().heavy_grammars if HEAVY in name else measured().grammars)
        cluster = Cluster(measured(), workload, faults=faults, grammars=grammars, **size)
        cluster.run(seconds, name)
        print(row(name, outcome(cluster, seconds)), flush=True)
        notes += _notes(name, cluster)
    print("\n" + "\n".join(notes))

    print(
        "\n| unseen | routers remember | requests/s | grammar p99 ms | refused | fullest part | its share |\n"
        + "|---" * 7
        + "|"
    )
    for unseen, remember_s in ((0.01, 0.0), (0.3, 0.0), (0.01, REMEMBER_S), (0.3, REMEMBER_S)):
        for factor in (1, 2, 3, 4, 8, 16):
            workload = Workload(options.rate * factor, unseen)
            grammars = Grammars(measured().grammars)
            cluster = Cluster(measured(), workload, grammars=grammars, remember_s=remember_s, **size)
            cluster.run(RAISED_S, f"x{factor}")
            found = outcome(cluster, RAISED_S)
            part, share = found.fullest
            arm = f"{unseen:.0%} | {remember_s:g} s | {options.rate * factor:,.0f}"
            print(f"| {arm} | {1000 * found.p99_s:,.1f} | {found.refused:,} | {part} | {share:.0%} |", flush=True)
            if broken(found):
                break
    return int(missed)


def _notes(name: str, cluster: Cluster) -> Iterator[str]:
    """What the columns do not hold."""
    if cluster.faults.compilers_die is not None:
        calls = f"{cluster.retries} calls were repeated"
        yield f"{name}: {cluster.moved:.1%} of the keys met another compiler in the end; {calls}."
    if cluster.joined:
        loads = sum((replica.sources for replica in cluster.joined), Counter())
        yield f"{name}: {len(cluster.joined)} joined and loaded {sum(loads.values())} automata: {dict(loads)}."
    if cluster.faults.redis_gone is not None:
        yield f"{name}: {cluster.redis.failures:,} calls to Redis failed by time, in all processes together."


if __name__ == "__main__":
    sys.exit(main())

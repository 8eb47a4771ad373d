"""`python -m tests.chaos`: what faults cost a server on several Ray nodes of this machine, under mixed load."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import time

from tests.chaos.cluster import ClusterServer
from tests.chaos.faults import FAULTS, Fault, Recovered, Target, lose_node, redeploy
from tests.chaos.run import Outcome, run
from tests.chaos.single_flight import distinct_compilations
from tests.redis_server import RedisServer


async def nothing(target: Target) -> Recovered:
    return lambda: True


# In this type no rounding makes answers depend on who else is in the batch.
ENGINE = {"threads": 1, "max_model_len": 1024, "dtype": "float64", "grammar_timeout_s": 600}

ANYTHING_ELSE = {
    "router": {"max_prompt_bytes": 100_000},
    "compiler": {"memory_limit_mb": 2048},
    "replica": {"engine": {**ENGINE, "automaton_cache_mb": 256}},
}
"""What replicas are constructed with, so that a change replaces all of them."""

CLUSTER_FAULTS = {
    "none": Fault(nothing),
    **FAULTS,
    "redeploy": Fault(redeploy(ANYTHING_ELSE)),
    "model-node": Fault(lose_node("model-a")),
    "grammar-node": Fault(lose_node("grammar-a")),
}

COLUMNS = ("fault", "sent", "broken", "lost", "differ", "refused s", "slowest new s", "recovered s")


def arguments(store: str) -> dict[str, object]:
    """Three routers, three compilers, two model replicas, each on the nodes of its kind."""
    return {
        "store": store,
        # A replica that is replaced finishes its streams, however busy the machine is (as in k8s/base/serve.yaml).
        "router": {"replicas": 3, "num_cpus": 0.1, "resources": {"front": 1}, "graceful_shutdown_timeout_s": 60},
        "compiler": {
            "replicas": 3,
            "num_cpus": 0.1,
            "resources": {"grammar": 1},
            # So few that one key's requests meet several compilers.
            "max_ongoing_requests": 8,
            # On a busy machine work at the lowest priority takes its time.
            "compile_timeout_s": 120,
            "queue_timeout_s": 600,
        },
        "replica": {
            "replicas": 2,
            "num_cpus": 0.1,
            "resources": {"model": 1},
            "graceful_shutdown_timeout_s": 120,
            "engine": ENGINE,
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(CLUSTER_FAULTS)} (default: all)")
    parser.add_argument("--requests", type=int, default=40, help="before each fault, and after it (default 40)")
    options = parser.parse_args()
    if unknown := set(options.faults) - set(CLUSTER_FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    chosen = {name: CLUSTER_FAULTS[name] for name in CLUSTER_FAULTS if name in (options.faults or CLUSTER_FAULTS)}
    with (
        RedisServer() as redis,
        tempfile.TemporaryDirectory() as files,
        ClusterServer(arguments(f"{redis.url}?file={files}")) as server,
    ):
        harm = one_schema_from_many(server) + sum(table(chosen, Target(server, redis), options.requests))
    return int(harm > 0)


def one_schema_from_many(server: ClusterServer) -> int:
    """Prints how often it was compiled; returns how often too many."""
    compilations = asyncio.run(distinct_compilations(server.url, f"one{time.time_ns():x}"))
    print(f"an unseen schema from 64 clients at once: {compilations} compilation(s)\n", flush=True)
    return compilations - 1


def table(faults: dict[str, Fault], target: Target, requests: int) -> list[int]:
    """Prints a row for each fault; returns the harm that each did."""
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    return [harm_of(name, fault, target, requests) for name, fault in faults.items()]


def harm_of(name: str, fault: Fault, target: Target, requests: int) -> int:
    """Prints the row of one fault; returns how many requests it harmed, and one more for a server that stays broken."""
    try:
        outcome = asyncio.run(run(fault, target, f"{name}{time.time_ns():x}", requests))
    except ExceptionGroup as failed:  # the load's task group makes one of whatever ends it
        print(f"| {name} | {failed.exceptions[0]} |", flush=True)
        return 1
    print(row(name, outcome), flush=True)
    for line in [*outcome.lost, *outcome.differing]:
        print(f"  {line}", file=sys.stderr)
    return len(outcome.lost) + len(outcome.differing) + math.isinf(outcome.recovered_s)


def row(name: str, outcome: Outcome) -> str:
    cells = [name, outcome.sent, outcome.broken, len(outcome.lost), len(outcome.differing)]
    seconds = [f"{value:.1f}" for value in (outcome.refused_s, outcome.slowest_s, outcome.recovered_s)]
    return "| " + " | ".join(map(str, [*cells, *seconds])) + " |"


if __name__ == "__main__":
    sys.exit(main())

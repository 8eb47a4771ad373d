"""Does the grammar tier scale, and what does each place that knows a grammar save?

    python -m benchmarks.scale_out [--schemas 60] [--rounds 3]

1. Throughput: heavy schemas per second through one and through two compilers, each with its compile process pinned to a
   core of its own; both share one Redis, as the replicas of a cluster do. The two ways take turns; medians. Compile
   processes are idle work: on a machine with other work the time they stood in the queue for their core, as the kernel
   counts it, is left out of `on idle cores`, which is what the target is about.
2. Beyond two, a simulation. Its model: schemas arrive faster than they are compiled; each belongs to the compiler to
   which a ring of 100 virtual nodes each sends its key; a compiler works on one at a time, for as long as one of those
   measured took, drawn at random; Redis is one server that is busy with each compilation for its share of the
   round trips measured here, and compilers do not wait for it while it has time left. Two are simulated, too, to be
   compared with what was measured.
3. Time to first token of one request at a time against a real server: its schema is new to everybody, in Redis, in the
   files of the node, or in the process of the model replica.
4. A second model replica joins under load on known schemas: compilations before and after, by place.

Exit status 1 when two compilers are less than 1.6 times as fast as one, or when the new replica caused a compilation.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import hashlib
import itertools
import logging
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from benchmarks.heavy_schemas import heavy_schema
from benchmarks.load import START_DEADLINE_S, Measurements, Requests, connect, quantile_ms
from deployments.shipped import REPOSITORY
from grammar_workers import compile_grammar, grammar_key
from grammar_workers.artifacts.store import open_store
from grammar_workers.artifacts.store.redis_client import RedisClient
from grammar_workers.service.deployment import GrammarCompiler
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.integration.server import Server
from tests.redis_server import RedisServer

TARGET = 1.6
MODEL = str(REPOSITORY / "models" / "turnstile-tiny")
COMPILATIONS = "turnstile_grammar_compilations"
VIRTUAL_NODES = 100
REDIS_CALLS = 5
"""Of one compilation: lookup, lock, lookup under the lock, store, release."""
IN_FLIGHT = 16

Job = tuple[str, dict[str, Any]]
"""Grammar key and specification."""
Done = tuple[list[float], float]
"""The seconds that each compilation took, and those that the compile process waited for its core."""


def specification(number: int) -> dict[str, Any]:
    return {"type": "json_schema", "schema": heavy_schema(number)}


def compiler(core: int, store_url: str, connection: Connection) -> None:
    """A compiler in a process of its own, on one core: answers lists of jobs with what it `Done`."""
    os.sched_setaffinity(0, {core})
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    deployed = GrammarCompiler(MODEL, store_url)

    async def work(jobs: list[Job]) -> Done:
        room = asyncio.Semaphore(IN_FLIGHT)
        waited = _waited_s()

        async def one(job: Job) -> float:
            async with room:
                answer = await deployed.compile(*job)
            assert answer["source"] == "compiled", answer
            return float(answer["compile_seconds"])

        took = await asyncio.gather(*map(one, jobs))
        return list(took), _waited_s() - waited

    with asyncio.Runner() as runner:
        connection.send("ready")
        while (jobs := connection.recv()) is not None:
            connection.send(runner.run(work(jobs)))
    deployed.__del__()


def _waited_s() -> float:
    """How long the children of this process have stood ready without their core (Linux: sched-stats.rst)."""
    children = psutil.Process().children(recursive=True)
    tasks = [task for child in children for task in Path(f"/proc/{child.pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9


class Compilers:
    """Two of them over one Redis, each with files of its own."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        cores = sorted(os.sched_getaffinity(0))
        self._connections: list[Connection] = []
        self._processes = []
        for number, core in enumerate((cores[0], cores[-1])):
            ours, theirs = context.Pipe()
            url = f"{redis_url}?file={folder}/node{number}"
            process = context.Process(target=compiler, args=(core, url, theirs))
            process.start()
            self._connections.append(ours)
            self._processes.append(process)
        for connection in self._connections:
            connection.recv()

    def compile(self, jobs: list[Job], compilers: int) -> tuple[float, float, list[float]]:
        """Jobs per second, the same on idle cores, and the seconds of each, shared evenly among so many compilers."""
        started = time.monotonic()
        busy = []
        seconds: list[float] = []
        for number, connection in enumerate(self._connections[:compilers]):
            connection.send(jobs[number::compilers])
        for connection in self._connections[:compilers]:
            took, waited = connection.recv()
            busy.append(time.monotonic() - started - waited)
            seconds += took
        return len(jobs) / (time.monotonic() - started), len(jobs) / max(busy), seconds

    def close(self) -> None:
        for connection, process in zip(self._connections, self._processes, strict=True):
            connection.send(None)
            process.join()


def throughput(schemas: int, rounds: int) -> tuple[dict[int, float], dict[int, float], list[float], float]:
    """Median rates by number of compilers, as measured and on idle cores, the seconds of single compilations, and those
    of a call to Redis.
    """
    fingerprint = load_vocabulary(MODEL).fingerprint
    numbers = itertools.count(1)
    rates: dict[int, list[float]] = {1: [], 2: []}
    idle: dict[int, list[float]] = {1: [], 2: []}
    took: list[float] = []
    with RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        both = Compilers(redis.url, Path(folder))
        try:
            for _ in tqdm(range(rounds), desc="throughput", disable=None):
                for compilers in rates:
                    specifications = [specification(next(numbers)) for _ in range(schemas)]
                    jobs = [(grammar_key(one, fingerprint), one) for one in specifications]
                    rate, on_idle_cores, seconds = both.compile(jobs, compilers)
                    rates[compilers].append(rate)
                    idle[compilers].append(on_idle_cores)
                    if compilers == 1:
                        took += seconds
        finally:
            both.close()
        client = RedisClient(redis.url)
        started = time.process_time()
        for i in range(1000):
            client.call(lambda redis, i=i: redis.set(f"key{i}", b"x" * 4096))
        redis_s = (time.process_time() - started) / 1000
    medians = [{many: statistics.median(found) for many, found in each.items()} for each in (rates, idle)]
    return medians[0], medians[1], took, redis_s


def simulate(compilers: int, took: list[float], redis_s: float, schemas: int = 20_000) -> float:
    """Schemas per second; see the model above."""
    draw = random.Random(compilers)
    ring = sorted((_place(f"{n}/{v}"), n) for n in range(compilers) for v in range(VIRTUAL_NODES))
    places = [place for place, _ in ring]
    busy = [0.0] * compilers
    for number in range(schemas):
        owner = ring[bisect.bisect(places, _place(f"key{number}")) % len(ring)][1]
        busy[owner] += draw.choice(took)
    return schemas / max(*busy, schemas * REDIS_CALLS * redis_s)


def _place(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


async def first_tokens(server: Server, redis_url: str, files: Path, repeats: int) -> dict[str, list[float]]:
    """Seconds to the first token by where the schema is known, kinds in turn."""
    vocabulary = load_vocabulary(MODEL)
    numbers = itertools.count(10_000)
    elsewhere = tempfile.TemporaryDirectory()
    stores = {
        "Redis": open_store(f"{redis_url}?file={elsewhere.name}"),
        "the node": open_store(f"file://{files}"),
    }
    found: dict[str, list[float]] = {name: [] for name in ("nobody", *stores, "the process")}
    async with connect(server.url) as http:
        requests = Requests(http, "first")

        async def ask(schema: Any) -> list[float]:
            measurements = Measurements()
            await requests.answer(schema, measurements)
            return measurements.first_tokens

        await ask(heavy_schema(next(numbers)))
        for _ in tqdm(range(repeats), desc="first tokens", disable=None):
            schema = heavy_schema(next(numbers))
            found["nobody"] += await ask(schema)
            found["the process"] += await ask(schema)
            for name, store in stores.items():
                number = next(numbers)
                fsm = await asyncio.to_thread(compile_grammar, specification(number), vocabulary)
                store.put(fsm.key, fsm.to_bytes({"owner": "", "compile_seconds": 0.0}))
                found[name] += await ask(heavy_schema(number))
    elsewhere.cleanup()
    return found


async def join(server: Server, deadline_s: float) -> tuple[list[float], list[float], Measurements]:
    """Load until a second model replica has answered under each schema: compilations by compilers, by replicas."""
    schemas = [heavy_schema(20_000 + number) for number in range(8)]
    endless = itertools.cycle(schemas)
    measurements = Measurements()
    async with connect(server.url) as http:
        requests = Requests(http, "load")
        for schema in schemas:
            await requests.answer(schema, Measurements())
        load = asyncio.create_task(requests.at_rate(20, lambda: next(endless), measurements))
        # Long answers beside them are what Serve adds a replica for.
        long = [asyncio.create_task(_forever(requests, schemas[0])) for _ in range(12)]
        deadline = time.monotonic() + deadline_s
        while len(_loaded(server)) < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)  # metrics are some seconds old
        for task in (load, *long):
            task.cancel()
        await asyncio.gather(load, *long, return_exceptions=True)
    return (
        server.metric(COMPILATIONS, place="grammar_compiler"),
        server.metric(COMPILATIONS, place="model_replica"),
        measurements,
    )


async def _forever(requests: Requests, schema: Any) -> None:
    while True:
        await requests.answer(schema, Measurements(), max_tokens=200)


def _loaded(server: Server) -> list[float]:
    """Of each model replica, how many automata it holds; those that hold none are left out."""
    return [count for count in server.metric("turnstile_grammar_store_entries", tier="automata") if count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=60, help="compiled in each measurement (default 60)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each throughput (default 3)")
    parser.add_argument("--repeats", type=int, default=20, help="requests for each place (default 20)")
    options = parser.parse_args()
    rates, idle, took, redis_s = throughput(options.schemas, options.rounds)
    one = simulate(1, took, redis_s)
    print("| compilers | measured schemas/s | on idle cores | over one | simulated schemas/s | over one |")
    print("|---" * 6 + "|")
    for compilers in (1, 2, 4, 8, 16, 32):
        measured = "not run | |"
        if compilers in rates:
            measured = f"{rates[compilers]:.1f} | {idle[compilers]:.1f} | {idle[compilers] / idle[1]:.2f}"
        simulated = simulate(compilers, took, redis_s)
        print(f"| {compilers} | {measured} | {simulated:.1f} | {simulated / one:.2f} |", flush=True)
    print(
        f"\nOne compilation: {statistics.median(took) * 1000:.0f} ms (median); a call to Redis: {redis_s * 1e6:.0f} us"
    )
    with RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "grammars"
        scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 4, "upscale_delay_s": 1}
        arguments = {
            "store": f"{redis.url}?file={files}",
            "compiler": {"num_cpus": 0.1, "processes": 1},
            "replica": {"num_cpus": 0.1, "autoscaling": scaling, "engine": {"threads": 1, "max_length": 1024}},
        }
        with Server(arguments, deadline_s=START_DEADLINE_S) as server:
            found = asyncio.run(first_tokens(server, redis.url, files, options.repeats))
            print("\n| schema known to | first token p50 ms | p90 ms |\n|---|---|---|")
            for name, seconds in found.items():
                print(f"| {name} | {quantile_ms(seconds, 0.5):.1f} | {quantile_ms(seconds, 0.9):.1f} |", flush=True)
            before = options.repeats + 1
            server.wait_metric(COMPILATIONS, place="grammar_compiler")
            by_compilers, by_replicas, load = asyncio.run(join(server, deadline_s=180))
    expected = before + 8
    compiled = f"they compiled {by_replicas}, the compilers {sum(by_compilers):.0f} of {expected} new grammars"
    failed = load.statuses or "none"
    print(
        f"\n{len(by_replicas)} model replicas after the load: {compiled}. Requests sent: {load.sent}, failed: {failed}"
    )
    joined = len(by_replicas) == 2 and not any(by_replicas) and sum(by_compilers) == expected
    print(f"Two compilers over one: {idle[2] / idle[1]:.2f}, at least {TARGET}; the new replica needed none: {joined}")
    return int(idle[2] / idle[1] < TARGET or not joined)


if __name__ == "__main__":
    sys.exit(main())

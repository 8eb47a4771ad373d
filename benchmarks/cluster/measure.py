"""What the simulation draws from and pays with, measured on this machine: writes `measured.json` beside it.

    python -m benchmarks.cluster.measure --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). CPU seconds: of every schema compiled and loaded
for the Tekken vocabulary; of the heavy schemas of `benchmarks.scale_out` for the embedded model; of a Redis server for
each call and each MiB; of a compiler replica for a call about a grammar that it has in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import psutil
import redis
from tqdm import tqdm

from benchmarks.cluster.measured import FILE
from benchmarks.heavy_schemas import heavy_schema
from benchmarks.maskbench_data import parse_with_data
from benchmarks.processes import AS_NICE_AS_OTHERS
from benchmarks.size_and_load import compiled_and_loaded
from benchmarks.vocabularies import tekken_vocabulary
from deployments.local.launcher import environment
from deployments.shipped import REPOSITORY
from grammar_workers import Vocabulary, grammar_key, warm_up, warm_up_formats
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.redis_server import RedisServer

EMBEDDED = str(REPOSITORY / "models" / "turnstile-tiny")
CALLS, AT_ONCE = 3000, 64
NO_PROXY = {"RAY_SERVE_ENABLE_HA_PROXY": "0"}
"""With HAProxy Serve wants no ring for what it takes for the application's front."""


def grammar(specification: dict[str, Any], vocabulary: Vocabulary) -> list[float] | None:
    """Seconds to compile and to load, bytes stored and in memory; None when it is refused."""
    found = compiled_and_loaded(specification, vocabulary)
    if found is None:
        return None
    seconds = [round(found.compile_s, 6), round(found.load_s, 6)]
    return [*seconds, len(found.stored), found.fsm.nbytes]


def redis_seconds() -> dict[str, float]:
    """CPU seconds of the server: of a call with little data, and of each further byte sent."""
    with RedisServer() as server:
        client = redis.Redis.from_url(server.url)
        client.set("large", random.randbytes(1 << 20))

        def cpu(calls: int, call: Any) -> float:
            before: Any = client.info("cpu")
            for _ in range(calls):
                call()
            after: Any = client.info("cpu")
            return sum(after[name] - before[name] for name in ("used_cpu_sys", "used_cpu_user")) / calls

        call_s = cpu(20_000, lambda: client.getrange("no key", 0, 1 << 26))
        large_s = cpu(500, lambda: client.getrange("large", 0, 1 << 26))
    return {"redis_call_s": call_s, "redis_byte_s": (large_s - call_s) / (1 << 20)}


def call_seconds(folder: Path) -> float:
    """CPU seconds of a compiler replica's own process for a `compile` call about a known key, many at a time."""
    # Ray reads the environment when it is imported.
    import ray
    from ray import serve

    from deployments.app import grammar_compiler
    from deployments.arguments import CompilerArguments
    from deployments.local.server import start_ray

    specification = {"type": "json_schema", "schema": heavy_schema(1)}
    key = grammar_key(specification, load_vocabulary(EMBEDDED).fingerprint)

    async def measured() -> float:
        handle = serve.get_app_handle("default").options(session_id=key)  # it lives in one event loop
        room = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with room:
                await handle.compile.remote(key, specification, "")

        await asyncio.gather(*(one() for _ in range(200)))
        (process,) = (one for one in psutil.process_iter(["cmdline"]) if _is_compiler(one))
        before = process.cpu_times()
        await asyncio.gather(*(one() for _ in range(CALLS)))
        after = process.cpu_times()
        await serve.shutdown_async()
        return (after.user + after.system - before.user - before.system) / CALLS

    start_ray()
    try:
        application = grammar_compiler(CompilerArguments(num_cpus=1), EMBEDDED, f"file://{folder}/grammars")
        serve.run(application)
        return asyncio.run(measured())
    finally:
        ray.shutdown()


def _is_compiler(process: psutil.Process) -> bool:
    command = process.info["cmdline"] or [""]
    ours = any(parent.pid == os.getpid() for parent in process.parents())
    return ours and command[0].startswith("ray::ServeReplica") and "GrammarCompiler" in command[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments = parse_with_data(parser)
    vocabulary = load_vocabulary(EMBEDDED)
    warm_up(vocabulary)
    grammar({"type": "json_schema", "schema": heavy_schema(0)}, vocabulary)
    heavy = [grammar({"type": "json_schema", "schema": heavy_schema(n)}, vocabulary) for n in range(1, 61)]
    vocabulary = tekken_vocabulary()
    warm_up(vocabulary)
    warm_up_formats(vocabulary)
    paths = sorted(arguments.data.glob("*.json"))
    schemas = (json.loads(path.read_bytes())["schema"] for path in paths)
    found = [
        grammar({"type": "json_schema", "schema": schema}, vocabulary)
        for schema in tqdm(schemas, total=len(paths), unit="schema")
    ]
    save(
        **redis_seconds(),
        grammars=[one for one in found if one is not None],
        heavy_grammars=[one for one in heavy if one is not None],
    )
    with tempfile.TemporaryDirectory(prefix="turnstile-") as folder:
        for name, value in {**environment(Path(folder)), **AS_NICE_AS_OTHERS, **NO_PROXY}.items():
            os.environ.setdefault(name, value)
        save(lookup_s=call_seconds(Path(folder)))


def save(**measured: Any) -> None:
    """Puts these figures in place of the older ones."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    FILE.write_text(json.dumps({**kept, **measured}).replace("], [", "],\n[") + "\n")
    print({name: value for name, value in measured.items() if not isinstance(value, list)})


if __name__ == "__main__":
    main()

"""Many requests with random settings, grammars, cancellations and deadlines through one engine.

    python -m tests.gpu_workers.soak --requests 2000

Afterwards every slot is free, no sequence is alive, every request has ended exactly once, and every output that ended
by itself matches its grammar (`jsonschema` and `re` are the judges).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema
from tqdm import tqdm

from gpu_workers.engine.engine import Engine
from gpu_workers.sequence.sequence import Sequence
from grammar_workers import TokenFSM, compile_grammar
from tests.gpu_workers.support import byte_vocabulary, engine_config, grammars, request, running_engine

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SPECIFICATIONS: dict[str, dict[str, Any]] = {
    "person": {"type": "json_schema", "schema": _PERSON},
    "flag": {"type": "json_schema", "schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "date": {"type": "regex", "pattern": "[0-9]{4}-[01][0-9]"},
    "word": {"type": "choice", "choices": ["yes", "no", "maybe, who knows"]},
}
JUDGES: dict[str, Callable[[str], Any]] = {
    "person": lambda text: jsonschema.validate(json.loads(text), _PERSON),
    "flag": lambda text: jsonschema.validate(json.loads(text), SPECIFICATIONS["flag"]["schema"]),
    "date": lambda text: _require(re.fullmatch("[0-9]{4}-[01][0-9]", text)),
    "word": lambda text: _require(text in SPECIFICATIONS["word"]["choices"]),
}


_BANNED = ["a", "bc", "00"]


def _require(truth: Any) -> None:
    assert truth


@dataclass
class Report:
    """`ended`: terminal events of the engine, one for each request; `finished`: outputs complete under a grammar."""

    ended: int = 0
    finished: int = 0
    cancelled: int = 0


async def _one(engine: Engine, rng: random.Random, report: Report) -> None:
    name = rng.choice([None, *SPECIFICATIONS])
    one = request(
        [rng.randrange(97, 102) for _ in range(rng.choice([1, 8, 40]))],
        grammar=name,
        max_tokens=rng.choice([3, 12, 50]),
        temperature=rng.choice([0, 0.7, 1.3]),
        top_p=rng.choice([1, 0.8]),
        top_k=rng.choice([0, 20]),
        min_p=rng.choice([0, 0.05]),
        repetition_penalty=rng.choice([1, 1.2]),
        frequency_penalty=rng.choice([0, 0.5]),
        min_tokens=rng.choice([0, 0, 3]),
        banned_words={"words": _BANNED} if name is None and rng.random() < 0.5 else None,
        seed=rng.randrange(2**60),
        stop=rng.choice([[], ["e"], ["zz", "}"]]),
        logprobs=rng.choice([None, None, 2]),
        timeout_s=rng.choice([None] * 9 + [0.01]),
    )
    patience = rng.choice([1, 3, 10**6, 10**6])
    await asyncio.sleep(rng.random() * 0.05)
    text, terminal, stopped = "", 0, False
    async with contextlib.aclosing(engine.generate(one)) as stream:
        async for output in stream:
            assert not terminal, "an output after the last one"
            text += output.text
            terminal += output.finish_reason is not None
            if output.error is not None:
                assert output.error["code"] == "deadline_exceeded", output.error
            stopped = output.finish_reason == "stop"
            patience -= 1
            if not patience and not terminal:
                report.cancelled += 1
                return
    assert terminal == 1
    if one.sampling.banned_words is not None:
        _require(not any(word in text.lower() for word in _BANNED))
    if name is not None and stopped:
        JUDGES[name](text)
        report.finished += 1


def soak(requests: int, seed: int, *, at_once: int = 24, progress: bool = False) -> Report:
    """Runs `requests`, at most `at_once` together. Raises AssertionError when anything is not as it should be."""
    fsms: dict[str, TokenFSM] = {
        name: compile_grammar(specification, byte_vocabulary()) for name, specification in SPECIFICATIONS.items()
    }
    rng = random.Random(seed)
    report = Report()

    async def everything(engine: Engine) -> None:
        gate = asyncio.Semaphore(at_once)
        bar = tqdm(total=requests, disable=not progress)

        async def guarded() -> None:
            async with gate:
                await _one(engine, rng, report)
            bar.update()

        await asyncio.gather(*(guarded() for _ in range(requests)))
        async with asyncio.timeout(200):
            while engine.scheduler.running or engine.scheduler.waiting:
                await asyncio.sleep(0.01)

    with running_engine(
        config=engine_config(preempt_patience=2, overlap=bool(seed % 2)), fetch=grammars(**fsms)
    ) as engine:
        asyncio.run(everything(engine))
        report.ended = sum(engine.statistics.ended.values())
    assert report.ended == requests
    del engine
    gc.collect()
    assert not any(type(thing) is Sequence for thing in gc.get_objects()), "a sequence outlived its request"
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(soak(arguments.requests, arguments.seed, progress=True))


if __name__ == "__main__":
    main()

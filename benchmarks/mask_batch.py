"""Mask rows for a whole batch into one array: Turnstile beside xgrammar and llguidance in the same run.

    python -m benchmarks.mask_batch

Each row of the batch stands at another place of a ten-property object. The rows go into one uint32 array [B, words].
Between two fills a pass over B x V float32 logits empties the caches, as a model's forward pass would. Times are CPU
times of the process. Turnstile's rows have been visited before (warm); the peers compute theirs anew each time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.engines import ENGINES, LlguidanceSession, TurnstileSession, XgrammarSession, installed
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {f"field_{i}": {"type": ["string", "integer", "boolean"][i % 3]} for i in range(10)},
    "required": [f"field_{i}" for i in range(10)],
    "additionalProperties": False,
}
VALUE = {f"field_{i}": ["some text", 12345, True][i % 3] for i in range(10)}


def prefixes(many: int) -> list[list[int]]:
    """`many` beginnings of one instance, spread over its whole length."""
    tokens = tekken_encoding().encode(json.dumps(VALUE))
    return [tokens[: row * len(tokens) // many] for row in range(many)]


def filler(name: str, many: int, target: NDArray[np.uint32]) -> Callable[[], None]:
    """What fills `target` (uint32 [many, words]) once."""
    engine = ENGINES[name]({})
    sessions: list[Any] = []
    for tokens in prefixes(many):
        session = engine.compile(SCHEMA)
        for token in tokens:
            assert session.advance(token)
        sessions.append(session)
    if isinstance(sessions[0], TurnstileSession):

        def fill() -> None:
            for row, session in zip(target, sessions, strict=True):
                row[:] = session.mask()

    elif isinstance(sessions[0], XgrammarSession):
        import torch
        import xgrammar

        matchers = [session.matcher for session in sessions]
        batch = xgrammar.BatchGrammarMatcher(max_threads=1)
        shared = torch.from_numpy(target.view(np.int32))

        def fill() -> None:
            batch.batch_fill_next_token_bitmask(matchers, shared)

    else:
        assert isinstance(sessions[0], LlguidanceSession)
        import llguidance
        import llguidance.numpy

        executor = llguidance.LLExecutor(num_threads=1)
        numbered = [(session.matcher, row) for row, session in enumerate(sessions)]

        def fill() -> None:
            llguidance.numpy.fill_next_token_bitmask_par(executor, numbered, target.view(np.int32))

    return fill


def measure(name: str, many: int, rounds: int) -> float:
    """Median microseconds of one fill."""
    vocabulary = tekken_vocabulary()
    target = np.zeros((many, vocabulary.mask_words), np.uint32)
    logits = np.zeros((many, vocabulary.size), np.float32)
    fill = filler(name, many, target)
    fill()
    times = []
    for _ in range(rounds):
        logits += 1.0
        begin = time.process_time_ns()
        fill()
        times.append(time.process_time_ns() - begin)
    return float(np.median(times)) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 128], help="rows per batch")
    parser.add_argument("--rounds", type=int, default=50, help="fills per measurement (default 50)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all of them")
    arguments = parser.parse_args()
    results = {
        (name, many): measure(name, many, arguments.rounds)
        for name in tqdm(installed(arguments.engines), unit="engine")
        for many in arguments.batches
    }
    print(f"{'fill, microseconds':<24}" + "".join(f"{f'{many} rows':>12}" for many in arguments.batches))
    for name in dict.fromkeys(name for name, _ in results):
        print(f"{name:<24}" + "".join(f"{results[name, many]:>12,.0f}" for many in arguments.batches))


if __name__ == "__main__":
    main()

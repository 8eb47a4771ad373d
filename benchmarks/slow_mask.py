"""Does a pathological grammar slow its neighbours down? Their time between tokens with it over without.

    python -m benchmarks.slow_mask

A Llama of 4 layers and hidden size 256 with random weights decodes `--rows` texts without a grammar. In every second
window one more row runs, under a grammar whose every mask sleeps, on the engine's mask threads. Printed: medians over
the windows of the steps for each token (1.00: nobody waited) and of the CPU time of the process for each step and row,
and the ratio of the latter, which one row more in the batch cannot make 1.00 exactly. Wall time is told, too; on a
machine that does other work it says little.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.replay import MAX_LENGTH, random_llama
from benchmarks.vocabularies import named_encoder, named_vocabulary
from benchmarks.vocabulary_tokenizer import VocabularyTokenizer
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import prepare
from gpu_workers.request import GenerationRequest, GrammarReference
from grammar_workers import TokenFSM, compile_grammar


class SleepingFSM:
    """An automaton whose every mask takes `seconds`."""

    def __init__(self, fsm: TokenFSM, seconds: float) -> None:
        self._fsm = fsm
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fsm, name)

    def allowed_mask(self, state: int) -> NDArray[np.uint32]:
        time.sleep(self._seconds)
        return self._fsm.allowed_mask(state)


def _request(name: str, tokens: int, *, guided: bool = False) -> GenerationRequest:
    return GenerationRequest.model_validate(
        {
            "request_id": name,
            "prompt": [5, 6, 7],
            "grammar": {"key": "0" * 64, "specification": {}} if guided else None,
            "sampling": {"max_tokens": tokens, "ignore_eos": True, "seed": hash(name) % 2**32},
        }
    )


async def _text(engine: Engine, request: GenerationRequest, gaps: list[float]) -> None:
    last = None
    async for output in engine.generate(request):
        assert output.error is None, output.error
        now = time.perf_counter()
        if last is not None and output.token_ids:
            gaps.append((now - last) / len(output.token_ids))
        last = now


async def window(engine: Engine, rows: int, tokens: int, number: int, *, slow: bool) -> tuple[float, float, float]:
    """(steps for each token, CPU seconds for each step, median wall seconds between tokens) of the texts."""
    neighbour = engine.generate(_request(f"slow{number}", MAX_LENGTH - 8, guided=True)) if slow else None
    pending = None if neighbour is None else asyncio.ensure_future(anext(neighbour))
    gaps: list[float] = []
    steps, cpu = engine.statistics.steps, time.process_time()
    await asyncio.gather(*(_text(engine, _request(f"{number}.{row}", tokens), gaps) for row in range(rows)))
    taken = engine.statistics.steps - steps
    spent = (time.process_time() - cpu) / taken
    if neighbour is not None and pending is not None:
        pending.cancel()
        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
            await pending
        await neighbour.aclose()
    return taken / tokens, spent, statistics.median(gaps)


async def measure(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    vocabulary, spell = named_vocabulary("sentencepiece"), named_encoder("sentencepiece")
    fsm: Any = SleepingFSM(
        compile_grammar({"type": "regex", "pattern": "[a-z ]{1000}"}, vocabulary), arguments.sleep_ms / 1000
    )

    async def fetch(grammar: GrammarReference) -> TokenFSM:
        return fsm

    config = EngineConfig(slots=arguments.rows + 1, max_length=MAX_LENGTH, threads=1, ngram=0)
    tokenizer: Any = VocabularyTokenizer(vocabulary, spell)
    engine = Engine(prepare(random_llama(vocabulary.size), tokenizer, vocabulary, config), config, fetch)
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    try:
        for number in range(-2, 2 * arguments.windows):
            slow = number % 2 == 1
            made = await window(engine, arguments.rows, arguments.tokens, number, slow=slow)
            if number >= 0:
                found[slow].append(made)
    finally:
        engine.close()
    print(f"{'':22} {'alone':>8} {'beside':>8} {'ratio':>6}")
    for i, (name, unit) in enumerate((("steps for each token", 1), ("CPU ms a step", 1000), ("wall ms a token", 1000))):
        alone, beside = (unit * statistics.median(one[i] for one in found[slow]) for slow in (False, True))
        print(f"{name:22} {alone:8.2f} {beside:8.2f} {beside / alone:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16, help="texts decoded together")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each text in a window")
    parser.add_argument("--windows", type=int, default=20, help="windows of each kind; they alternate")
    parser.add_argument(
        "--sleep-ms", type=float, default=40, help="how long each mask of the pathological grammar takes"
    )
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Exactness at scale: random requests in random circumstances against the same requests alone and plain.

    python -m tests.gpu_workers.scenarios --count 500

Circumstances: forced text, n-gram drafts and their eagerness, a draft model, chunk sizes, slots and order of arrival,
prefix reuse, host work beside the model or before it, masks that come late and so preemption, and outputs cut off
somewhere and resumed as after a retry. Models in float64: identity holds up to ties of the logits.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import prepare
from gpu_workers.request import GenerationRequest
from gpu_workers.speculative.draft_model import DraftModel
from gpu_workers.speculative.eagle_drafter import EagleDrafter
from gpu_workers.speculative.logits_drafter import LogitsDrafter
from tests.gpu_workers.eagle_heads import random_head
from tests.gpu_workers.support import (
    CONFIGS,
    TableFSM,
    byte_tokenizer,
    byte_vocabulary,
    collect,
    engine_config,
    grammars,
    loaded,
    random_fsm,
    repeat_fsm,
    request,
    run,
    running_engine,
    text_fsm,
    tiny_model,
)

Output = tuple[list[int], str, str | None]


class LateFSM:
    """Another automaton whose rows take a while, every third of them long enough to be preempted for."""

    def __init__(self, fsm: TableFSM) -> None:
        self._fsm = fsm
        self._read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fsm, name)

    def allowed_mask(self, state: int) -> NDArray[np.uint32]:
        self._read += 1
        time.sleep(0.03 if self._read % 3 == 0 else 0.002)
        return self._fsm.allowed_mask(state)


def automata(rng: np.random.Generator) -> dict[str, TableFSM]:
    """Rows of all kinds, long forced runs, endless repetition."""
    return {
        "random": random_fsm(rng),
        "forced": text_fsm("the answer is yes", "the answer is no", "the question is which"),
        "pairs": TableFSM({0: {97: 1, 99: 2}, 1: {98: 0}, 2: {100: 0}}, [0]),
        "letters": repeat_fsm("abc"),
    }


def requests_of(rng: np.random.Generator, names: list[str]) -> list[GenerationRequest]:
    beginning = rng.integers(97, 101, 24).tolist()
    requests = []
    for _ in range(int(rng.integers(3, 8))):
        prompt = beginning[: int(rng.choice([2, 10, 24]))] + rng.integers(97, 105, int(rng.choice([1, 6, 20]))).tolist()
        settings: dict[str, Any] = {
            "temperature": float(rng.integers(2)),
            "max_tokens": int(rng.integers(1, 28)),
            "seed": int(rng.integers(2**60)),
            "top_p": float(rng.choice([1, 0.9])),
            "frequency_penalty": float(rng.choice([0, 0, 1.5])),
            "stop": [chr(int(rng.integers(97, 105)))] if rng.random() < 0.2 else [],
        }
        grammar = None if rng.random() < 0.3 else str(rng.choice(names))
        requests.append(request(prompt, grammar=grammar, **settings))
    return requests


def circumstances(rng: np.random.Generator) -> dict[str, Any]:
    slots = int(rng.integers(1, 6))
    return {
        "max_num_seqs": slots,
        "long_prefill_token_threshold": int(rng.choice([1, 3, 7, 64])),
        "max_num_batched_tokens": slots + int(rng.choice([1, 5, 40])),
        "forced_text": bool(rng.integers(2)),
        "prompt_lookup_max": int(rng.choice([0, 1, 3])),
        "draft_cost": float(rng.choice([0.01, 0.2])),
        "num_speculative_tokens": int(rng.choice([0, 2, 15])),
        "min_prefix_tokens": int(rng.choice([2, 16, 1000])),
        "sparse_limit": int(rng.choice([1, 256])),
        "preempt_patience": int(rng.choice([0, 8])),
        "overlap": bool(rng.integers(2)),
        "draft_masks": bool(rng.integers(2)),
    }


async def interrupted(engine: Engine, one: GenerationRequest, after: int) -> Output:
    """The output received in two parts: the stream is left after `after` tokens and the request made again."""
    received: list[int] = []
    text = ""
    stream = engine.generate(one)
    async for output in stream:
        received += output.token_ids
        text += output.text
        if output.finish_reason is not None:
            return received, text, output.finish_reason
        if len(received) >= after:
            break
    await stream.aclose()
    rest = await collect(engine, one.model_copy(update={"emitted_token_ids": list(received)}))
    assert rest.error is None, rest.error
    return received + rest.token_ids, text + rest.text, rest.finish_reason


def _drafter(rng: np.random.Generator, kind: str, config: EngineConfig) -> LogitsDrafter | None:
    """A draft model or head, or none; not always like the target: one that is nearly always wrong is exact, too."""
    seed = int(rng.integers(2))
    if (chance := rng.random()) > 0.45:
        return None
    if chance < 0.2 and kind != "gpt2":
        target = loaded(kind, config)
        return EagleDrafter(random_head(target, seed), target, config)
    return DraftModel(prepare(tiny_model(CONFIGS[kind](), seed), byte_tokenizer(), byte_vocabulary(), config), config)


def check(seed: int) -> int:
    """One scenario; returns how many sequences were preempted in it. Raises AssertionError when any token differs."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(list(CONFIGS)))
    fsms = automata(rng)
    requests = requests_of(rng, list(fsms))
    settings = circumstances(rng)
    plain = engine_config(
        max_num_seqs=1,
        long_prefill_token_threshold=64,
        max_num_batched_tokens=64,
        forced_text=False,
        prompt_lookup_max=0,
        min_prefix_tokens=1000,
        sparse_limit=256,
    )
    with running_engine(kind, plain, grammars(**fsms)) as engine:
        alone: list[Output] = []
        for one in requests:
            (result,) = run(engine, one)
            assert result.error is None, result.error
            alone.append((result.token_ids, result.text, result.finish_reason))
    late = {name: LateFSM(fsm) if rng.random() < 0.3 else fsm for name, fsm in fsms.items()}
    cuts = [int(rng.integers(1, 20)) if rng.random() < 0.3 else 10**6 for _ in requests]
    order = rng.permutation(len(requests))

    async def together(engine: Engine) -> list[Output]:
        outputs = await asyncio.gather(*(interrupted(engine, requests[i], cuts[i]) for i in order))
        return [outputs[list(order).index(i)] for i in range(len(requests))]

    config = engine_config(**settings)
    drafter = _drafter(rng, kind, config)
    with running_engine(kind, config, grammars(**late), drafter) as engine:
        outputs = asyncio.run(asyncio.wait_for(together(engine), 250))
        preemptions = engine.scheduler.preemptions
    for i, (output, expected) in enumerate(zip(outputs, alone, strict=True)):
        assert output == expected, f"scenario {seed}, request {i} of {kind}, {settings}: {output} is not {expected}"
    return preemptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="how many scenarios")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    arguments = parser.parse_args()
    preemptions = sum(check(seed) for seed in tqdm(range(arguments.first, arguments.first + arguments.count)))
    print(f"{arguments.count} scenarios, {preemptions} preemptions: no token differs")


if __name__ == "__main__":
    main()

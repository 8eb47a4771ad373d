"""The same request gives the same tokens: in any batch, any chunking, resumed anywhere, with or without a grammar."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_workers.request import GenerationRequest
from tests.gpu_workers.support import (
    Result,
    TableFSM,
    engine_config,
    grammars,
    random_fsm,
    request,
    run,
    running_engine,
    text_fsm,
)

FSMS: dict[str, TableFSM] = {f"random{i}": random_fsm(np.random.default_rng(i)) for i in range(4)} | {
    "texts": text_fsm("yes", "no", "maybe, who knows", "ja")
}


def more_settings(rng: np.random.Generator, *, constrained: bool) -> dict[str, Any]:
    """Everything that changes logits, takes tokens back or tells about them."""
    settings: dict[str, Any] = {
        "min_p": float(rng.choice([0, 0.02])),
        "repetition_penalty": float(rng.choice([1, 1.3])),
        "presence_penalty": float(rng.choice([0, 0.5])),
        "frequency_penalty": float(rng.choice([0, -0.5])),
        "logit_bias": {int(rng.integers(0, 256)): 4.0},
        "min_tokens": int(rng.integers(0, 6)),
        "ignore_eos": bool(rng.random() < 0.2),
        "stop_token_ids": rng.integers(0, 256, 2).tolist(),
        "logprobs": None if rng.random() < 0.5 else 2,
    }
    if not constrained and rng.random() < 0.5:
        letters = rng.choice(list("abcdefghijklmnopqrstuvwxyz0123456789"), 12, replace=False).tolist()
        settings["banned_words"] = {"words": letters}
    if constrained and rng.random() < 0.5:
        settings |= {"finish_within_budget": True, "max_tokens": 25, "stop_token_ids": []}
    return settings


def random_requests(seed: int, many: int = 7) -> list[GenerationRequest]:
    rng = np.random.default_rng(seed)
    requests = []
    for i in range(many):
        settings = {
            "max_tokens": int(rng.integers(1, 25)),
            "temperature": float(rng.choice([0, 1, 1, 1.5])),
            "top_p": float(rng.choice([1, 0.9])),
            "top_k": int(rng.choice([0, 30])),
            "seed": int(rng.integers(0, 2**60)),
            "choice_index": int(rng.integers(0, 3)),
            "stop": [chr(int(rng.integers(97, 123)))] if rng.random() < 0.3 else [],
        }
        grammar = None if rng.random() < 0.4 else list(FSMS)[(seed + i) % len(FSMS)]
        if rng.random() < 0.5:
            settings |= more_settings(rng, constrained=grammar is not None)
        prompt = rng.integers(0, 256, int(rng.choice([1, 4, 13, 40]))).tolist()
        requests.append(request(prompt, grammar=grammar, **settings))
    return requests


def summary(result: Result) -> tuple[list[int], str, str | None]:
    return result.token_ids, result.text, result.finish_reason


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("seed", range(6))
def test_batch_chunking_and_drafts_change_nothing(kind: str, seed: int) -> None:
    """Together in few slots, in small chunks, in any order, by dense rows only, with drafts: as when alone without."""
    requests = random_requests(seed)
    plain = engine_config(
        max_num_seqs=1,
        long_prefill_token_threshold=64,
        max_num_batched_tokens=64,
        forced_text=False,
        prompt_lookup_max=0,
    )
    with running_engine(kind, plain, grammars(**FSMS)) as engine:
        alone = [summary(run(engine, one)[0]) for one in requests]
    for config, stagger in (
        (engine_config(), 0),
        (engine_config(long_prefill_token_threshold=2, max_num_seqs=6, overlap=True), 1),
        (engine_config(sparse_limit=1, prompt_lookup_max=1, draft_cost=0.01, max_num_batched_tokens=30), 3),
    ):
        with running_engine(kind, config, grammars(**FSMS)) as engine:
            assert [summary(result) for result in run(engine, *requests, stagger=stagger)] == alone
            backwards = run(engine, *reversed(requests), stagger=stagger)
            assert [summary(result) for result in reversed(backwards)] == alone


@pytest.mark.parametrize("seed", range(8))
def test_a_resumed_output_goes_on_as_if_nothing_had_happened(seed: int) -> None:
    """Cut anywhere, the emitted tokens replayed: the rest of tokens and text is what the first run gave."""
    requests = random_requests(seed + 100)
    with running_engine(fetch=grammars(**FSMS)) as engine:
        whole = run(engine, *requests)
        for one, result in zip(requests, whole, strict=True):
            received: list[int] = []
            text = ""
            for output in result.outputs[:-1]:
                received += output.token_ids
                text += output.text
                resumed = one.model_copy(update={"emitted_token_ids": list(received)})
                (rest,) = run(engine, resumed)
                assert received + rest.token_ids == result.token_ids
                assert text + rest.text == result.text
                assert rest.finish_reason == result.finish_reason
                assert rest.outputs[-1].prompt_tokens == result.outputs[-1].prompt_tokens


def test_choices_and_seeds_differ() -> None:
    with running_engine() as engine:
        same, other_choice, other_seed, again = run(
            engine,
            request("abc", max_tokens=20, seed=5),
            request("abc", max_tokens=20, seed=5, choice_index=1),
            request("abc", max_tokens=20, seed=6),
            request("abc", max_tokens=20, seed=5),
        )
    assert same.token_ids == again.token_ids
    assert len({tuple(result.token_ids) for result in (same, other_choice, other_seed)}) == 3

"""Drafts drawn at random leave the distribution of outputs as it is."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import prepare
from gpu_workers.model.output_head import OutputHead
from gpu_workers.request import SamplingParameters
from gpu_workers.sampling.allowed_tokens import read_row
from gpu_workers.sampling.randomness import Stream, uniforms
from gpu_workers.sampling.sampler import Draw, Sampler
from gpu_workers.sampling.verification import Proposal
from gpu_workers.speculative.draft_model import DraftModel
from tests.gpu_workers.support import (
    CONFIGS,
    byte_tokenizer,
    byte_vocabulary,
    engine_config,
    grammars,
    loaded,
    repeat_fsm,
    request,
    run,
    running_engine,
    tiny_model,
)

TOKENS = 40


def chi_square_is_usual(counts: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Pearson's statistic below its 99.9 % quantile (Wilson and Hilferty 1931); rare outcomes are put together."""
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    return bool(((observed - wanted) ** 2 / wanted).sum() < quantile)


def proposals(rng: np.random.Generator, ids: NDArray[np.int64], seeds: list[int]) -> tuple[Any, list[Proposal]]:
    """Drafts of a random distribution over `ids`, as a draft model draws them."""
    chances = rng.dirichlet(np.full(len(ids), 0.5))
    drawn = np.searchsorted(chances.cumsum(), uniforms(seeds, [0] * len(seeds), [0] * len(seeds), Stream.DRAFT))
    return chances, [Proposal(int(ids[i]), ids, chances) for i in drawn]


@pytest.mark.parametrize("ids", [np.arange(TOKENS), np.array([3, 5, 8, 9, 30, 50])], ids=["whole", "pruned"])
@pytest.mark.parametrize("sparse_limit", [1, 256])
def test_the_rule_gives_the_targets_distribution(ids: Any, sparse_limit: int) -> None:
    settings: dict[str, Any] = {} if sparse_limit == 1 else {"top_k": 4, "temperature": 1.5}
    rng = np.random.default_rng(len(ids) + sparse_limit)
    many, allowed_ids = 6000, np.array([1, 3, 5, 6, 8, 9, 17, 30, 31])
    bits = np.zeros(64, np.uint8)
    bits[allowed_ids] = 1
    allowed = read_row(np.packbits(bits, bitorder="little").view(np.uint32), [0], sparse_limit)
    logits = torch.from_numpy(rng.normal(0, 1.5, TOKENS)).expand(many, -1)
    seeds = list(range(many))
    proposed, drafts = proposals(rng, ids, seeds)
    sampler = Sampler(OutputHead(nn.Identity(), TOKENS, separable=False))
    draws = [
        Draw(SamplingParameters(seed=seed, **settings), 0, 0, allowed, proposal=draft)
        for seed, draft in zip(seeds, drafts, strict=True)
    ]
    tokens = sampler.sample(logits, draws)
    target = (logits[0][torch.from_numpy(allowed_ids)] / settings.get("temperature", 1.0)).softmax(-1).numpy()
    if (k := settings.get("top_k")) is not None:
        target = np.where(target >= np.sort(target)[-k], target, 0)
        target /= target.sum()
    counts = np.bincount(tokens, minlength=TOKENS)
    assert counts[allowed_ids].sum() == many
    assert chi_square_is_usual(counts[allowed_ids], target * many)
    # Leviathan et al. 2023, theorem 3.5: a draft is kept with probability sum(min(p, q)).
    over = dict(zip(ids.tolist(), proposed.tolist(), strict=True))
    kept = sum(min(p, over.get(token, 0.0)) for token, p in zip(allowed_ids.tolist(), target, strict=True))
    same = np.mean([token == draft.token_id for token, draft in zip(tokens, drafts, strict=True)])
    assert same == pytest.approx(kept, abs=0.03)


def exact_distribution(prompt: list[int], letters: bytes, length: int, temperature: float) -> dict[bytes, float]:
    """Of outputs of `length` letters, from the model's own logits; the end token may not come before that."""
    model = loaded("llama", engine_config()).model
    chances: dict[bytes, float] = {b"": 1.0}
    for _ in range(length):
        texts = list(chances)
        inputs = torch.tensor([[*prompt, *text] for text in texts])
        with torch.no_grad():
            model.set_attn_implementation("sdpa")
            logits = model(inputs, use_cache=False).logits[:, -1, list(letters)]
            model.set_attn_implementation("turnstile_slots")
        odds = (logits / temperature).softmax(-1).tolist()
        chances = {
            text + bytes([letter]): chances[text] * p
            for text, line in zip(texts, odds, strict=True)
            for letter, p in zip(letters, line, strict=True)
        }
    return chances


def check_distribution(engine: Engine, grammar: str, letters: bytes, length: int, *, softer: float = 1) -> None:
    """Outputs of `length` letters under `grammar`, drawn with the drafts of an engine.

    The tiny model is so sure that it is drawn from at temperature 3; `softer`: what the engine's logits are divided by.
    """
    many, temperature = 600, 3.0
    settings = {"grammar": grammar, "max_tokens": length, "temperature": temperature / softer, "ignore_eos": True}
    requests = [request([7, 8, 9], seed=seed, **settings) for seed in range(many)]
    results = run(engine, *requests, limit_s=250)
    counted = engine.statistics
    assert counted.drafted_tokens > many and 0 < counted.accepted_tokens < counted.drafted_tokens
    counts = Counter(bytes(result.token_ids) for result in results)
    exact = exact_distribution([7, 8, 9], letters, length, temperature)
    texts = [bytes(text) for text in itertools.product(letters, repeat=length)]
    assert sum(counts[text] for text in texts) == many
    expected = np.array([exact[text] for text in texts]) * many
    assert chi_square_is_usual(np.array([counts[text] for text in texts]), expected)


def test_outputs_have_the_exact_distribution() -> None:
    """Joint, over three tokens: a grammar, drafts of another model, and the engine around them."""
    config = engine_config(
        prompt_lookup_max=0,
        forced_text=False,
        draft_cost=0.01,
        max_num_batched_tokens=300,
        max_num_seqs=32,
        draft_sampling="random",
    )
    drafter = DraftModel(
        prepare(tiny_model(CONFIGS["llama"](), 1), byte_tokenizer(), byte_vocabulary(), config), config
    )
    with running_engine(config=config, fetch=grammars(letters=repeat_fsm("abc")), draft_model=drafter) as engine:
        check_distribution(engine, "letters", b"abc", 3)

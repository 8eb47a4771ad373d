"""The engine's greedy output against transformers' own `generate`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel

from tests.gpu_workers.support import CONFIGS, END, MAX_LENGTH, engine_config, request, run, running_engine, tiny_model


def reference(model: PreTrainedModel, prompt: list[int], max_tokens: int, **settings: Any) -> list[int]:
    """Greedy tokens of `model.generate`, alone in its batch."""
    input_ids = torch.tensor([prompt])
    # Padding columns of the logits are no tokens: the engine never samples them, generate must not either.
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=END,
        pad_token_id=END,
        suppress_tokens=list(range(END + 1, model.config.vocab_size)),
        **settings,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("kind", CONFIGS)
def test_greedy_equals_generate(kind: str, chunk: int) -> None:
    """Fourteen prompts of all lengths join and leave four slots at different times."""
    rng = random.Random(chunk)
    model = tiny_model(CONFIGS[kind]())
    prompts = [[rng.randrange(256) for _ in range(rng.choice([1, 2, 7, 20, 60]))] for _ in range(14)]
    budgets = [rng.randrange(1, 30) for _ in prompts]
    requests = [
        request(prompt, temperature=0, max_tokens=budget) for prompt, budget in zip(prompts, budgets, strict=True)
    ]
    with running_engine(
        kind, engine_config(long_prefill_token_threshold=chunk, max_num_batched_tokens=max(8, chunk))
    ) as engine:
        results = run(engine, *requests, stagger=2)
    for prompt, budget, result in zip(prompts, budgets, results, strict=True):
        assert result.token_ids == reference(model, prompt, budget)
        assert result.finish_reason == ("stop" if result.token_ids[-1] == END else "length")
        assert result.outputs[0].prompt_tokens == len(prompt)


def test_output_ends_where_the_model_does() -> None:
    """Without max_tokens a sequence fills the context to its last place."""
    model = tiny_model(CONFIGS["llama"]())
    prompt = [5] * 10
    with running_engine() as engine:
        (result,) = run(engine, request(prompt, temperature=0))
    expected = reference(model, prompt, MAX_LENGTH - len(prompt))
    assert result.token_ids == expected


class OutputPenalty(LogitsProcessor):
    """Presence and frequency penalty, as OpenAI defines them, and a bias of one token."""

    def __init__(self, begin: int, presence: float = 0, frequency: float = 0, bias: float = 0) -> None:
        self.begin, self.presence, self.frequency, self.bias = begin, presence, frequency, bias

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = torch.bincount(input_ids[0, self.begin :], minlength=scores.shape[1])
        scores = scores - self.presence * (counts > 0) - self.frequency * counts
        scores[0, 7] += self.bias
        return scores


def test_each_penalty_alone_is_that_of_generate() -> None:
    model, prompt = tiny_model(CONFIGS["llama"]()), [7, 8, 9] * 3
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"presence_penalty": 1.0}, {"logits_processor": [OutputPenalty(len(prompt), presence=1.0)]}),
        ({"frequency_penalty": 1.0}, {"logits_processor": [OutputPenalty(len(prompt), frequency=1.0)]}),
        ({"logit_bias": {7: 2.0}}, {"logits_processor": [OutputPenalty(len(prompt), bias=2.0)]}),
    ]
    plain = reference(model, prompt, 20)
    expected = [reference(model, prompt, 20, **settings) for _, settings in cases]
    assert plain not in expected
    with running_engine() as engine:
        results = run(engine, *(request(prompt, temperature=0, max_tokens=20, **settings) for settings, _ in cases))
    assert [result.token_ids for result in results] == expected

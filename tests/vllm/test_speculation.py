"""Speculation under our masks inside vLLM: the tokens, and their frequencies, of no speculation.

The model has more logits than its tokenizer has tokens and likes the surplus best; either of two tokens ends an output.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from grammar_workers import Vocabulary
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.gpu_workers.test_rejection import chi_square_is_usual
from tests.vllm.answers import QUESTIONS
from tests.vllm.models import padded_model, random_eagle3_head
from tests.vllm.offline import Answer, EngineProcess, Request, Run

pytestmark = pytest.mark.timeout(900)  # the first start on a machine compiles kernels

PLAIN = ("none", "n-gram", "EAGLE-3, async", "itself, async")
FORCED = ("n-gram + forced", "EAGLE-3 + forced", "n-gram + forced, small cache")
SPECULATIVE = (*PLAIN[1:], *FORCED)
WINDOW = 4
SYNC = {"async_scheduling": False}
SMALL_CACHE = {"num_gpu_blocks_override": 34, "block_size": 32}
"""Room for one request of the greatest length, or for a few of the many that run."""

ENDS, PADDING, USERS_STOP = {1, 3}, 1030, 72
SOME_STOPS = [61, 274, 299, 322]
CHOICES = ["yes", "yes7", "no", "not7!", "n7", "y#7"]
MANY = 400
WORDS = r"[a-z]{2,12}( [a-z#7]{1,9}){0,6}\."
NOTES = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "notes": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "notes"],
    "additionalProperties": False,
}
CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": WORDS},
    {"regex": r"[^\n]{5,60}"},
    {"regex": "(not7!|yes#7 )+"},
    {"json": QUESTIONS[3].schema},
    {"json": {**NOTES, "x-turnstile": {"finish_within_budget": True}}},
]
ENDINGS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 16},
    {"stop_token_ids": SOME_STOPS},
    {"stop_token_ids": [*SOME_STOPS, PADDING], "min_tokens": 12},
    {"min_tokens": 20},
    {"stop": ["a", "Alice", '"'], "min_tokens": 1},
    {"stop": ["e", "7"], "min_tokens": 9},
    {"stop": ["is", "e"], "stop_token_ids": SOME_STOPS, "min_tokens": 5, "include_stop_str_in_output": True},
    {"ignore_eos": True, "min_tokens": 9},
]
EXACT = [
    Request(QUESTIONS[place % 3].text, {"temperature": 0, "max_tokens": 32, **ending}, constraint)
    for place, (constraint, ending) in enumerate(itertools.product(CONSTRAINTS, ENDINGS))
]
"""Everything that says where an output ends."""

FREQUENT = [
    Request(" ".join(CHOICES), {"temperature": 1.0, "seed": seed, "stop_token_ids": [USERS_STOP]}, {"choice": CHOICES})
    for seed in range(MANY)
]


@dataclass(frozen=True, eq=False)
class Runs:
    model: Path
    vocabulary: Vocabulary
    of: dict[str, list[Run]]
    """By engine: `EXACT` and `FREQUENT`."""

    def exact(self, engine: str) -> list[Answer]:
        return self.of[engine][0].answers

    def frequent(self, engine: str) -> list[Answer]:
        return self.of[engine][1].answers


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("speculation")
    model = padded_model(folder / "model", end_token_ids=tuple(ENDS), logit_scale=0.3)
    vocabulary = load_vocabulary(str(model))
    engines = engines_of(model, random_eagle3_head(folder / "head", model, drafted(vocabulary)))
    plain, forced = EngineProcess(folder), EngineProcess(folder, TURNSTILE_FORCED_DRAFTS=str(WINDOW))

    def run(process: EngineProcess, names: tuple[str, ...]) -> list[list[Run]]:
        common = {"model": str(model), "max_num_seqs": 64, "max_model_len": 512}
        return [process.run({**common, **engines[name]}, [EXACT, FREQUENT]) for name in names]

    try:
        with ThreadPoolExecutor() as both:
            found = list(both.map(run, (plain, forced), (PLAIN, FORCED)))
        yield Runs(model, vocabulary, dict(zip((*PLAIN, *FORCED), itertools.chain(*found), strict=True)))
    finally:
        plain.close()
        forced.close()


def engines_of(model: Path, head: Path) -> dict[str, dict[str, Any]]:
    """Arguments of vLLM's LLM. n-gram drafts are scheduled synchronously anyway."""

    def speculative(method: str, **fields: Any) -> dict[str, Any]:
        return {"speculative_config": {"method": method, "num_speculative_tokens": WINDOW, **fields}}

    ngram = speculative("ngram", prompt_lookup_min=1, prompt_lookup_max=3)
    eagle3 = speculative("eagle3", model=str(head))
    return {
        "none": SYNC,
        "n-gram": ngram,
        "EAGLE-3, async": eagle3,
        "itself, async": speculative("draft_model", model=str(model)),
        "n-gram + forced": ngram,
        "EAGLE-3 + forced": {**eagle3, **SYNC},
        "n-gram + forced, small cache": {**ngram, **SMALL_CACHE},
    }


def drafted(vocabulary: Vocabulary) -> list[int]:
    """Every token of the choices, what ends them, and a token that is none."""
    inside = [
        token_id
        for token_id in range(vocabulary.size)
        if (text := vocabulary.token_bytes(token_id)) and any(text in choice.encode() for choice in CHOICES)
    ]
    return sorted({*inside, *ENDS, USERS_STOP, PADDING})


@pytest.mark.parametrize("engine", SPECULATIVE)
def test_an_output_ends_where_it_would_without_speculation(runs: Runs, engine: str) -> None:
    """Stop tokens and strings, `min_tokens`, `ignore_eos`, two end tokens, budgets: text, tokens, what ended them."""
    counts = runs.of[engine][0].counts
    assert 0 < counts.accepted <= counts.proposed
    assert (counts.preemptions > 0) == ("small" in engine)
    for request, expected, answer in zip(EXACT, runs.exact("none"), runs.exact(engine), strict=True):
        assert (answer.text, answer.finish_reason, answer.stop_reason) == (
            expected.text,
            expected.finish_reason,
            expected.stop_reason,
        ), request
        if "stop" not in request.sampling:  # tokens behind a stop string are told, and there are more of them
            assert answer.token_ids == expected.token_ids, request


@pytest.mark.parametrize("engine", (*PLAIN, *FORCED))
def test_what_ends_has_the_right_to(runs: Runs, engine: str) -> None:
    reasons: Counter[str] = Counter()
    for request, answer in zip(EXACT, runs.exact(engine), strict=True):
        settings = request.sampling
        if isinstance(answer.stop_reason, str):
            reasons["string"] += 1
            assert len(answer.token_ids) > settings.get("min_tokens", 0), request
        elif answer.finish_reason == "stop":
            reasons["end" if answer.stop_reason is None else "token"] += 1
            last = answer.token_ids[-1]
            shown = runs.vocabulary.token_bytes(last) if "include_stop_str_in_output" in settings else None
            text = answer.text.removesuffix((shown or b"").decode())
            assert is_valid(text, request), (request, answer)
            assert last in ENDS if answer.stop_reason is None else last in settings.get("stop_token_ids", ())
    assert min(reasons[name] for name in ("string", "token", "end")) > 0, reasons


def is_valid(text: str, request: Request) -> bool:
    assert request.constraint is not None
    if (pattern := request.constraint.get("regex")) is not None:
        return re.fullmatch(pattern, text) is not None
    jsonschema.validate(json.loads(text), request.constraint["json"])
    return True


@pytest.mark.parametrize("engine", (*PLAIN, *FORCED))
def test_answers_come_as_often_as_the_masked_model_gives_them(runs: Runs, engine: str) -> None:
    """Drafts that are right, wrong, forbidden or forced change no frequency."""
    answers = runs.frequent(engine)
    assert engine == "none" or runs.of[engine][1].counts.proposed > 100
    expected = distribution(runs, tuple(answers[0].prompt_ids))
    counts = Counter(tuple(answer.token_ids) for answer in answers)
    assert counts.keys() <= expected.keys() and abs(sum(expected.values()) - 1) < 1e-5
    outputs = sorted(expected)
    wanted = np.array([expected[output] * MANY for output in outputs])
    assert (wanted >= 5).sum() > 5
    assert chi_square_is_usual(np.array([counts[output] for output in outputs]), wanted)


@functools.cache
def distribution(runs: Runs, prompt_ids: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Every output with its probability, by transformers and without an automaton."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(runs.model, dtype=torch.float32)
    texts = {choice.encode() for choice in CHOICES}
    found: dict[tuple[int, ...], float] = {}

    @torch.inference_mode()
    def go_on(tokens: tuple[int, ...], text: bytes, probability: float) -> None:
        logits = model(torch.tensor([[*prompt_ids, *tokens]])).logits[0, -1]
        longer = {
            token_id: text + more
            for token_id in range(runs.vocabulary.size)
            if (more := runs.vocabulary.token_bytes(token_id)) and any(one.startswith(text + more) for one in texts)
        }
        ends = sorted({*ENDS, USERS_STOP}) if text in texts else []
        allowed = [*longer, *ends]
        for token_id, share in zip(allowed, logits[allowed].softmax(-1).tolist(), strict=True):
            if token_id in ends:
                found[(*tokens, token_id)] = probability * share
            else:
                go_on((*tokens, token_id), longer[token_id], probability * share)

    go_on((), b"", 1.0)
    return found

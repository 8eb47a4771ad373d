"""The adapter for mlx-lm: text functions, drafts and batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import batch_generate, generate, load, stream_generate
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from grammar_workers import compile_grammar
from tests.engines.conftest import TEXTS
from tests.engines.runners import END, FOLDER, PERSON, Mlx, Recorder
from turnstile_llm import Grammar, Regex, apply_bitmask, compile
from turnstile_llm.mlx import LogitsProcessor

Prompt = Callable[[str], list[int]]


@pytest.fixture
def grammar(mlx: Mlx) -> Grammar:
    return compile(PERSON, mlx.vocabulary)


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def test_text_functions(mlx: Mlx, grammar: Grammar, prompt: Prompt) -> None:
    processors = [LogitsProcessor(grammar), *make_logits_processors(repetition_penalty=1.2)]
    for temperature in (0.0, 1.0):
        settings = {"max_tokens": 80, "logits_processors": processors, "sampler": make_sampler(temp=temperature)}
        assert is_person(generate(mlx.model, mlx.tokenizer, prompt(TEXTS[0]), **settings))
        *_, last = stream_generate(mlx.model, mlx.tokenizer, prompt(TEXTS[1]), **settings)
        assert last.finish_reason == "stop"


def test_a_prompt_cache(mlx: Mlx, grammar: Grammar, prompt: Prompt) -> None:
    """With a cache, the processor gets only the part of the prompt that is not cached."""
    cache, processor = make_prompt_cache(mlx.model), LogitsProcessor(grammar)
    for text in (*TEXTS, TEXTS[0]):
        settings = {"max_tokens": 80, "logits_processors": [processor], "prompt_cache": cache}
        assert is_person(generate(mlx.model, mlx.tokenizer, prompt(text), **settings))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_drafts(temperature: float, mlx: Mlx, grammar: Grammar, prompt: Prompt, tokenizer: Any) -> None:
    recorder, ids = Recorder(LogitsProcessor(grammar)), prompt(TEXTS[0])
    output = mlx.generate(ids, recorder, 80, temperature, 3, draft=True)
    assert is_person(tokenizer.decode(output)) and output[-1] == END
    fsm = compile_grammar({"type": "json_schema", "schema": PERSON}, mlx.vocabulary)
    # Only the last token of the prompt is passed together with drafts.
    assert recorder.compared(fsm, 1) == (len(recorder.calls), 0) and len(recorder.calls) > len(output)
    if not temperature:
        assert output == mlx.generate(ids, LogitsProcessor(grammar), 80, 0.0, 0)


def test_one_object_for_a_batch(mlx: Mlx, grammar: Grammar, prompt: Prompt) -> None:
    """Also rows with equal prompts, whose outputs differ."""
    prompts = [prompt(text) for text in (*TEXTS, TEXTS[0], "Repeat: the cat sat", *[TEXTS[1]] * 20)]
    mx.random.seed(0)
    settings = {"max_tokens": 80, "logits_processors": [LogitsProcessor(grammar)], "sampler": make_sampler(temp=2.0)}
    texts = batch_generate(mlx.model, mlx.tokenizer, prompts, **settings).texts
    assert len(texts) == 24 and all(map(is_person, texts)) and len(set(texts[4:])) > 5


def test_a_grammar_for_each_row_or_none(mlx: Mlx, grammar: Grammar, prompt: Prompt, tokenizer: Any) -> None:
    repeat = prompt("Repeat: the cat sat")
    digits = compile(Regex("[0-9]{5}"), mlx.vocabulary)
    recorder = Recorder(LogitsProcessor(digits))
    batch = BatchGenerator(mlx.model, stop_tokens=[[END]])
    processors = [[LogitsProcessor(grammar)], None, [recorder]]
    rows = batch.insert([prompt(TEXTS[0]), repeat, repeat], [80] * 3, logits_processors=processors)
    outputs: dict[int, list[int]] = {row: [] for row in rows}
    while responses := batch.next_generated():
        for response in responses:
            outputs[response.uid].append(response.token)
    batch.close()
    person, free, number = (tokenizer.decode(outputs[row]) for row in rows)
    assert is_person(person) and free == "the cat sat" and number.isdigit() and len(number) == 5
    fsm = compile_grammar({"type": "regex", "pattern": "[0-9]{5}"}, mlx.vocabulary)
    assert recorder.compared(fsm, len(repeat)) == (len(recorder.calls), 0)


def test_the_mask_of_an_array() -> None:
    masked = np.array(apply_bitmask(mx.zeros((1, 33)), np.array([[0b101, 1]], np.int32)))
    assert np.flatnonzero(masked[0] == 0).tolist() == [0, 2, 32] and np.isneginf(masked).sum() == 30


def test_logits_keep_their_type(grammar: Grammar, prompt: Prompt) -> None:
    model, tokenizer = load(str(FOLDER))[:2]
    types: list[Any] = []

    def note(tokens: mx.array, logits: mx.array) -> mx.array:
        types.append(logits.dtype)
        return logits

    processors = [note, LogitsProcessor(grammar), note]
    assert is_person(generate(model, tokenizer, prompt(TEXTS[0]), max_tokens=80, logits_processors=processors))
    assert set(types) == {mx.bfloat16}

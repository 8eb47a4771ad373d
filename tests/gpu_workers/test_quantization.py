"""A quantised model runs like any other, and stays close to the one it was made from."""

from __future__ import annotations

import json

import jsonschema
import torch
from torch import nn

from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import load, prepare
from gpu_workers.model.quantization import Int8Linear, quantize_int8
from grammar_workers import compile_grammar
from tests.gpu_workers.support import (
    CONFIGS,
    byte_tokenizer,
    byte_vocabulary,
    engine_config,
    grammars,
    no_grammars,
    request,
    run,
    tiny_model,
)
from tests.gpu_workers.test_greedy_equals_generate import reference


def test_a_row_is_off_by_half_a_step_of_its_own_scale_at_most() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(32, 16)
    quantised = Int8Linear(linear)
    restored = quantised.weight * quantised.scale[:, None]
    assert ((restored - linear.weight).abs() <= quantised.scale[:, None] * 0.5001).all()
    inputs = torch.randn(5, 32)
    torch.testing.assert_close(quantised(inputs), nn.functional.linear(inputs, restored, linear.bias))


def test_an_int8_model_decodes_greedily_as_generate_does() -> None:
    model = tiny_model(CONFIGS["llama"]())
    quantize_int8(model)
    prompts = [[7, 8, 9] * 5, [1], list(range(40))]
    expected = [reference(model, prompt, 20) for prompt in prompts]
    assert sum(isinstance(module, Int8Linear) for module in model.modules()) == 14
    config = engine_config()
    engine = Engine(prepare(model, byte_tokenizer(), byte_vocabulary(), config), config, no_grammars)
    try:
        results = run(engine, *(request(prompt, temperature=0, max_tokens=20) for prompt in prompts))
    finally:
        engine.close()
    assert [result.token_ids for result in results] == expected


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_an_int8_model_obeys_a_compiled_schema_at_any_temperature() -> None:
    """`test_dtypes` judges it token by token; here every mask comes from a schema over a real vocabulary."""
    config = EngineConfig(device="cpu", threads=1, max_length=256, slots=4, quantization="int8")
    loaded = load("models/turnstile-tiny", config)
    assert any(isinstance(module, Int8Linear) for module in loaded.model.modules())
    fsm = compile_grammar({"type": "json_schema", "schema": SCHEMA}, loaded.vocabulary)
    prompts = ["Extract the person: Alice Moore is 34 years old.", "Hello", "{"]
    engine = Engine(loaded, config, grammars(person=fsm))
    try:
        results = run(
            engine,
            *(
                request(prompt, grammar="person", temperature=heat, seed=1, max_tokens=80, finish_within_budget=True)
                for prompt in prompts
                for heat in (0, 1, 2)
            ),
        )
    finally:
        engine.close()
    for result in results:
        assert result.finish_reason == "stop"
        jsonschema.validate(json.loads(result.text), SCHEMA)

"""A quantised model runs like any other, and stays close to the one it was made from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig
from torchao.utils import TorchAOBaseTensor
from transformers import AutoModelForCausalLM, TorchAoConfig

from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import UnsupportedModelError, load, prepare
from gpu_workers.model.quantization import quantize_int8
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


def test_all_weights_but_the_output_projections_are_in_8_bits() -> None:
    model = quantised_model()
    kept = [module for module in model.modules() if isinstance(module, nn.Linear) and not is_quantised(module)]
    assert kept == [model.get_output_embeddings()]
    assert sum(is_quantised(module) for module in model.modules()) == 14
    # Half a step of a row's own scale at most.
    before, after = (one.model.layers[0].mlp.up_proj.weight for one in (tiny_model(CONFIGS["llama"]()), model))
    step = before.abs().amax(1, keepdim=True) / 127
    assert ((after.dequantize() - before).abs() <= step * 0.51).all()


def test_an_int8_model_decodes_greedily_as_generate_does() -> None:
    model = quantised_model()
    prompts = [[7, 8, 9] * 5, [1], list(range(40))]
    expected = [reference(model, prompt, 20) for prompt in prompts]
    assert decoded(model, prompts) == expected


def test_a_checkpoint_of_torchao_is_loaded_as_it_is(tmp_path: Path) -> None:
    """Saved by transformers, as published ones are."""
    tiny = "models/turnstile-tiny"
    saved = TorchAoConfig(Int8WeightOnlyConfig())
    model = AutoModelForCausalLM.from_pretrained(tiny, quantization_config=saved, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    for file in Path(tiny).glob("*"):
        if not (tmp_path / file.name).exists() and file.name != "model.safetensors":
            shutil.copy(file, tmp_path)
    config = EngineConfig(device="cpu", threads=1, max_model_len=256, max_num_seqs=2)
    loaded = load(str(tmp_path), config)
    assert any(is_quantised(module) for module in loaded.model.modules())
    prompts = [[20], [300, 301], list(range(100, 130))]
    judge = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    expected = [
        judge.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert max(map(len, expected)) == 20
    engine = Engine(loaded, config, no_grammars)
    try:
        results = run(engine, *(request(prompt, temperature=0, max_tokens=20) for prompt in prompts))
        assert [result.token_ids for result in results] == expected
    finally:
        engine.close()
    with pytest.raises(UnsupportedModelError, match="quantised already, by torchao"):
        load(str(tmp_path), config.model_copy(update={"quantization": "int8"}))


def test_float64_is_not_quantised() -> None:
    with pytest.raises(ValidationError, match="not for dtype: float64"):
        engine_config(quantization="int8", dtype="float64")


def quantised_model() -> Any:
    model = tiny_model(CONFIGS["llama"]()).float()
    quantize_int8(model)
    return model


def is_quantised(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and isinstance(module.weight, TorchAOBaseTensor)


def decoded(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    config = engine_config()
    engine = Engine(prepare(model, byte_tokenizer(), byte_vocabulary(), config), config, no_grammars)
    try:
        return [
            result.token_ids
            for result in run(engine, *(request(prompt, temperature=0, max_tokens=20) for prompt in prompts))
        ]
    finally:
        engine.close()


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_an_int8_model_obeys_a_compiled_schema_at_any_temperature() -> None:
    """`test_dtypes` judges it token by token; here every mask comes from a schema over a real vocabulary."""
    config = EngineConfig(device="cpu", threads=1, max_model_len=256, max_num_seqs=4, quantization="int8")
    loaded = load("models/turnstile-tiny", config)
    assert any(is_quantised(module) for module in loaded.model.modules())
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

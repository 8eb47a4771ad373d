"""What a model must be to be served, and what is checked before it is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
)

from gpu_workers.config import EngineConfig
from gpu_workers.model.loader import UnsupportedModelError, load, prepare, token_limit
from tests.gpu_workers.support import CONFIGS, END, WIDTH, byte_tokenizer, byte_vocabulary, engine_config, tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": WIDTH,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "eos_token_id": END,
    "pad_token_id": None,
    "bos_token_id": None,
}


def prepared(config: PretrainedConfig, **settings: Any) -> Any:
    return prepare(tiny_model(config), byte_tokenizer(), byte_vocabulary(), engine_config(**settings))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MambaConfig(vocab_size=WIDTH, hidden_size=32, num_hidden_layers=2, state_size=4), "linear_attention"),
        (BloomConfig(vocab_size=WIDTH, hidden_size=32, n_layer=2, n_head=4), "bloom"),
    ],
)
def test_models_the_engine_cannot_run_are_refused(config: PretrainedConfig, reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        prepared(config)


def test_windows_are_checked_and_left_as_they_were() -> None:
    """A probe is shorter than real windows and makes them small: one that a layer keeps to itself is found."""
    loaded = prepared(MistralConfig(**SIZES, sliding_window=32))
    assert loaded.model.config.sliding_window == 32

    class Secretive(type(loaded.model.model.layers[0].self_attn)):  # type: ignore[misc]
        """Says nothing about its window, as models may whose masks are all they need."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if self.config._attn_implementation == "turnstile_slots":
                self.config = copy.copy(self.config)
                self.config.sliding_window = None
            return super().forward(*args, **kwargs)

    model = tiny_model(MistralConfig(**SIZES, sliding_window=32))
    model.model.layers[1].self_attn.__class__ = Secretive
    with pytest.raises(UnsupportedModelError, match="not plain causal attention"):
        prepare(model, byte_tokenizer(), byte_vocabulary(), engine_config())


def test_attention_that_deviates_unannounced_is_caught() -> None:
    """The comparison with the model's own attention does not rely on any configuration key."""
    model = tiny_model(CONFIGS["llama"]())
    model.model.layers[1].self_attn.scaling *= 2
    prepare(model, byte_tokenizer(), byte_vocabulary(), engine_config())  # honoured: scaling is passed on

    model = tiny_model(CONFIGS["llama"]())
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def deviating(*args: Any, **kwargs: Any) -> Any:
        output, weights = forward(*args, **kwargs)
        return (output * 1.01 if model.config._attn_implementation == "sdpa" else output), weights

    attention.forward = deviating
    with pytest.raises(UnsupportedModelError, match="not plain causal attention"):
        prepare(model, byte_tokenizer(), byte_vocabulary(), engine_config())


@pytest.mark.parametrize("kind", sorted(set(CONFIGS) - {"gemma2"}))  # which caps its logits
def test_a_linear_head_is_separable(kind: str) -> None:
    assert prepared(CONFIGS[kind]()).head.separable


def test_a_head_that_does_more_than_a_linear_map_is_not() -> None:
    config = Gemma2Config(**SIZES, sliding_window=4096, attn_logit_softcapping=None, final_logit_softcapping=5.0)
    loaded = prepared(config)
    assert not loaded.head.separable


def test_the_cache_is_left_empty_and_lengths_are_the_smaller() -> None:
    loaded = prepared(CONFIGS["qwen3"](), max_model_len=4096)
    assert loaded.max_model_len == loaded.pool.length == CONFIGS["qwen3"]().max_position_embeddings
    assert not any(layer.any() for layer in (*loaded.pool.keys, *loaded.pool.values))


def test_ids_beyond_the_tokenizer_do_not_exist() -> None:
    assert token_limit(byte_tokenizer(), WIDTH) == END + 1
    assert token_limit(byte_tokenizer(), 100) == 100


@pytest.mark.parametrize(
    ("saved", "asked", "expected"),
    [
        (torch.bfloat16, "auto", torch.float32),
        (torch.float64, "auto", torch.float64),
        (torch.float32, "bfloat16", torch.bfloat16),
    ],
)
def test_a_saved_model_is_loaded_in_the_right_type(
    tmp_path: Path, saved: torch.dtype, asked: str, expected: torch.dtype
) -> None:
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES), dtype=saved).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    loaded = load(str(tmp_path), EngineConfig(dtype=asked, max_num_seqs=2))  # type: ignore[arg-type]
    assert loaded.model.dtype == loaded.pool.keys[0].dtype == expected
    assert loaded.vocabulary.eos_token_ids == (END,)
    assert loaded.head.separable


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slotz": 3}, "slotz"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": 600}, "max_num_batched_tokens"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_settings_are_checked_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineConfig.model_validate(settings)

"""Random Llamas made where they run, by shape, and the vocabularies they have."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from benchmarks.vocabulary_tokenizer import VocabularyTokenizer
from gpu_workers.config import EngineConfig
from gpu_workers.engine.scheduler import GROUP_TOKENS
from gpu_workers.model.loader import LoadedModel
from gpu_workers.speculative.eagle_drafter import EagleDrafter
from gpu_workers.speculative.eagle_head import EagleHead
from grammar_workers import Vocabulary

_END = 2
_SPECIAL = 3
_WORKSPACE_NBYTES = 48
"""What drawing needs for one logit at its peak: scores, their order, float64 sums, copies."""
_SPARE_NBYTES = 3 << 30
"""Captured graphs, tables of automata, workspaces of libraries."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's size."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def parameters(self, tokens: int) -> int:
        """How many numbers the weights have; embedding and head are not shared."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + 2 * tokens * self.hidden

    def nbytes(self, tokens: int, rows: int, length: int, itemsize: int) -> int:
        """Memory for weights, keys and values of `rows` sequences of `length` tokens, and a step's draws."""
        positions = (rows + 1) * length * 2 * self.layers * self.kv_heads * self.head_dim
        return (self.parameters(tokens) + positions) * itemsize + rows * GROUP_TOKENS * tokens * _WORKSPACE_NBYTES


SHAPES = {
    "8b": Shape(4096, 14336, 32, 32, 8),
    "3b": Shape(3072, 8192, 28, 24, 8),
    "1b": Shape(2048, 8192, 16, 32, 8),
    "toy": Shape(64, 96, 2, 4, 2),
}
"""Those of Llama 3 by name, largest first, and one for tests."""


def largest_fitting(tokens: int, rows: int, length: int, memory: int) -> str:
    """The largest shape whose bfloat16 run fits into `memory` bytes; the smallest of Llama's if none does."""
    names = [name for name in SHAPES if name != "toy"]
    fitting = (name for name in names if SHAPES[name].nbytes(tokens, rows, length, 2) + _SPARE_NBYTES <= memory)
    return next(fitting, names[-1])


def random_llama(shape: Shape, tokens: int, length: int, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Random weights, drawn on `device`: nothing is made on the host and copied."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=length,
        bos_token_id=1,
        eos_token_id=_END,
        tie_word_embeddings=False,
    )
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def random_eagle(target: LoadedModel, config: EngineConfig) -> EagleDrafter:
    """An EAGLE-3 head with random weights that proposes every second token."""
    own = target.model.config
    kept = target.head.token_limit // 2
    settings = LlamaConfig(
        hidden_size=own.hidden_size,
        intermediate_size=own.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=own.num_attention_heads,
        num_key_value_heads=own.num_key_value_heads,
        vocab_size=own.vocab_size,
        draft_vocab_size=kept,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1]},
    )
    head = EagleHead(settings, own.num_hidden_layers, own.hidden_size, target.model.get_input_embeddings())
    head.d2t.copy_(torch.arange(kept))
    return EagleDrafter(head.eval(), target, config)


@dataclass(frozen=True, slots=True)
class NamedVocabulary:
    """A vocabulary and how texts are spelled in it. `source`: where it is from, for the table."""

    vocabulary: Vocabulary
    spell: Callable[[str], list[int]]
    source: str


_PUBLIC = {"32k": ("sentencepiece", "Mistral's SentencePiece"), "131k": ("tekken", "Mistral's Tekken")}
_MADE = {"1k": 1 << 10, "4k": 1 << 12, "32k": 1 << 15, "131k": 1 << 17}
VOCABULARIES = tuple(_MADE)


def named_vocabulary(name: str) -> NamedVocabulary:
    """One of `VOCABULARIES`: a public one where the package that holds it is installed, else one made up."""
    if name in _PUBLIC and all(
        importlib.util.find_spec(one) for one in ("mistral_common", "sentencepiece", "tiktoken")
    ):
        from benchmarks.vocabularies import named_encoder
        from benchmarks.vocabularies import named_vocabulary as public_vocabulary

        inner, source = _PUBLIC[name]
        return NamedVocabulary(public_vocabulary(inner), named_encoder(inner), source)
    return made_vocabulary(_MADE[name])


@functools.cache
def made_vocabulary(tokens: int) -> NamedVocabulary:
    """Every byte, then words, numbers and punctuation that no two tokens share; token 2 ends."""
    rng = np.random.default_rng(tokens)
    known = {bytes([byte]): None for byte in range(256)} | dict.fromkeys([b'", "', b'": "', b'": ', b'"}'])
    letters, rare = "etaoinshrdlucmfwypvbgkjqxz", "ETAOINSHRDLU0123456789.,;:-_/()"
    while len(known) < tokens - _SPECIAL:
        length = int(rng.integers(2, 10))
        word = "".join(rng.choice(list(letters if rng.random() < 0.85 else rare), length))
        known[(" " + word if rng.random() < 0.4 else word).encode()] = None
    spelled = list(known)
    ids = {token: _SPECIAL + i for i, token in enumerate(spelled)}
    longest = max(map(len, spelled))

    def spell(text: str) -> list[int]:
        data, token_ids = text.encode(), []
        while data:
            size = next(size for size in range(min(longest, len(data)), 0, -1) if data[:size] in ids)
            token_ids.append(ids[data[:size]])
            data = data[size:]
        return token_ids

    vocabulary = Vocabulary([*[None] * _SPECIAL, *spelled], [_END])
    return NamedVocabulary(vocabulary, spell, "made up")


def as_tokenizer(vocabulary: NamedVocabulary) -> Any:
    """`vocabulary` where a transformers tokenizer is expected."""
    return VocabularyTokenizer(vocabulary.vocabulary, vocabulary.spell)

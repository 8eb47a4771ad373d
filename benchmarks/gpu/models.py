"""Llamas with random weights in several sizes, and vocabularies for them. Weights are made on the target device."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from gpu_workers.config import EngineConfig
from gpu_workers.engine.scheduler import GROUP_TOKENS
from gpu_workers.model.loader import LoadedModel, prepare
from gpu_workers.speculative.eagle_drafter import EagleDrafter
from gpu_workers.speculative.eagle_head import EagleHead
from grammar_workers import Vocabulary

_END = 2
_SPECIAL = 3
# Peak memory of sampling for one logit: scores, their order, float64 sums, copies.
_WORKSPACE_NBYTES = 48
# Memory for captured graphs, tables of automata and workspaces of libraries.
_SPARE_NBYTES = 3 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a Llama.

    Attributes:
        hidden: Hidden size.
        intermediate: Width of the feed-forward network.
        layers: Number of layers.
        heads: Number of attention heads.
        kv_heads: Number of key and value heads.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.hidden // self.heads

    def parameters(self, tokens: int) -> int:
        """Return the number of weights. The input and output embeddings are separate.

        Args:
            tokens: Number of tokens of the vocabulary.
        """
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + 2 * tokens * self.hidden

    def nbytes(self, tokens: int, rows: int, length: int, itemsize: int) -> int:
        """Return the memory of weights, KV cache and sampling, in bytes.

        Args:
            tokens: Number of tokens of the vocabulary.
            rows: Number of sequences.
            length: Number of tokens of a sequence.
            itemsize: Bytes of a weight, key or value.
        """
        positions = (rows + 1) * length * 2 * self.layers * self.kv_heads * self.head_dim
        return (self.parameters(tokens) + positions) * itemsize + rows * GROUP_TOKENS * tokens * _WORKSPACE_NBYTES

    def config(self, tokens: int, length: int, **more: Any) -> LlamaConfig:
        """Return the model configuration of this size.

        Args:
            tokens: Number of tokens of the vocabulary.
            length: Maximum number of positions.
            **more: Further fields of the configuration.
        """
        return LlamaConfig(
            vocab_size=tokens,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=length,
            bos_token_id=1,
            eos_token_id=_END,
            tie_word_embeddings=False,
            **more,
        )


# The sizes of Llama 3 by name, largest first; "small", which one CPU core can run; "toy" for tests.
SHAPES = {
    "8b": Shape(4096, 14336, 32, 32, 8),
    "3b": Shape(3072, 8192, 28, 24, 8),
    "1b": Shape(2048, 8192, 16, 32, 8),
    "small": Shape(256, 688, 4, 8, 4),
    "toy": Shape(64, 96, 2, 4, 2),
}
LLAMAS = ("8b", "3b", "1b")


def largest_fitting(tokens: int, rows: int, length: int, memory: int) -> str:
    """Return the largest size of Llama 3 that fits into the memory in bfloat16.

    Args:
        tokens: Number of tokens of the vocabulary.
        rows: Number of sequences.
        length: Number of tokens of a sequence.
        memory: Device memory, in bytes.

    Returns:
        A key of `SHAPES`; the smallest size of Llama 3 if none fits.
    """
    fitting = (name for name in LLAMAS if SHAPES[name].nbytes(tokens, rows, length, 2) + _SPARE_NBYTES <= memory)
    return next(fitting, LLAMAS[-1])


def random_llama(shape: Shape, tokens: int, length: int, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a Llama with random weights. They are made on the device, so no weights are copied from the host.

    Args:
        shape: Size of the model.
        tokens: Number of tokens of the vocabulary.
        length: Maximum number of positions.
        dtype: Type of the weights.
        device: Device of the model.
    """
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(shape.config(tokens, length), dtype=dtype, attn_implementation="sdpa")
        return model.eval()


def random_eagle(target: LoadedModel, config: EngineConfig) -> EagleDrafter:
    """Return a drafter with a random EAGLE-3 head, which can draft every second token of the target's vocabulary.

    Args:
        target: The target model.
        config: Settings of the engine.
    """
    own = target.model.config
    kept = target.head.token_limit // 2
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
    settings = LlamaConfig.from_dict(
        own.to_dict() | {"num_hidden_layers": 1, "draft_vocab_size": kept, "eagle_config": layers}
    )
    head = EagleHead(settings, own.num_hidden_layers, own.hidden_size, target.model.get_input_embeddings())
    head.d2t.copy_(torch.arange(kept))
    return EagleDrafter(head.eval(), target, config)


@dataclass(frozen=True, slots=True)
class NamedVocabulary:
    """A vocabulary with a function that tokenizes. It has the methods that an engine calls on a tokenizer.

    Attributes:
        vocabulary: Bytes of the tokens.
        spell: Function from a text to its token IDs.
        source: Origin of the vocabulary, for the table.
    """

    vocabulary: Vocabulary
    spell: Callable[[str], list[int]]
    source: str

    def get_vocab(self) -> dict[str, int]:
        """Return the ID of each token by its name. The name of a token is its ID in decimal digits."""
        return {str(token_id): token_id for token_id in range(self.vocabulary.size)}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenize a text.

        Args:
            text: The text.
            add_special_tokens: Must be false.

        Returns:
            Token IDs.
        """
        assert not add_special_tokens
        return self.spell(text)


_PUBLIC = {"32k": ("sentencepiece", "Mistral's SentencePiece"), "131k": ("tekken", "Mistral's Tekken")}
_MADE = {"1k": 1 << 10, "4k": 1 << 12, "32k": 1 << 15, "131k": 1 << 17}
VOCABULARIES = tuple(_MADE)


def named_vocabulary(name: str) -> NamedVocabulary:
    """Return a vocabulary by its name.

    Args:
        name: One of `VOCABULARIES`.

    Returns:
        Mistral's vocabulary of this size, if there is one and its packages are installed; otherwise an artificial one.
    """
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
    """Return an artificial vocabulary: special tokens, all single bytes, JSON punctuation and random words.

    Token 2 is the end token.

    Args:
        tokens: Number of tokens.
    """
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


def loaded(model: PreTrainedModel, named: NamedVocabulary, config: EngineConfig) -> LoadedModel:
    """Prepare a model for an engine.

    Args:
        model: The model.
        named: Its vocabulary.
        config: Settings of the engine.

    Returns:
        The model with its KV cache, ready to run.
    """
    model.set_attn_implementation("sdpa")  # what the engine compares itself with
    tokenizer: Any = named
    return prepare(model, tokenizer, named.vocabulary, config)

"""The draft head of EAGLE-3 in its published layout, read from safetensors (Li et al. 2025, arXiv:2503.01840).

A single layer drafts from the target's own hidden states: `fc` makes one *feature* of those before three of its layers,
and the layer sees, for each token, its embedding beside the feature of the token before it.

    input      feature of t0, t1     feature of t1, t2     output for t2, d1     output for d1, d2
    output        t2?                   d1                    d2                    d3

What the layer gives stands in for the feature of a draft, which the target has not seen. Its own output projection has
only the tokens that are worth proposing; `d2t` says how far each one's id is from its column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, PretrainedConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.utils.hub import cached_file

from gpu_workers.model.attention import AttentionPlan, slot_attention
from gpu_workers.model.loader import UnsupportedModelError

Attend = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""Attention: a module, query [B, heads, T, D], keys and values [B, kv_heads, T, D] -> [B, T, heads * D]."""

_UNKNOWN = ("fc_norm", "norm_before_fc", "norm_output")
"""Settings of later variants that change the arithmetic, and that this head does not have."""
_EMBEDDINGS = "embed_tokens.weight"


class EagleAttention(nn.Module):
    """Attention whose input is twice as wide as its output: an embedding beside a feature."""

    layer_idx = 0

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, heads, kv_heads = 2 * config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        bias = bool(config.attention_bias)
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, inputs: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        shape = (*inputs.shape[:-1], -1, self.head_dim)
        query, key, value = (
            project(inputs).view(shape).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *rotation)
        return self.o_proj(attend(self, query, key, value))


class EagleLayer(nn.Module):
    """The only layer. `norm_before_residual`: the normed feature, not the feature, is what the layer adds to."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            LlamaRMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(3)
        )
        self.self_attn = EagleAttention(config)
        self.mlp = LlamaMLP(config)
        self._norm_before_residual = bool(getattr(config, "norm_before_residual", False))

    def forward(self, embedded: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        normed = self.hidden_norm(features)
        residual = normed if self._norm_before_residual else features
        inputs = torch.cat([self.input_layernorm(embedded), normed], -1)
        hidden = residual + self.self_attn(inputs, rotation, attend)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class EagleHead(nn.Module):
    """An EAGLE-3 head of a target with `target_layers` layers and hidden states of `target_width`.

    `embeddings`: the target's, which the head uses unless its file has its own. Raises UnsupportedModelError.
    """

    def __init__(self, config: LlamaConfig, target_layers: int, target_width: int, embeddings: nn.Module) -> None:
        super().__init__()
        _check(config, target_layers)
        self.vocabulary = config.vocab_size
        self.kv_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self.head_dim = int(config.head_dim or config.hidden_size // config.num_attention_heads)
        self.layers = feature_layers(config, target_layers)
        """Before which of the target's layers the hidden states are taken that make a feature."""
        self.hidden_size = hidden = config.hidden_size
        tokens = getattr(config, "draft_vocab_size", None) or config.vocab_size
        self.fc = nn.Linear(len(self.layers) * target_width, hidden, bias=False)
        self.midlayer = EagleLayer(config)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, tokens, bias=False)
        self.register_buffer("d2t", torch.zeros(tokens, dtype=torch.int64))
        self._rotary = LlamaRotaryEmbedding(config)
        self._embed = [embeddings]  # in a list: it is the target's, not a part of this module

    @property
    def token_ids(self) -> Tensor:
        """The target's ids of the columns, int64 [k]."""
        offsets: Tensor = self.d2t  # type: ignore[assignment]
        return torch.arange(len(offsets), device=offsets.device) + offsets

    def use_embeddings(self, weight: Tensor) -> None:
        """Embeddings of the head's own, [V, H]."""
        where: Any = self._embed[0].weight.device
        self._embed = [nn.Embedding.from_pretrained(weight.to(where))]

    def features(self, hidden_states: list[Tensor]) -> Tensor:
        """The features of tokens: the target's hidden states [.., width] before each of `layers` -> [.., H]."""
        return self.fc(torch.cat(hidden_states, -1))

    def forward(self, token_ids: Tensor, features: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """token_ids int64 [B, T], each with the feature [B, T, H] of the token before it -> outputs [B, T, H].

        `positions` int64 [B, T] are those of the tokens before, as published heads are trained.
        """
        embedded = self._embed[0](token_ids).to(features.dtype)
        return self.midlayer(embedded, features, self._rotary(features, positions), attend)

    def over_slots(self, token_ids: Tensor, features: Tensor, plan: AttentionPlan) -> Tensor:
        """The same for a step's tokens [T] and features [T, H] -> [T, H], over the slots of `plan`.

        Where the target overflowed, that row's request ends; what is in the pool, others look at as well.
        """
        features = torch.where(features.isfinite(), features, 0)
        return self(token_ids[None], features[None], plan.positions[None], _slots_attend(plan))[0]

    def logits(self, outputs: Tensor) -> Tensor:
        """Outputs [.., H] -> [.., k]: of the tokens `token_ids`, two after the feature's."""
        return self.lm_head(self.norm(outputs))


def _slots_attend(plan: AttentionPlan) -> Attend:
    """The head's attention over the slots of `plan`."""

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, _ = slot_attention(module, query, key, value, None, attention_plan=plan)
        return output.flatten(-2)

    return attend


def feature_layers(config: PretrainedConfig, target_layers: int) -> list[int]:
    """The layers that the configuration names, or the published choice: one early, one in the middle, one late."""
    nested = getattr(config, "eagle_config", None) or {}
    key = "eagle_aux_hidden_state_layer_ids"
    named = getattr(config, key, None) or nested.get(key)
    layers = list(named or (2, target_layers // 2, target_layers - 3))
    if layers != sorted(set(layers)) or not all(0 <= layer < target_layers for layer in layers):
        raise UnsupportedModelError(f"{key}: {layers} are not ascending layers of a model with {target_layers}")
    return layers


def load_eagle_head(name: str, target_layers: int, target_width: int, embeddings: nn.Module) -> EagleHead:
    """Reads the head in the folder or of the Hugging Face id `name`. Raises UnsupportedModelError, by tensor name."""
    settings, _ = PretrainedConfig.get_config_dict(name)
    file = cached_file(name, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if not settings or file is None:
        raise UnsupportedModelError(f"{name}: no config.json and model.safetensors of an EAGLE-3 head")
    settings.pop("model_type", None)
    head = EagleHead(LlamaConfig.from_dict(settings), target_layers, target_width, embeddings)
    read_weights(head, load_file(file))
    return head.eval()


def read_weights(head: EagleHead, weights: dict[str, Tensor]) -> None:
    """Takes the tensors of a file. Raises UnsupportedModelError naming what is missing, unknown or of another shape."""
    weights = dict(weights)
    expected: dict[str, Any] = {key: tuple(tensor.shape) for key, tensor in head.state_dict().items()}
    known = weights.pop("t2d", None)
    own = weights.pop(_EMBEDDINGS, None)
    if head.lm_head.out_features == head.vocabulary:
        weights.setdefault("d2t", torch.zeros(head.vocabulary, dtype=torch.int64))
    if missing := sorted(expected.keys() - weights.keys()):
        raise UnsupportedModelError(f"EAGLE-3 head: {', '.join(missing)} missing")
    if unknown := sorted(weights.keys() - expected.keys()):
        raise UnsupportedModelError(f"EAGLE-3 head: {', '.join(unknown)} not known")
    if own is not None:
        weights[_EMBEDDINGS], expected[_EMBEDDINGS] = own, (head.vocabulary, head.hidden_size)
    for key, tensor in weights.items():
        if tuple(tensor.shape) != expected[key]:
            raise UnsupportedModelError(
                f"EAGLE-3 head: {key} has shape {list(tensor.shape)}, not {list(expected[key])}"
            )
    if own is not None:
        head.use_embeddings(weights.pop(_EMBEDDINGS))
    head.load_state_dict(weights)
    _check_ids(head, known)


def _check_ids(head: EagleHead, known: Tensor | None) -> None:
    """`d2t` must give ascending ids of the vocabulary, and `t2d`, bool [V], the same ones."""
    ids, tokens = head.token_ids, head.vocabulary
    if not len(ids) or ids[0] < 0 or ids[-1] >= tokens or bool((ids[1:] <= ids[:-1]).any()):
        raise UnsupportedModelError(f"EAGLE-3 head: d2t does not give ascending token ids from 0 to {tokens - 1}")
    if known is not None and known.nonzero()[:, 0].tolist() != ids.tolist():
        raise UnsupportedModelError("EAGLE-3 head: d2t and t2d name different tokens")


def _check(config: LlamaConfig, target_layers: int) -> None:
    nested = getattr(config, "eagle_config", None) or {}
    for key in _UNKNOWN:
        if getattr(config, key, None) or nested.get(key):
            raise UnsupportedModelError(f"EAGLE-3 head: {key} is not supported")
    if not nested.get("use_aux_hidden_state", True):
        raise UnsupportedModelError("EAGLE-3 head: use_aux_hidden_state: false is not supported")
    if config.num_hidden_layers != 1:
        raise UnsupportedModelError(f"EAGLE-3 head: {config.num_hidden_layers} layers, not 1")

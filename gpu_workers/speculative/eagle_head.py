"""The EAGLE-3 draft head in its published layout, read from safetensors (Li et al. 2025, arXiv:2503.01840).

The head is a single layer that drafts from hidden states of the target model. Its linear map `fc` turns a token's
hidden states before three of the target's layers into one vector, the *feature*. The layer's input for a token is the
embedding of the token and the feature of the token before it, concatenated. Its output predicts the next token.

A draft has no feature, because the target model has not processed it. The layer's output for the token before the draft
takes the place of the feature. With the tokens t0, t1, t2 and the drafts d1, d2, d3:

    token               t1             t2             d1               d2
    vector before it    feature(t0)    feature(t1)    output for t2    output for d1
    predicts            (t2)           d1             d2               d3

The output projection covers only tokens that are worth proposing: column i is the token ID `i + d2t[i]`.
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

# Attention: module, query [B, heads, T, D], keys and values [B, kv_heads, T, D] -> [B, T, heads * D].
Attend = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]

# Settings of later variants that change the arithmetic. This implementation does not support them.
_UNKNOWN = ("fc_norm", "norm_before_fc", "norm_output")
_EMBEDDINGS = "embed_tokens.weight"


class EagleAttention(nn.Module):
    """Attention of an EAGLE-3 head. Its input is twice as wide as its output: an embedding and a feature, concatenated.

    A *feature* is a vector made of the target model's hidden states at one token.

    Args:
        config: Configuration of the head, as a Llama configuration.
    """

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
        """Compute the attention output.

        Args:
            inputs: Embeddings and features, concatenated, [B, T, 2 * H].
            rotation: Cosine and sine of the rotary embedding, each [B, T, head_dim].
            attend: Attention function. It takes this module, queries [B, heads, T, D], keys and values [B, kv_heads, T,
                D], and returns [B, T, heads * D].

        Returns:
            Output [B, T, H].
        """
        shape = (*inputs.shape[:-1], -1, self.head_dim)
        query, key, value = (
            project(inputs).view(shape).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *rotation)
        return self.o_proj(attend(self, query, key, value))


class EagleLayer(nn.Module):
    """The only layer of an EAGLE-3 head: attention, then an MLP, as in Llama.

    The residual connection around the attention adds its output to the feature, or to the normalized feature if the
    configuration sets `norm_before_residual`.

    Args:
        config: Configuration of the head, as a Llama configuration.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            LlamaRMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(3)
        )
        self.self_attn = EagleAttention(config)
        self.mlp = LlamaMLP(config)
        self._norm_before_residual = bool(getattr(config, "norm_before_residual", False))

    def forward(self, embedded: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Run the layer.

        Args:
            embedded: Embeddings of the tokens, [B, T, H].
            features: For each token, the feature (made of the target's hidden states) of the token before it, [B, T,
                H].
            rotation: Cosine and sine of the rotary embedding, each [B, T, head_dim].
            attend: Attention function. It takes the attention module, queries [B, heads, T, D], keys and values [B,
                kv_heads, T, D], and returns [B, T, heads * D].

        Returns:
            Output [B, T, H].
        """
        normed = self.hidden_norm(features)
        residual = normed if self._norm_before_residual else features
        inputs = torch.cat([self.input_layernorm(embedded), normed], -1)
        hidden = residual + self.self_attn(inputs, rotation, attend)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class EagleHead(nn.Module):
    """An EAGLE-3 draft head: proposes next tokens from hidden states of the target model.

    The constructor raises UnsupportedModelError if the configuration is not supported.

    Args:
        config: Configuration of the head.
        target_layers: Number of layers of the target model.
        target_width: Size of the target's hidden states.
        embeddings: Input embeddings of the target. The head uses them unless its file has its own.

    Attributes:
        vocabulary: Size of the target's vocabulary.
        kv_heads: Number of key and value heads.
        head_dim: Size of an attention head.
        layers: Indices of the target's layers before which hidden states are taken, ascending.
        hidden_size: Size H of features and outputs.
    """

    def __init__(self, config: LlamaConfig, target_layers: int, target_width: int, embeddings: nn.Module) -> None:
        super().__init__()
        _check(config, target_layers)
        self.vocabulary = config.vocab_size
        self.kv_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self.head_dim = int(config.head_dim or config.hidden_size // config.num_attention_heads)
        # Indices of the target's layers before which the hidden states for a feature are taken.
        self.layers = feature_layers(config, target_layers)
        self.hidden_size = hidden = config.hidden_size
        tokens = getattr(config, "draft_vocab_size", None) or config.vocab_size
        self.fc = nn.Linear(len(self.layers) * target_width, hidden, bias=False)
        self.midlayer = EagleLayer(config)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, tokens, bias=False)
        self.register_buffer("d2t", torch.zeros(tokens, dtype=torch.int64))
        self._rotary = LlamaRotaryEmbedding(config)
        self._embed = [embeddings]  # in a list, so that the target's module is not registered in this one

    @property
    def token_ids(self) -> Tensor:
        """Token ID, in the target's vocabulary, of each column of the logits, int64 [k], ascending."""
        offsets: Tensor = self.d2t  # type: ignore[assignment]
        return torch.arange(len(offsets), device=offsets.device) + offsets

    def use_embeddings(self, weight: Tensor) -> None:
        """Replace the target's input embeddings by the head's own.

        Args:
            weight: Embedding of each token of the target's vocabulary, [V, H].
        """
        where: Any = self._embed[0].weight.device
        self._embed = [nn.Embedding.from_pretrained(weight.to(where))]

    def features(self, hidden_states: list[Tensor]) -> Tensor:
        """Return the features of tokens: one vector per token, made of hidden states of the target model.

        Args:
            hidden_states: Hidden states of the target before each layer of `layers`, in this order, each [.., target
                width].

        Returns:
            Features [.., H].
        """
        return self.fc(torch.cat(hidden_states, -1))

    def forward(self, token_ids: Tensor, features: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the head.

        Args:
            token_ids: Tokens, int64 [B, T].
            features: For each token, the feature (made of the target's hidden states) of the token before it, [B, T,
                H].
            positions: For each token, the position of the token before it, int64 [B, T]. Published heads are trained
                with these positions.
            attend: Attention function. It takes the attention module, queries [B, heads, T, D], keys and values [B,
                kv_heads, T, D], and returns [B, T, heads * D].

        Returns:
            Outputs [B, T, H]. They are the inputs of `logits`, and take the place of features after the last token.
        """
        embedded = self._embed[0](token_ids).to(features.dtype)
        return self.midlayer(embedded, features, self._rotary(features, positions), attend)

    def over_slots(self, token_ids: Tensor, features: Tensor, plan: AttentionPlan) -> Tensor:
        """Run the head on the tokens of one step, with attention over slots of the head's KV cache.

        Features that are not finite are replaced by 0: a NaN in a slot of the KV cache would spoil later requests.

        Args:
            token_ids: Tokens, int64 [T].
            features: For each token, the feature (made of the target's hidden states) of the token before it, [T, H].
            plan: Cache reads and writes of the step. For each token, it has the position of the token before it.

        Returns:
            Outputs [T, H].
        """
        features = torch.where(features.isfinite(), features, 0)
        return self(token_ids[None], features[None], plan.positions[None], _slots_attend(plan))[0]

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits of the next token after each input token.

        Args:
            outputs: Outputs of the head for the input tokens, [.., H].

        Returns:
            Logits [.., k] of the tokens that the head can propose (`token_ids`).
        """
        return self.lm_head(self.norm(outputs))


def _slots_attend(plan: AttentionPlan) -> Attend:
    """Return an attention function over the slots of `plan`."""

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, _ = slot_attention(module, query, key, value, None, attention_plan=plan)
        return output.flatten(-2)

    return attend


def feature_layers(config: PretrainedConfig, target_layers: int) -> list[int]:
    """Return the indices of the target's layers before which hidden states are taken for an EAGLE-3 head.

    Args:
        config: Configuration of the head, which may name the layers.
        target_layers: Number of layers of the target model.

    Returns:
        The layers that the configuration names, ascending. If it names none: the published choice of an early, a middle
        and a late layer.

    Raises:
        UnsupportedModelError: The configuration names layers that do not exist or do not ascend.
    """
    nested = getattr(config, "eagle_config", None) or {}
    key = "eagle_aux_hidden_state_layer_ids"
    named = getattr(config, key, None) or nested.get(key)
    layers = list(named or (2, target_layers // 2, target_layers - 3))
    if layers != sorted(set(layers)) or not all(0 <= layer < target_layers for layer in layers):
        raise UnsupportedModelError(f"{key}: {layers} are not ascending layers of a model with {target_layers}")
    return layers


def load_eagle_head(name: str, target_layers: int, target_width: int, embeddings: nn.Module) -> EagleHead:
    """Load an EAGLE-3 draft head in its published layout.

    Args:
        name: Folder or Hugging Face ID with `config.json` and `model.safetensors`.
        target_layers: Number of layers of the target model.
        target_width: Size of the target's hidden states.
        embeddings: Input embeddings of the target, weight [V, H]; H is the head's hidden size.

    Returns:
        The head, in evaluation mode.

    Raises:
        UnsupportedModelError: A file or tensor is missing, unknown or has a wrong shape, or the configuration is not
            supported. The message names the reason.
    """
    settings, _ = PretrainedConfig.get_config_dict(name)
    file = cached_file(name, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if not settings or file is None:
        raise UnsupportedModelError(f"{name}: no config.json and model.safetensors of an EAGLE-3 head")
    settings.pop("model_type", None)
    head = EagleHead(LlamaConfig.from_dict(settings), target_layers, target_width, embeddings)
    read_weights(head, load_file(file))
    return head.eval()


def read_weights(head: EagleHead, weights: dict[str, Tensor]) -> None:
    """Load the tensors of a file into an EAGLE-3 head, in place.

    Args:
        head: The head.
        weights: Tensors by name, in the published layout; not changed.

    Raises:
        UnsupportedModelError: A tensor is missing, unknown or has a wrong shape, or `d2t` and `t2d` name different
            token IDs. The message names the reason.
    """
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
    """Check that `d2t` gives ascending token IDs, and that `t2d`, bool [V], selects the same tokens."""
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

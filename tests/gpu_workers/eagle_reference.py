"""EAGLE-3 as arXiv:2503.01840 describes it, in plain torch without a cache: what our head and its drafts must equal.

Independent of the engine: weights by their names in the file, everything computed anew for each draft.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

END = 256
HEADS, HEAD_DIM, EPS, THETA = 4, 8, 1e-6, 10000.0
HIDDEN = HEADS * HEAD_DIM
LAYERS = [0, 1]
"""Of a model with two layers."""


def settings(kept: int, width: int) -> dict[str, Any]:
    """The `config.json` of a head for a tiny model of this hidden size, with `kept` of `width` tokens."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": width,
        "draft_vocab_size": kept,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": LAYERS, "use_aux_hidden_state": True},
    }


def random_weights(ids: Tensor, width: int, seed: int = 0) -> dict[str, Tensor]:
    """The tensors of a file, float64; `ids` int64 [k], ascending: what the head may propose."""
    random = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64) * 2 / math.sqrt(shape[-1])

    kept = len(ids)
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    return {
        "fc.weight": matrix(HIDDEN, len(LAYERS) * HIDDEN),
        "lm_head.weight": matrix(kept, HIDDEN) * 3,
        "midlayer.self_attn.q_proj.weight": matrix(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": matrix(HIDDEN // 2, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": matrix(HIDDEN // 2, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
        "midlayer.mlp.gate_proj.weight": matrix(40, HIDDEN),
        "midlayer.mlp.up_proj.weight": matrix(40, HIDDEN),
        "midlayer.mlp.down_proj.weight": matrix(HIDDEN, 40),
        **{f"{name}.weight": 1 + 0.3 * matrix(HIDDEN) for name in norms},
        "d2t": ids - torch.arange(kept),
        "t2d": torch.isin(torch.arange(width), ids),
    }


def rms_norm(values: Tensor, weight: Tensor) -> Tensor:
    # The models under test compute norms in float32, whatever the type of their weights.
    short = values.float()
    return weight * (short * torch.rsqrt(short.square().mean(-1, keepdim=True) + EPS)).to(values.dtype)


def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
    """[T, heads, D]: each pair (i, i + D / 2) is turned by an angle that grows with the position (RoFormer)."""
    half = HEAD_DIM // 2
    angle = positions[:, None].float() * THETA ** (-torch.arange(half).float() / half)
    cosine, sine = (f(angle)[:, None].to(vectors.dtype) for f in (torch.cos, torch.sin))
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def outputs(weights: dict[str, Tensor], embedded: Tensor, features: Tensor) -> Tensor:
    """What the layer gives for tokens embedded [T, H] and the features [T, H] of the tokens before them."""
    own = {name.removeprefix("midlayer."): weight for name, weight in weights.items()}
    count = len(embedded)
    inputs = torch.cat(
        [rms_norm(embedded, own["input_layernorm.weight"]), rms_norm(features, own["hidden_norm.weight"])], -1
    )

    def heads(name: str) -> Tensor:
        return (inputs @ own[f"self_attn.{name}_proj.weight"].T).view(count, -1, HEAD_DIM)

    positions = torch.arange(count)
    query, key, value = rotate(heads("q"), positions), rotate(heads("k"), positions), heads("v")
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(HEAD_DIM)
    scores = scores.masked_fill(positions[None, :] > positions[:, None], -torch.inf)
    attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(count, -1)
    hidden = features + attended @ own["self_attn.o_proj.weight"].T
    normed = rms_norm(hidden, own["post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(normed @ own["mlp.gate_proj.weight"].T)
    return hidden + (gate * (normed @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T


def logits(weights: dict[str, Tensor], layer_outputs: Tensor) -> Tensor:
    return rms_norm(layer_outputs, weights["norm.weight"]) @ weights["lm_head.weight"].T


def target_features(weights: dict[str, Tensor], model: Any, token_ids: list[int]) -> Tensor:
    """The features of `token_ids`, from the hidden states that transformers gives."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        states = model(torch.tensor([token_ids]), output_hidden_states=True, use_cache=False).hidden_states
    model.set_attn_implementation(implementation)
    return torch.cat([states[layer][0] for layer in LAYERS], -1) @ weights["fc.weight"].T


def greedy_drafts(
    weights: dict[str, Tensor], model: Any, token_ids: list[int], computed: int, many: int, allowed: Any = None
) -> list[int]:
    """At most `many` drafts after `token_ids`, of which the target has computed the first `computed`.

    `allowed`: the token ids that may follow; None: all. `END` ends them.
    """
    embed = model.get_input_embeddings()
    ids = torch.arange(len(weights["d2t"])) + weights["d2t"]
    features = target_features(weights, model, token_ids[:computed])
    drafts: list[int] = []
    while len(drafts) < many:
        known = [*token_ids, *drafts]
        with torch.no_grad():
            made = outputs(weights, embed(torch.tensor(known[1 : len(features) + 1])), features)
        if len(known) > len(features) + 1:  # tokens that the target has not computed: outputs stand in
            features = torch.cat([features, made[-1:]])
            continue
        score = logits(weights, made[-1])
        if allowed is not None:
            score = score.masked_fill(~torch.isin(ids, torch.tensor(sorted(allowed))), -torch.inf)
        if (draft := int(ids[score.argmax()])) == END:
            break
        drafts.append(draft)
    return drafts

"""Small models beside the embedded one, written into a folder: drafters, and a target with awkward ends and padding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.vllm.server import MODEL


def padded_model(
    folder: Path, padding: int = 16, end_token_ids: tuple[int, ...] = (1, 3), logit_scale: float = 1.0
) -> Path:
    """The embedded model with `padding` tokens more than its tokenizer has, which it likes best, and several ends."""
    shutil.copytree(MODEL, folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    known = weights[name]
    loud = torch.randn(padding, known.shape[1], generator=torch.Generator().manual_seed(0)).to(known.dtype)
    weights[name] = torch.cat([known, loud])
    weights["model.norm.weight"] *= logit_scale
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _change(folder / "config.json", vocab_size=len(known) + padding, eos_token_id=list(end_token_ids))
    _change(folder / "generation_config.json", eos_token_id=list(end_token_ids))
    return folder


def reordered_model(folder: Path) -> Path:
    """The embedded model whose tokenizer has other ids for the same texts; what it says means nothing."""
    shutil.copytree(MODEL, folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    ids = sorted(number for number in vocabulary.values() if number not in special)
    new = dict(zip(ids, reversed(ids), strict=True))
    tokenizer["model"]["vocab"] = {text: new.get(number, number) for text, number in vocabulary.items()}
    file.write_text(json.dumps(tokenizer))
    return folder


def random_draft_model(folder: Path, target: Path) -> Path:
    """A Llama of one layer with random weights and the tokenizer of `target`."""
    from transformers import AutoConfig, LlamaForCausalLM

    shutil.copytree(target, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(target)
    config.update({"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128})
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


def random_eagle3_head(folder: Path, target: Path, token_ids: Sequence[int] = range(256)) -> Path:
    """An EAGLE-3 head of `target` with random weights, which drafts `token_ids` (ascending) alone."""
    folder.mkdir()
    config = json.loads((target / "config.json").read_text())
    hidden, inner, tokens = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    config.update(
        architectures=["LlamaForCausalLMEagle3"],
        num_hidden_layers=1,
        draft_vocab_size=len(token_ids),
        tie_word_embeddings=False,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
    )
    (folder / "config.json").write_text(json.dumps(config))
    random = torch.Generator().manual_seed(2)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * 0.02

    save_file(
        {
            "fc.weight": weight(hidden, 3 * hidden),
            "norm.weight": torch.ones(hidden),
            "lm_head.weight": weight(len(token_ids), hidden),
            "d2t": torch.tensor(token_ids) - torch.arange(len(token_ids)),
            "t2d": torch.isin(torch.arange(tokens), torch.tensor(token_ids)),
            **{f"midlayer.self_attn.{name}_proj.weight": weight(heads, 2 * hidden) for name in "qkv"},
            "midlayer.self_attn.o_proj.weight": weight(hidden, heads),
            **{f"midlayer.mlp.{name}_proj.weight": weight(inner, hidden) for name in ("gate", "up")},
            "midlayer.mlp.down_proj.weight": weight(hidden, inner),
            **{f"midlayer.{name}.weight": torch.ones(hidden) for name in _NORMS},
        },
        folder / "model.safetensors",
    )
    return folder


_NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")


def _change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

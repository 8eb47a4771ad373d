"""Makes variants of the embedded model for tests of engines: a mixture of experts, and a LoRA adapter.

    python -m models.variants experts FOLDER

The weights of the variants are the weights of the embedded model with random changes. The changes are small enough for
sensible outputs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

EMBEDDED = Path(__file__).parent / "turnstile-tiny"

EXPERTS, EXPERTS_OF_A_TOKEN = 4, 2
RANK, ALPHA = 8, 16
_ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")

Weights = dict[str, Tensor]


def mixture_of_experts(folder: Path, *, change: float = 0.2, seed: int = 0) -> None:
    """Save a Mixtral model: the embedded model, with noisy copies of its feed-forward network as experts.

    Args:
        folder: Folder of the model, which must not exist.
        change: Standard deviation of the noise, divided by the standard deviation of the weights.
        seed: Seed of the noise and of the routers.
    """
    generator = torch.Generator().manual_seed(seed)
    config = _config()
    weights: Weights = {}
    for name, weight in _weights().items():
        if ".mlp." not in name:
            weights[name] = weight
            continue
        part = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[name.split(".")[-2]]
        layer = name.partition(".mlp.")[0]
        for expert in range(EXPERTS):
            changed = weight + change * weight.std() * torch.randn(weight.shape, generator=generator)
            weights[f"{layer}.block_sparse_moe.experts.{expert}.{part}.weight"] = changed
        gate = f"{layer}.block_sparse_moe.gate.weight"
        weights.setdefault(gate, torch.randn(EXPERTS, config["hidden_size"], generator=generator))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    config |= {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_OF_A_TOKEN,
        "tie_word_embeddings": False,
    }
    _save(folder, config, {name: weight.bfloat16() for name, weight in weights.items()})


def adapter(folder: Path, merged: Path, *, change: float = 0.5, seed: int = 0) -> None:
    """Save a random LoRA adapter for the embedded model, and the model into which the adapter is merged.

    Args:
        folder: Folder of the adapter in PEFT's layout, which must not exist.
        merged: Folder of the merged model (float32), which must not exist.
        change: Standard deviation of the adapter's change, divided by the standard deviation of the weights.
        seed: Seed of the adapter's weights.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = _weights()
    factors: Weights = {}
    for name in [name for name in weights if any(f".{part}.weight" in name for part in _ADAPTED)]:
        weight = weights[name]
        outputs, inputs = weight.shape
        down = torch.randn(RANK, inputs, generator=generator)
        up = torch.randn(outputs, RANK, generator=generator)
        up *= change * weight.std() / (ALPHA / RANK * RANK**0.5)
        weights[name] = weight + ALPHA / RANK * (up @ down)
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        factors |= {f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}
    folder.mkdir(parents=True)
    save_file(factors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(EMBEDDED),
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": [part.rpartition(".")[2] for part in _ADAPTED],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2))
    _save(merged, {**_config(), "dtype": "float32"}, weights)


def _config() -> dict[str, Any]:
    return json.loads((EMBEDDED / "config.json").read_text())


def _weights() -> Weights:
    return {name: weight.float() for name, weight in load_file(EMBEDDED / "model.safetensors").items()}


def _save(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    """Save a model with the tokenizer and chat template of the embedded model."""
    folder.mkdir(parents=True)
    for file in EMBEDDED.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def main() -> None:
    """Parse the command line, and save the variant that it names."""
    parser = argparse.ArgumentParser(description="Makes a mixture of experts from the embedded model.")
    parser.add_argument("kind", choices=["experts"])
    parser.add_argument("folder", type=Path, help="which must not exist")
    mixture_of_experts(parser.parse_args().folder)


if __name__ == "__main__":
    main()

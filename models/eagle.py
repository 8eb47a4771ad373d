"""Trains the EAGLE-3 head of the embedded model: `python -m models.eagle` (see models/README.md).

An EAGLE-3 head drafts tokens from *features*, which are made of the hidden states of the embedded model (the target).
The target is not changed. The head learns the target's distribution of the next token in several passes. The first pass
has true features. Later passes have the head's own outputs in place of features, as when it drafts several tokens
(training-time test, Li et al. 2025, arXiv:2503.01840). Seed and step count determine the result, up to the arithmetic
of the CPU. Nothing is downloaded.
"""

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gpu_workers.speculative.eagle_head import EagleHead
from models.batches import IGNORED, Batch, BatchMaker
from models.records import draw_example
from models.train import DEFAULT_OUTPUT, Optimizers, Recipe

OUTPUT = DEFAULT_OUTPUT.with_name("turnstile-tiny-eagle3")
# Indices of the target's layers before which hidden states are taken.
LAYERS = [1, 3, 4]
# Number of tokens that the head can draft: the most frequent tokens of answers.
TOKENS = 512
# Number of consecutive drafts for which the head is trained.
AHEAD = 3
# Weight of a draft's loss, relative to the weight of the draft before it.
_LATER = 0.8
RECIPE = Recipe(steps=320, rows=16, warm_up_steps=20, copy_steps=0, other_rate=0.003, decay_share=0.5)


def draft_vocabulary(tokenizer: PreTrainedTokenizerFast, seed: int) -> Tensor:
    """Return the token IDs that the head can draft: the most frequent tokens of random answers.

    Args:
        tokenizer: Tokenizer of the embedded model.
        seed: Seed of the random answers.

    Returns:
        int64 [TOKENS], ascending. The end token is included.
    """
    rng = Random(f"{seed}/draft vocabulary")
    counts = Counter([tokenizer.eos_token_id])
    for ids in tokenizer([draw_example(rng).answer for _ in range(20_000)])["input_ids"]:
        counts.update(ids)
    frequent = sorted(counts, key=lambda token_id: (-counts[token_id], token_id))
    return torch.tensor(sorted(frequent[:TOKENS]))


def settings(target: LlamaConfig) -> dict[str, Any]:
    """Return the content of the head's `config.json`.

    Args:
        target: Configuration of the embedded model.
    """
    return {
        **target.to_diff_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": 256,
        "draft_vocab_size": TOKENS,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": LAYERS, "use_aux_hidden_state": True},
    }


def build_head(target: LlamaForCausalLM, token_ids: Tensor) -> EagleHead:
    """Return an untrained head, whose output projection has the target's rows of the tokens that it can draft.

    Args:
        target: The embedded model.
        token_ids: Token IDs that the head can draft, int64 [TOKENS], ascending.
    """
    config = LlamaConfig.from_dict(settings(target.config))
    layers, width = target.config.num_hidden_layers, target.config.hidden_size
    head = EagleHead(config, int(layers or 0), int(width or 0), target.get_input_embeddings())
    with torch.no_grad():
        head.d2t.copy_(token_ids - torch.arange(len(token_ids)))  # type: ignore[operator]
        head.lm_head.weight.copy_(target.lm_head.weight[token_ids])
        head.norm.weight.copy_(target.model.norm.weight)
    return head


@dataclass
class UnrolledAttention:
    """Attention function for the training passes of an EAGLE-3 head over the same tokens. Each call is one pass.

    Pass 0 has true features. Pass j has the outputs of pass j - 1 as features, moved by one position. So position p of
    pass j stands for a draft that follows j other drafts. It attends to the keys of pass 0 at positions up to p - j,
    and to one key of each later pass i, at position p - j + i.

    Attributes:
        keys: Keys of each pass so far, [B, heads, T, D].
        values: Values of each pass so far, [B, heads, T, D].
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def __call__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention output [B, T, heads * D] of the next pass. The arguments are [B, heads, T, D]."""
        self.keys.append(key)
        self.values.append(value)
        ahead, length = len(self.keys) - 1, query.shape[2]
        query = query * query.shape[-1] ** -0.5
        rows = torch.arange(length)
        hidden = rows[None, :] > rows[:, None] - ahead
        scores = [(query @ self.keys[0].transpose(2, 3)).masked_fill(hidden, -torch.inf)]
        scores += [(query * _shifted(self.keys[i], ahead - i)).sum(-1, keepdim=True) for i in range(1, ahead + 1)]
        weights = torch.cat(scores, -1).softmax(-1)
        attended = weights[..., :length] @ self.values[0]
        for i in range(1, ahead + 1):
            attended = attended + weights[..., length + i - 1, None] * _shifted(self.values[i], ahead - i)
        return attended.transpose(1, 2).flatten(-2)


def _shifted(values: Tensor, places: int) -> Tensor:
    """Return `values` [.., T, D], moved by `places` along T. Zeros come first."""
    return functional.pad(values, (0, 0, places, 0))[..., : values.shape[-2], :]


def losses(target: LlamaForCausalLM, head: EagleHead, batch: Batch, token_ids: Tensor) -> tuple[Tensor, list[float]]:
    """Run the training passes of the head on one batch.

    Args:
        target: The embedded model.
        head: The head.
        batch: A training batch. Only positions with labels count.
        token_ids: Token IDs that the head can draft, int64 [TOKENS], ascending.

    Returns:
        The loss: the sum over passes of the cross-entropy with the target's distribution, with smaller weights for
        later passes. And for each pass, the share of positions where the head's most likely token is the target's.
    """
    with torch.no_grad():
        seen = target(input_ids=batch.input_ids, output_hidden_states=True)
        chances = seen.logits[:, 1:, token_ids].softmax(-1)
        likeliest = seen.logits[:, 1:].argmax(-1)
    answered = batch.labels[:, 1:] != IGNORED
    features = head.features([seen.hidden_states[layer][:, :-1] for layer in head.layers])
    positions = torch.arange(features.shape[1])[None]
    attend = UnrolledAttention()
    total, right = torch.zeros(()), []
    for ahead in range(AHEAD):
        outputs = head(batch.input_ids[:, 1:], features, positions, attend)
        logits = head.logits(outputs[answered])
        total = total + _LATER**ahead * functional.cross_entropy(logits, chances[answered])
        right.append((token_ids[logits.argmax(-1)] == likeliest[answered]).float().mean().item())
        features = _shifted(outputs, 1)
    return total, right


def save(head: EagleHead, token_ids: Tensor, config: LlamaConfig, folder: Path) -> None:
    """Save a head in the published layout, in bfloat16.

    Args:
        head: The head.
        token_ids: Token IDs that the head can draft, int64 [TOKENS], ascending.
        config: Configuration of the embedded model.
        folder: Folder for `config.json` and `model.safetensors`; created if necessary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings(config), indent=2) + "\n")
    tensors = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in head.state_dict().items()
    }
    tensors["t2d"] = torch.isin(torch.arange(config.vocab_size or 0), token_ids)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def train(recipe: Recipe, output: Path) -> None:
    """Train a head for the embedded model, and save it.

    Args:
        recipe: Settings of the training.
        output: Folder of the head.
    """
    torch.manual_seed(recipe.seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEFAULT_OUTPUT)
    target = LlamaForCausalLM.from_pretrained(DEFAULT_OUTPUT, dtype=torch.float32).eval()
    target.requires_grad_(False)
    token_ids = draft_vocabulary(tokenizer, recipe.seed)
    head = build_head(target, token_ids)
    optimizers = Optimizers(head, recipe)
    batches = BatchMaker(tokenizer, "", seed=recipe.seed, rows=recipe.rows, text_share=0.0, copy_batches=0)
    print(f"{sum(p.numel() for p in head.parameters()):,} parameters, {len(token_ids)} tokens", flush=True)
    progress = tqdm(range(recipe.steps), unit="step", mininterval=5)
    for step in progress:
        loss, right = losses(target, head, batches.batch(step), token_ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizers.step(recipe.rate(step))
        if (step + 1) % 50 == 0 or step + 1 == recipe.steps:
            progress.write(f"step {step + 1}: loss {loss.item():.3f}, right {' '.join(f'{one:.1%}' for one in right)}")
    save(head, token_ids, target.config, output)


def main() -> None:
    """Parse the command line, and train the head."""
    parser = argparse.ArgumentParser(prog="python -m models.eagle", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the head")
    parser.add_argument("--steps", type=int, default=RECIPE.steps, help="optimizer steps (default %(default)s)")
    parser.add_argument("--seed", type=int, default=RECIPE.seed, help="default %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = Recipe(**{**vars(RECIPE), "steps": arguments.steps, "seed": arguments.seed})
    train(recipe, arguments.output)


if __name__ == "__main__":
    main()

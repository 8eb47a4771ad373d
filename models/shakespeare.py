"""Trains the character model: `python -m models.shakespeare --text shakespeare.txt` (see models/README.md).

The model is a Llama of 0.45 million parameters over the 65 characters of *tiny Shakespeare*. It is trained in minutes
on one CPU thread. Token i is the i-th character in sorted order, and there is no end token, as in many tutorials. Text,
seed and step count determine the result, except for the rounding of the CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from models.train import HELD_OUT_TEXT, Optimizers, Recipe

OUTPUT = Path(__file__).parent / "turnstile-shakespeare"
# Number of characters of a training window. The model can read up to four times as many.
CONTEXT = 128
# Names of the newline and the space in a byte-level tokenizer.
BYTE_LEVEL = {"\n": "Ċ", " ": "Ġ"}


def build_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character, and without special tokens.

    Args:
        characters: Distinct ASCII characters. Token i is character i.
    """
    table = {BYTE_LEVEL.get(character, character): i for i, character in enumerate(characters)}
    backend = Tokenizer(models.BPE(vocab=table, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def build_model(tokens: int) -> LlamaForCausalLM:
    """Return the untrained model.

    Args:
        tokens: Number of tokens of the vocabulary.
    """
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=4 * CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def windows(ids: Tensor, starts: np.ndarray) -> Tensor:
    """Return windows of CONTEXT + 1 tokens of a text: inputs, and labels one token later.

    Args:
        ids: Tokens of the text, int64 [n].
        starts: Index of the first token of each window, int64 [rows].

    Returns:
        int64 [rows, CONTEXT + 1].
    """
    return torch.stack([ids[start : start + CONTEXT + 1] for start in starts])


def loss_of(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per character.

    Args:
        model: The model.
        rows: Windows of text, int64 [rows, CONTEXT + 1].
    """
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, ids: Tensor) -> float:
    """Return the mean cross-entropy, in nats per character, on 64 windows that are spread evenly over held-out text.

    Args:
        model: The model.
        ids: Tokens of the held-out text, int64 [n].
    """
    return loss_of(model, windows(ids, np.linspace(0, len(ids) - CONTEXT - 1, 64, dtype=int))).item()


def train(recipe: Recipe, text: str, output: Path) -> float:
    """Train a model on a text, and save the model (bfloat16) and its tokenizer.

    Args:
        recipe: Settings of the training.
        text: ASCII text. The last 5 % are held out.
        output: Folder of the model and the tokenizer.

    Returns:
        Loss of the saved model on the held-out text, in nats per character.
    """
    torch.manual_seed(recipe.seed)
    tokenizer = build_tokenizer("".join(sorted(set(text))))
    ids = torch.tensor(tokenizer(text)["input_ids"])
    split = int(len(ids) * (1 - HELD_OUT_TEXT))
    model = build_model(len(tokenizer))
    optimizers = Optimizers(model, recipe)
    rng = np.random.default_rng(recipe.seed)
    transformers_logging.disable_progress_bar()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    progress = tqdm(range(recipe.steps), unit="step", mininterval=5)
    for step in progress:
        loss = loss_of(model, windows(ids, rng.integers(0, split - CONTEXT, recipe.rows)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(recipe.rate(step))
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        if (step + 1) % 250 == 0:
            progress.write(f"step {step + 1}: held-out loss {held_out_loss(model, ids[split:]):.3f}")
    rounded = model.bfloat16()
    rounded.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return held_out_loss(rounded.float(), ids[split:])


def main() -> None:
    """Parse the command line, train the model and print its held-out loss."""
    parser = argparse.ArgumentParser(prog="python -m models.shakespeare", description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="plain-text file to train on (ASCII)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the model (default %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="optimizer steps (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe = Recipe(steps=arguments.steps, seed=arguments.seed, rows=32)
    loss = train(recipe, arguments.text.read_text(encoding="utf-8"), arguments.output)
    print(f"held-out loss {loss:.3f} nats per character")


if __name__ == "__main__":
    main()

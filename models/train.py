"""Trains the embedded model: `python -m models.train --text shakespeare.txt` (see models/README.md).

The model is a Llama of 1.2 million parameters with its own tokenizer. It is trained on one CPU thread, on a plain-text
file and synthetic conversations. Seed and step count determine the result, up to the arithmetic of the CPU. The
learning rate rises during the warm-up, stays constant, and falls to zero over the last quarter (Hu et al. 2024,
MiniCPM). So a training can be resumed from a checkpoint of the constant part with another number of steps.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch.nn import functional
from tqdm import tqdm
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from models.batches import IGNORED, Batch, BatchMaker
from models.evaluate import evaluate, held_out_records
from models.records import draw_example
from models.tokenizer import train_tokenizer

DEFAULT_OUTPUT = Path(__file__).parent / "turnstile-tiny"
VOCABULARY_SIZE = 1024
# Share of the text, at its end, that is held out for validation.
HELD_OUT_TEXT = 0.05


@dataclass(frozen=True)
class Recipe:
    """Settings that determine a training.

    Attributes:
        steps: Number of optimizer steps.
        seed: Seed of the initial weights and of the batches.
        rows: Number of conversations or windows of text per step.
        matrix_rate: Largest learning rate of the layers' matrices (Muon).
        other_rate: Largest learning rate of the embeddings and norms (AdamW).
        warm_up_steps: Number of steps at the start in which the learning rate rises.
        decay_share: Share of the steps, at the end, in which the learning rate falls to 0.
        copy_steps: Number of steps at the start that have only short copying tasks.
        weight_decay: Weight decay of the layers' matrices.
    """

    steps: int = 5400
    seed: int = 1
    rows: int = 24
    matrix_rate: float = 0.006
    other_rate: float = 0.006
    warm_up_steps: int = 100
    decay_share: float = 0.25
    copy_steps: int = 160
    weight_decay: float = 0.1

    def rate(self, step: int) -> float:
        """Return the factor, from 0 to 1, by which the learning rates are multiplied in a step.

        Args:
            step: Number of the step, from 0.
        """
        left = (self.steps - step) / (self.decay_share * self.steps)
        return min(1.0, (step + 1) / self.warm_up_steps, left)


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return the untrained model.

    Args:
        tokenizer: Tokenizer that determines the vocabulary and the special tokens.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def build_tokenizer(text: str, seed: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer on a text and on random conversations.

    Args:
        text: Plain text.
        seed: Seed of the conversations.

    Returns:
        The tokenizer, with 1,024 tokens.
    """

    def corpus() -> Iterator[str]:
        yield from (text[start : start + 2000] for start in range(0, len(text), 2000))
        rng = Random(f"{seed}/tokenizer")
        for _ in range(20_000):
            yield from (message["content"] for message in draw_example(rng).messages)

    return train_tokenizer(corpus(), VOCABULARY_SIZE)


class Optimizers:
    """Pair of optimizers with one schedule: Muon (Jordan et al. 2024) for the layers' matrices, AdamW for the rest.

    In short experiments, AdamW alone needed 4 minutes for the held-out loss that Muon and AdamW reach in 1.5 minutes.

    Args:
        model: The model whose parameters are trained.
        recipe: Settings of the training.
    """

    def __init__(self, model: torch.nn.Module, recipe: Recipe) -> None:
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        muon = torch.optim.Muon(
            matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        adamw = torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self._both: tuple[torch.optim.Optimizer, ...] = (muon, adamw)
        self._peaks = (recipe.matrix_rate, recipe.other_rate)

    def step(self, rate: float) -> None:
        """Update the parameters by their gradients, then clear the gradients.

        Args:
            rate: Factor of the learning rates, as `Recipe.rate` returns it.
        """
        for optimizer, peak in zip(self._both, self._peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate
            optimizer.step()
            optimizer.zero_grad()

    def state(self) -> list[dict]:
        """Return the state of both optimizers, for a checkpoint."""
        return [optimizer.state_dict() for optimizer in self._both]

    def load(self, state: list[dict]) -> None:
        """Restore the state of both optimizers.

        Args:
            state: Result of `state`.
        """
        for optimizer, part in zip(self._both, state, strict=True):
            optimizer.load_state_dict(part)


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy over the positions with a label. Logits are computed only for these positions.

    Args:
        model: The model.
        batch: A training or validation batch.
    """
    labels = batch.labels.flatten()
    labelled = (labels != IGNORED).nonzero().squeeze(1)
    hidden = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
    return functional.cross_entropy(model.lm_head(hidden[labelled]), labels[labelled])


@torch.inference_mode()
def validate(model: LlamaForCausalLM, records: list[Batch], text: Batch) -> str:
    """Validate the model during the training, and return a line for the log.

    Greedy decoding generates the right answer if each of its tokens is the most probable one after the tokens before
    it. So one forward pass per batch is enough.

    Args:
        model: The model. It is in training mode afterwards.
        records: Batches of held-out conversations.
        text: Batch of held-out plain text.

    Returns:
        One line: share of right tokens and of exact answers in `records`, and loss on `text` in nats per token.
    """
    model.eval()
    exact = rows = right_tokens = tokens = 0
    for batch in records:
        labelled = batch.labels != IGNORED
        wrong = (model(input_ids=batch.input_ids).logits.argmax(-1) != batch.labels) & labelled
        exact += int((~wrong.any(1)).sum())
        rows += len(wrong)
        right_tokens += int((labelled & ~wrong).sum())
        tokens += int(labelled.sum())
    loss = batch_loss(model, text).item()
    model.train()
    return f"held-out tokens right {right_tokens / tokens:.1%}, records exact {exact / rows:.1%}, text loss {loss:.3f}"


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save the model in bfloat16, with its generation config and its tokenizer.

    Args:
        model: The model. It is not changed.
        tokenizer: Its tokenizer.
        folder: Folder of the files.
    """
    rounded = LlamaForCausalLM(model.config).bfloat16()
    rounded.load_state_dict(model.state_dict())
    rounded.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    rounded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(recipe: Recipe, text: str, output: Path, checkpoint: Path | None) -> None:
    """Train the model, and save it every 250 steps and at the end.

    Args:
        recipe: Settings of the training.
        text: Plain text. The last 5 % are used only for validation.
        output: Folder of the model.
        checkpoint: File of the training state, which is written at every save. If it exists, the training resumes from
            it. None: no checkpoint.
    """
    torch.manual_seed(recipe.seed)
    split = int(len(text) * (1 - HELD_OUT_TEXT))
    tokenizer = build_tokenizer(text[:split], recipe.seed)
    model = build_model(tokenizer)
    optimizers = Optimizers(model, recipe)
    first = 0
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizers.load(state["optimizers"])

    batches = BatchMaker(tokenizer, text[:split], seed=recipe.seed, rows=recipe.rows, copy_batches=recipe.copy_steps)
    held_out = batches.collate_conversations(held_out_records(200), rows=40)
    held_out_text = batches.collate_text(text[split:])
    transformers_logging.disable_progress_bar()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)

    progress = tqdm(range(first, recipe.steps), initial=first, total=recipe.steps, unit="step", mininterval=5)
    for step in progress:
        loss = batch_loss(model, batches.batch(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(recipe.rate(step))
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        done = step + 1
        if done % 250 == 0 or done == recipe.steps:
            progress.write(f"step {done}: loss {loss.item():.3f}, {validate(model, held_out, held_out_text)}")
            save(model, tokenizer, output)
            if checkpoint is not None:
                state = {"step": done, "model": model.state_dict(), "optimizers": optimizers.state()}
                torch.save(state, checkpoint)


def main() -> None:
    """Parse the command line, and train the model or, with `--evaluate`, evaluate it."""
    parser = argparse.ArgumentParser(prog="python -m models.train", description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="plain-text file to train on (public-domain Shakespeare was used)")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="folder of the model")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="optimizer steps (default %(default)s)")
    parser.add_argument("--seed", type=int, default=Recipe.seed, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="file to keep the training state in, and to resume from")
    parser.add_argument("--evaluate", action="store_true", help="do not train: score the model in --output")
    parser.add_argument("--records", type=int, default=400, help="held-out records to score (default %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    if arguments.evaluate:
        model = LlamaForCausalLM.from_pretrained(arguments.output, dtype=torch.float32)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.output)
        print(evaluate(model, tokenizer, arguments.records))
        return
    if arguments.text is None:
        parser.error("--text is needed to train")
    recipe = Recipe(steps=arguments.steps, seed=arguments.seed)
    train(recipe, arguments.text.read_text(encoding="utf-8"), arguments.output, arguments.checkpoint)


if __name__ == "__main__":
    main()

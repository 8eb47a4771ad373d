"""Makes the embedded model: `python -m models.train --text shakespeare.txt` (see models/README.md).

A Llama of 1.2 million parameters with its own tokenizer, trained on one CPU thread from a plain-text file and from
synthetic records. Seed and step count fix the result (up to the arithmetic of the CPU). The learning rate warms up,
stays, and falls to zero over the last quarter (Hu et al. 2024, MiniCPM), so a checkpoint of the long middle part
can be finished with fewer or more steps than were planned.
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
HELD_OUT_TEXT = 0.05
"""Share of the text, at its end, kept for validation."""


@dataclass(frozen=True)
class Recipe:
    """What fixes a run."""

    steps: int = 5400
    seed: int = 1
    rows: int = 24
    """Conversations or stretches of text a step."""
    matrix_rate: float = 0.006
    """Learning rate of the layers' matrices (Muon)."""
    other_rate: float = 0.006
    """Learning rate of the embeddings and norms (AdamW)."""
    warm_up_steps: int = 100
    decay_share: float = 0.25
    copy_steps: int = 160
    """Steps at the start on short copying tasks only."""
    weight_decay: float = 0.1

    def rate(self, step: int) -> float:
        """Factor of the learning rates at `step`."""
        left = (self.steps - step) / (self.decay_share * self.steps)
        return min(1.0, (step + 1) / self.warm_up_steps, left)


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The untrained model."""
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
    """The tokenizer, trained on the text and on some conversations."""

    def corpus() -> Iterator[str]:
        yield from (text[start : start + 2000] for start in range(0, len(text), 2000))
        rng = Random(f"{seed}/tokenizer")
        for _ in range(20_000):
            yield from (message["content"] for message in draw_example(rng).messages)

    return train_tokenizer(corpus(), VOCABULARY_SIZE)


class Optimizers:
    """Muon (Jordan et al. 2024) for the layers' matrices and AdamW for the rest, under one schedule.

    In short trials Muon reached in one and a half minutes the held-out loss for which AdamW alone needed four.
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
        """One update with the learning rates scaled by `rate`; clears the gradients."""
        for optimizer, peak in zip(self._both, self._peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate
            optimizer.step()
            optimizer.zero_grad()

    def state(self) -> list[dict]:
        """What a checkpoint keeps."""
        return [optimizer.state_dict() for optimizer in self._both]

    def load(self, state: list[dict]) -> None:
        """Continues from `state`."""
        for optimizer, part in zip(self._both, state, strict=True):
            optimizer.load_state_dict(part)


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy over the labelled positions; only those are projected onto the vocabulary."""
    labels = batch.labels.flatten()
    labelled = (labels != IGNORED).nonzero().squeeze(1)
    hidden = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
    return functional.cross_entropy(model.lm_head(hidden[labelled]), labels[labelled])


@torch.inference_mode()
def validate(model: LlamaForCausalLM, records: list[Batch], text: Batch) -> str:
    """Share of held-out answers that the model gives exactly (greedy decoding repeats the right answer as long as
    every right token is its first choice, so one forward pass tells), and the loss on held-out text."""
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
    """Writes the model (bfloat16), its generation config and its tokenizer."""
    rounded = LlamaForCausalLM(model.config).bfloat16()
    rounded.load_state_dict(model.state_dict())
    rounded.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    rounded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(recipe: Recipe, text: str, output: Path, checkpoint: Path | None) -> None:
    """Trains from the start, or from `checkpoint` if that file exists; saves every 250 steps."""
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
    """The command line."""
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

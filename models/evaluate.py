"""Evaluates the embedded model on held-out records, which are not in its training data."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.batches import render_prompt
from models.records import Example, dump, record

# Seed of the held-out records. Training has numeric seeds, so it samples other records.
HELD_OUT_SEED = "held out"
_ROWS = 32
_MISSING = object()


@dataclass(frozen=True)
class Scores:
    """Results of the model on held-out records. Answers are generated greedily, without a grammar. `str` gives a table.

    Attributes:
        records: Number of records.
        valid: Number of answers that are valid JSON.
        exact: Number of answers that are equal to the right record in every character.
        fields: Number of scalar values in the right records, nested values included.
        fields_right: Number of these values that an answer has under the right path.
        keyed_fields: Number of top-level values in the right records.
        keyed_fields_right: Number of top-level values that the model writes correctly after the right text before them,
            key included. So this counts the model's own choices under a grammar that forces the keys.
    """

    records: int
    valid: int
    exact: int
    fields: int
    fields_right: int
    keyed_fields: int
    keyed_fields_right: int

    def __str__(self) -> str:
        lines = (
            ("valid JSON", self.valid, self.records),
            ("exact records", self.exact, self.records),
            ("fields right", self.fields_right, self.fields),
            ("fields right, keys given", self.keyed_fields_right, self.keyed_fields),
        )
        return "\n".join(f"{name:<26}{part:>5} of {whole:<5}{part / whole:7.1%}" for name, part, whole in lines)


def held_out_records(count: int) -> list[Example]:
    """Return the evaluation set: random records whose prompts contain all top-level keys of the answer.

    Args:
        count: Number of records. The first records are equal for every `count`.
    """
    rng = Random(HELD_OUT_SEED)
    found: list[Example] = []
    while len(found) < count:
        example = record(rng)
        if all(key in example.prompt[-1]["content"] for key in json.loads(example.answer)):
            found.append(example)
    return found


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every scalar of a JSON value with its path.

    Args:
        value: The JSON value.
        path: Path of `value` itself, as keys and indices; empty for the whole document.

    Yields:
        Pairs (path, scalar), such as `(("lines", 0, "price"), 4.5)`.
    """
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if children is None:
        yield path, value
    else:
        for key, child in children:
            yield from leaves(child, (*path, key))


@torch.inference_mode()
def answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: list[Example], max_new_tokens: int = 200
) -> list[str]:
    """Generate answers to the prompts of examples, at temperature 0 and without a grammar.

    Args:
        model: The embedded model.
        tokenizer: Its tokenizer.
        examples: Conversations. The messages before the answer are the prompt.
        max_new_tokens: Maximum number of tokens of an answer.

    Returns:
        The text of each answer, without special tokens.
    """
    found: list[str] = []
    for start in tqdm(range(0, len(examples), _ROWS), desc="answering", unit="batch"):
        prompts = [render_prompt(tokenizer, example) for example in examples[start : start + _ROWS]]
        inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)  # type: ignore[misc]
        found += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _MISSING


@torch.inference_mode()
def _keyed_fields(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, example: Example) -> tuple[int, int]:
    """Return how many top-level values the model writes correctly after the right text, and how many there are."""
    prompt = render_prompt(tokenizer, example)
    encoded = tokenizer(prompt + example.answer, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    ids = torch.tensor(encoded["input_ids"])
    right_next = torch.ones(len(ids), dtype=torch.bool)
    right_next[1:] = model(input_ids=ids[None]).logits[0, :-1].argmax(dim=-1) == ids[1:]
    right = total = 0
    written = "{"
    for key, value in json.loads(example.answer).items():
        written += dump(key) + ": "
        first = len(prompt) + len(written)
        last = first + len(dump(value))
        # The token `": "` holds the end of the key and the opening quote: it is the value's first choice.
        inside = [i for i, (start, end) in enumerate(offsets) if end > first and start < last]
        right += bool(right_next[inside].all())
        total += 1
        written += dump(value) + ", "
    return right, total


def evaluate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int) -> Scores:
    """Evaluate the model on held-out records.

    Args:
        model: The embedded model. It is switched to evaluation mode.
        tokenizer: Its tokenizer.
        count: Number of records.

    Returns:
        The results.
    """
    examples = held_out_records(count)
    model.eval()
    given = answers(model, tokenizer, examples)
    valid = exact = fields = fields_right = 0
    for example, text in zip(examples, given, strict=True):
        wanted = dict(leaves(json.loads(example.answer)))
        parsed = _parsed(text)
        valid += parsed is not _MISSING
        exact += text == example.answer
        got = dict(leaves(parsed))
        fields += len(wanted)
        fields_right += sum(path in got and got[path] == value for path, value in wanted.items())
    keyed = [_keyed_fields(model, tokenizer, example) for example in tqdm(examples, desc="keys given", unit="record")]
    return Scores(len(examples), valid, exact, fields, fields_right, sum(k[1] for k in keyed), sum(k[0] for k in keyed))

"""How true the model's answers are, on records that it was not trained on."""

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

HELD_OUT_SEED = "held out"
"""Training draws from numeric seeds. Most records hold invented words or long numbers: hardly any was seen before."""
_ROWS = 32
_MISSING = object()


@dataclass(frozen=True)
class Scores:
    """Counts over held-out records, answered greedily and without any grammar."""

    records: int
    valid: int
    """Answers that are valid JSON."""
    exact: int
    """Answers equal to the right record, character for character."""
    fields: int
    fields_right: int
    """Values (nested ones too) found at the right place with the right content."""
    keyed_fields: int
    keyed_fields_right: int
    """The same, by the first tokens after each right key: the model's choice where a grammar forces the keys."""

    def __str__(self) -> str:
        lines = (
            ("valid JSON", self.valid, self.records),
            ("exact records", self.exact, self.records),
            ("fields right", self.fields_right, self.fields),
            ("fields right, keys given", self.keyed_fields_right, self.keyed_fields),
        )
        return "\n".join(f"{name:<26}{part:>5} of {whole:<5}{part / whole:7.1%}" for name, part, whole in lines)


def held_out_records(count: int) -> list[Example]:
    """The evaluation set: the same records for one `count`, all of them with their top-level keys in the prompt."""
    rng = Random(HELD_OUT_SEED)
    found: list[Example] = []
    while len(found) < count:
        example = record(rng)
        if all(key in example.prompt[-1]["content"] for key in json.loads(example.answer)):
            found.append(example)
    return found


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every scalar in `value` with its path."""
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
    """Greedy answers to the examples' prompts."""
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
    """Top-level values (right, all) that the model writes token by token when all before them is right."""
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
    """Scores on `count` held-out records."""
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

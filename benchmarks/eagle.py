"""Tokens per forward pass with the EAGLE-3 head of the embedded model, beside the other drafts, and whether any differ.

    python -m benchmarks.eagle [--data FOLDER]

The native engine answers held-out records of `models`, each with the prompt of the model's chat template, greedily:
under a schema of the record's keys and types (compact and flexible whitespace), and without one. A forward pass is one
of the target's, of one sequence; the prompt's is counted, the head's own are not: they are in the time. `in the step`:
the captured step drafts, eight tokens at most with the one before them. Exits with status 1 where an answer has other
tokens than without drafts.

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). With it, schemas of JSON Mode Eval, of function
calls and of JSON Schema Bench are answered, too, compactly, which the head was not trained for. Their prompts name the
schema's properties, `PROMPT` in the chat template, and nothing of an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.acceptance import record_instances
from benchmarks.instances import PUBLISHED, Instance, load_instances
from benchmarks.vocabularies import named_encoder, named_vocabulary
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import load
from gpu_workers.request import GenerationRequest, GrammarReference, SamplingParameters
from gpu_workers.speculative.eagle_drafter import load_eagle
from grammar_workers import GrammarOptions, TokenFSM, Vocabulary

MODELS = Path(__file__).parent.parent / "models"
MODEL, HEAD = str(MODELS / "turnstile-tiny"), str(MODELS / "turnstile-tiny-eagle3")
NOTHING: dict[str, Any] = {"forced_text": False, "ngram": 0}
LONGEST_PROMPT = 1500
ALL: dict[str, Any] = {"eagle_head": HEAD}
MODES: dict[str, dict[str, Any]] = {
    "none": NOTHING,
    "n-gram": {"forced_text": False},
    "forced": {"ngram": 0},
    "n-gram and forced": {},
    "EAGLE-3, masked": {**NOTHING, **ALL},
    "EAGLE-3, unmasked": {**NOTHING, **ALL, "draft_masks": False},
    "EAGLE-3, in the step": {**NOTHING, **ALL, "device_step": "eager"},
    "EAGLE-3 and forced": {"ngram": 0, **ALL},
    "all": ALL,
}


PROMPT = "Write {keys} as JSON."
"""`keys`: of the schema's properties. Nothing of an answer stands in it, so there is nothing to copy."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of all answers of one mode: forward passes, drafts, seconds, and what was answered."""

    answers: list[list[int]]
    passes: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))


async def answer(settings: dict[str, Any], instances: list[Instance], guided: bool, max_tokens: int) -> Measured:
    """Answers one after another, so that a step of the engine is a forward pass of one sequence."""
    config = EngineConfig(slots=1, threads=1, prefill_chunk=2048, step_tokens=2100, shortest_prefix=4096, **settings)
    loaded = load(MODEL, config)

    async def fetch(grammar: GrammarReference) -> TokenFSM:
        return instances[grammar.specification["index"]].fsm

    engine = Engine(loaded, config, fetch, load_eagle(config, loaded))
    answers = []
    try:
        started = time.perf_counter()
        for index, instance in enumerate(instances):
            reference = GrammarReference(key="0" * 64, specification={"index": index}) if guided else None
            request = GenerationRequest(
                request_id=str(index),
                prompt=instance.prompt_ids,
                grammar=reference,
                sampling=SamplingParameters(temperature=0, max_tokens=max_tokens),
            )
            outputs = [output async for output in engine.generate(request)]
            answers.append([token_id for output in outputs for token_id in output.token_ids])
        seconds = time.perf_counter() - started
        counted = engine.statistics
        return Measured(answers, counted.steps, counted.drafted_tokens, counted.accepted_tokens, seconds)
    finally:
        engine.close()


def rows(name: str, instances: list[Instance], guided: bool, arguments: argparse.Namespace) -> int:
    """Prints a line for each mode; returns how many answers differ."""
    wrong, expected = 0, None
    limits = {"max_drafts": arguments.max_drafts, "draft_cost": arguments.draft_cost}
    for mode in arguments.modes:
        settings = MODES[mode]
        measured = asyncio.run(answer({**limits, **settings}, instances, guided, arguments.max_tokens))
        expected = expected or measured.answers
        equal = sum(mine == theirs for mine, theirs in zip(measured.answers, expected, strict=True))
        rate = f"{measured.accepted / measured.drafted:.2f}" if measured.drafted else "-"
        print(
            f"| {name} | {mode} | {equal} of {len(instances)} | {measured.tokens / measured.passes:.2f} | {rate} "
            f"| {1000 * measured.seconds / measured.tokens:.2f} |",
            flush=True,
        )
        wrong += len(instances) - equal
    return wrong


def published_instances(vocabulary: Vocabulary, folder: Path, many: int) -> dict[str, list[Instance]]:
    """By family, with prompts by `PROMPT`; without those that leave no room for an answer."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    found: dict[str, list[Instance]] = {family: [] for family in PUBLISHED}
    for one in load_instances(folder, vocabulary, named_encoder(MODEL), per_family=many, families=PUBLISHED):
        keys = ", ".join(one.schema.get("properties", {})) or "the answer"
        messages = [{"role": "user", "content": PROMPT.format(keys=keys)}]
        rendered = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        prompt_ids = tokenizer.encode(rendered, add_special_tokens=False)
        if len(prompt_ids) <= LONGEST_PROMPT:
            found[one.family].append(dataclasses.replace(one, prompt_ids=prompt_ids))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200, help="under a schema")
    parser.add_argument("--data", type=Path, help="folder of MaskBench files: answers under published schemas, too")
    parser.add_argument("--free", type=int, default=50, help="without one")
    parser.add_argument(
        "--modes", nargs="+", default=list(MODES), choices=list(MODES), help="the first is compared with"
    )
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--max-drafts", type=int, default=EngineConfig().max_drafts)
    parser.add_argument("--draft-cost", type=float, default=EngineConfig().draft_cost)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = named_vocabulary(MODEL)
    print("| answers | drafts | equal | tokens per pass | accepted | ms per token |")
    print("|---|---|---|---|---|---|", flush=True)
    wrong = 0
    for whitespace in ("compact", "flexible"):
        options = GrammarOptions(whitespace=whitespace)
        instances = list(record_instances(vocabulary, MODEL, arguments.records, options))
        wrong += rows(f"records, {whitespace}", instances, True, arguments)
    if arguments.data is not None:
        for family, published in published_instances(vocabulary, arguments.data, arguments.records).items():
            wrong += rows(family, published, True, arguments)
    wrong += rows("records, free", instances[: arguments.free], False, arguments)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

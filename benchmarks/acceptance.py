"""How many tokens does one forward pass give? Reference answers of MaskBench replayed as the target's choices.

    python -m benchmarks.acceptance --data FOLDER
    python -m benchmarks.acceptance --data FOLDER --draft-model models/turnstile-tiny

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). No model runs: the target "draws" the tokens of
the reference answer (its canonical tokenization), so a draft is accepted exactly when it is right. The prompt is the
schema's text, the only prompt the data has; figures are not comparable with published ones for real prompts.

With a draft model, whose tokenizer is the vocabulary, two modes more are measured: its drafts alone, and after both
others. Its own forward passes are not counted. A third family then shows a draft model at the task that it was trained
on: held-out records of `models`, each with the prompt of the model's chat template.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoTokenizer

from benchmarks.instances import PUBLISHED, Instance, load_instances
from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import named_encoder, named_vocabulary
from gpu_workers.config import EngineConfig
from gpu_workers.guided.forced_text import ForcedTextFinder
from gpu_workers.guided.masks import Constraint, MaskReader
from gpu_workers.model.loader import load
from gpu_workers.output import Outbox, OutputStream
from gpu_workers.request import GenerationRequest
from gpu_workers.sequence.drafts import Drafter
from gpu_workers.sequence.sequence import Sequence
from gpu_workers.speculative.draft_model import DraftModel
from grammar_workers import GrammarOptions, Vocabulary, compile_grammar
from models.batches import render_prompt
from models.evaluate import held_out_records

MODES = {
    "plain": {"forced_text": False, "ngram": 0},
    "forced": {"forced_text": True, "ngram": 0},
    "n-gram": {"forced_text": False, "ngram": EngineConfig().ngram},
    "both": {"forced_text": True, "ngram": EngineConfig().ngram},
}
MODEL_MODES = {"model": MODES["plain"], "all": MODES["both"]}
"""With the draft model, where nothing else drafts."""
RECORDS = "records"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class _Immediately(Executor):
    """Reads mask rows where they are asked for: every row is known when it is needed."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclasses.dataclass
class Count:
    tokens: int = 0
    passes: int = 0
    fed: int = 0
    drafted: int = 0
    accepted: int = 0

    def __iadd__(self, other: Count) -> Count:
        for field in dataclasses.fields(Count):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self


def replay(
    instance: Instance,
    vocabulary: Vocabulary,
    finder: ForcedTextFinder,
    config: EngineConfig,
    count: Count,
    draft_model: DraftModel | None = None,
) -> None:
    """Runs one sequence as the engine does, with the reference answer in place of the sampler."""
    reader = MaskReader(
        _Immediately(),
        vocabulary.eos_token_ids,
        config.sparse_limit,
        lambda: None,
        finder if config.forced_text else None,
    )
    request = GenerationRequest(
        request_id="replay", prompt=instance.prompt_ids, grammar={"key": "0" * 64, "specification": {}}
    )
    length = len(instance.prompt_ids) + len(instance.token_ids) + 1
    drafter = Drafter(cost=config.draft_cost, limit=config.max_drafts, ngram=config.ngram)
    stream = OutputStream(0, Outbox())
    sequence = Sequence(request, instance.prompt_ids, vocabulary, length, stream, drafter)
    sequence.slot = 0
    sequence.constrain(Constraint(instance.fsm, instance.fsm.initial_state, reader.table(instance.fsm)))

    def follow() -> bool:
        sequence.catch_up()
        sequence.settle()
        sequence.append_forced()
        return sequence.finish_reason is None

    while follow():
        sequence.propose()
        if draft_model is not None and not sequence.drafts and sequence.draft_room > 0:
            draft_model.propose([sequence])
        count.passes += 1
        count.fed += min(sequence.pending, 16) + len(sequence.drafts)
        count.drafted += len(sequence.drafts)
        sequence.length = len(sequence.token_ids)
        sequence.receive(torch.zeros(1 + len(sequence.drafts), 1))
        while sequence.hidden_state is not None:
            sequence.append(instance.token_ids[sequence.output_length])
            count.accepted += sequence.hidden_state is not None
            if sequence.hidden_state is not None and not follow():
                break
    assert sequence.token_ids[len(instance.prompt_ids) :] == instance.token_ids[: sequence.output_length]
    count.tokens += sequence.output_length


def record_instances(vocabulary: Vocabulary, model: str, many: int, options: GrammarOptions) -> Iterator[Instance]:
    """Held-out records of the embedded model's task, under a schema of their keys and types."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    for example in held_out_records(many):
        answer = json.loads(example.answer)
        schema = {
            "type": "object",
            "properties": {key: {"type": _TYPES[type(value)]} for key, value in answer.items()},
            "required": list(answer),
            "additionalProperties": False,
        }
        fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary, options=options)
        token_ids = tokenizer.encode(example.answer, add_special_tokens=False)
        prompt_ids = tokenizer.encode(render_prompt(tokenizer, example), add_special_tokens=False)
        yield Instance(RECORDS, fsm, schema, answer, prompt_ids, [*token_ids, vocabulary.eos_token_ids[0]])


async def measure(arguments: argparse.Namespace) -> None:
    name = arguments.draft_model or arguments.vocabulary
    vocabulary, encode = named_vocabulary(name), named_encoder(name)
    drafting = EngineConfig(
        slots=1, prefill_chunk=4096, threads=1, max_drafts=arguments.max_drafts, draft_cost=arguments.draft_cost
    )
    loaded_draft = None if arguments.draft_model is None else load(arguments.draft_model, drafting)
    draft_model = None if loaded_draft is None else DraftModel(loaded_draft, drafting)
    unmasked = drafting.model_copy(update={"draft_masks": False})
    modes = {mode: (settings, None) for mode, settings in MODES.items()}
    if draft_model is not None:
        modes |= {mode: (settings, draft_model) for mode, settings in MODEL_MODES.items()}
        # With a KV cache of its own.
        modes["model, no masks"] = MODES["plain"], DraftModel(load(arguments.draft_model, unmasked), unmasked)
    finder = ForcedTextFinder(vocabulary, encode)
    header = ("instances", "tokens", "passes", "tokens/pass", "accepted")
    print(f"{'grammar':10} {'family':16} {'drafts':8}", *(f"{name:>11}" for name in header))
    for whitespace in ("compact", "flexible"):
        counts: dict[tuple[str, str], Count] = collections.defaultdict(Count)
        instances: collections.Counter[str] = collections.Counter()
        options = GrammarOptions(whitespace=whitespace)
        loaded = load_instances(
            arguments.data, vocabulary, encode, per_family=arguments.instances, options=options, families=PUBLISHED
        )
        if loaded_draft is not None:
            records = record_instances(vocabulary, arguments.draft_model, arguments.instances, options)
            loaded = itertools.chain(loaded, records)
        for instance in tqdm(
            loaded, desc=whitespace, total=(len(PUBLISHED) + (draft_model is not None)) * arguments.instances
        ):
            length = len(instance.prompt_ids) + len(instance.token_ids)
            if loaded_draft is not None and length >= loaded_draft.max_length:
                continue
            instances[instance.family] += 1
            for mode, (settings, model) in modes.items():
                config = EngineConfig(max_drafts=arguments.max_drafts, draft_cost=arguments.draft_cost, **settings)
                replay(instance, vocabulary, finder, config, counts[instance.family, mode], model)
        for mode in modes:
            for family in list(PUBLISHED):
                counts["all", mode] += counts[family, mode]
        instances["all"] = sum(instances[family] for family in PUBLISHED)
        for (family, mode), count in counts.items():
            rate = f"{count.accepted / count.drafted:.2f}" if count.drafted else "-"
            columns = (instances[family], count.tokens, count.passes, f"{count.tokens / count.passes:.2f}", rate)
            print(f"{whitespace:10} {family:16} {mode:15}", *(f"{column:>11}" for column in columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", default="tekken", help="tekken, sentencepiece, or a model folder or id")
    parser.add_argument("--draft-model", help="folder or id of a model; measures with its tokenizer")
    parser.add_argument("--instances", type=int, default=50, help="schemas per family")
    parser.add_argument("--max-drafts", type=int, default=EngineConfig().max_drafts)
    parser.add_argument("--draft-cost", type=float, default=EngineConfig().draft_cost)
    arguments = parse_with_data(parser)
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()

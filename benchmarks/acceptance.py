"""Measure the tokens per forward pass of each draft method, by replaying reference responses of MaskBench.

    python -m benchmarks.acceptance --data FOLDER
    python -m benchmarks.acceptance --data FOLDER --draft-model models/turnstile-tiny

FOLDER contains the files of MaskBench (guidance-ai/jsonschemabench, MIT). No target model runs: in place of sampled
tokens, the program uses the tokens of the reference response (its canonical tokenization), and accepts a draft if it
equals the next token. The prompt is the schema's text, because MaskBench has no other prompts. So the figures are not
comparable with published figures for real prompts.

`--draft-model` adds three modes: drafts of the model alone; forced text and n-grams first, then drafts of the model;
and drafts of the model alone, without masks. The vocabulary is then that of the draft model. Its own forward passes are
not counted. The draft model is also measured on its training task: held-out records of `models`, with the prompt of the
model's chat template.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.frame import Table, new_parser, progress
from benchmarks.instances import PUBLISHED, Instance, add_draft_options, load_instances
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
    "plain": {"forced_text": False, "prompt_lookup_max": 0},
    "forced": {"forced_text": True, "prompt_lookup_max": 0},
    "n-gram": {"forced_text": False, "prompt_lookup_max": EngineConfig().prompt_lookup_max},
    "both": {"forced_text": True, "prompt_lookup_max": EngineConfig().prompt_lookup_max},
}
RECORDS, ALL = "records", "all"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class _Immediately(Executor):
    """Executor that runs each function at once: every mask is computed before it is needed."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


# Number of tokens, forward passes, drafted tokens and accepted tokens of one mode.
Count = collections.Counter[str]


def replay(
    instance: Instance,
    vocabulary: Vocabulary,
    finder: ForcedTextFinder,
    config: EngineConfig,
    draft_model: DraftModel | None = None,
) -> Count:
    """Run one sequence as the engine does, with the tokens of the reference response in place of sampled tokens.

    Args:
        instance: Schema, prompt and reference response.
        vocabulary: Vocabulary of the token ids.
        finder: Searches forced text. It is used if `config.forced_text` is true.
        config: Limits and costs of the drafts.
        draft_model: Proposes drafts if neither forced text nor prompt lookup has one; None: no draft model.

    Returns:
        Counter with the keys "tokens" (output tokens), "passes" (forward passes of the target), "drafted" and
        "accepted" (draft tokens).
    """
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
    stream = OutputStream(0, Outbox())
    sequence = Sequence(request, instance.prompt_ids, vocabulary, length, stream, Drafter(config))
    sequence.slot = 0
    sequence.constrain(Constraint(instance.fsm, instance.fsm.initial_state, reader.table(instance.fsm)))

    def follow() -> bool:
        sequence.catch_up()
        sequence.settle()
        sequence.append_forced()
        return sequence.finish_reason is None

    count = Count()
    while follow():
        sequence.propose()
        if draft_model is not None and not sequence.drafts and sequence.draft_room > 0:
            draft_model.propose([sequence])
        count["passes"] += 1
        count["drafted"] += len(sequence.drafts)
        sequence.length = len(sequence.token_ids)
        sequence.receive(torch.zeros(1 + len(sequence.drafts), 1))
        while sequence.hidden_state is not None:
            sequence.append(instance.token_ids[sequence.output_length])
            count["accepted"] += sequence.hidden_state is not None
            if sequence.hidden_state is not None and not follow():
                break
    assert sequence.token_ids[len(instance.prompt_ids) :] == instance.token_ids[: sequence.output_length]
    count["tokens"] = sequence.output_length
    return count


def record_instances(vocabulary: Vocabulary, model: str, many: int, options: GrammarOptions) -> Iterator[Instance]:
    """Yield held-out records of the embedded model's task, each with a schema of the record's keys and types.

    Args:
        vocabulary: Vocabulary of the grammars.
        model: Folder or Hugging Face ID of the model whose tokenizer and chat template are used.
        many: Number of records.
        options: Options of the grammars.

    Yields:
        Instances of the family `RECORDS`.
    """
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


# Mode -> the engine's settings, and the draft model (None: no draft model).
Modes = dict[str, tuple[dict[str, Any], DraftModel | None]]


async def measure(arguments: argparse.Namespace) -> None:
    """Measure the modes under compact and flexible whitespace, and print a table with a row per family and mode.

    Args:
        arguments: Command line.
    """
    name = arguments.draft_model or arguments.vocabulary
    vocabulary, encode = named_vocabulary(name), named_encoder(name)
    drafting = EngineConfig(
        max_num_seqs=1,
        long_prefill_token_threshold=4096,
        threads=1,
        num_speculative_tokens=arguments.num_speculative_tokens,
        draft_cost=arguments.draft_cost,
    )
    modes: Modes = {mode: (settings, None) for mode, settings in MODES.items()}
    longest = None
    if arguments.draft_model is not None:
        loaded_draft = load(arguments.draft_model, drafting)
        longest = loaded_draft.max_model_len
        modes |= model_modes(arguments.draft_model, DraftModel(loaded_draft, drafting), drafting)
    finder = ForcedTextFinder(vocabulary, encode)
    table = Table("grammar", "family", "drafts", "instances", "tokens", "passes", "tokens/pass", "accepted")
    for whitespace in ("compact", "flexible"):
        counts: dict[tuple[str, str], Count] = collections.defaultdict(Count)
        instances: collections.Counter[str] = collections.Counter()
        options = GrammarOptions(whitespace=whitespace)
        loaded = load_instances(arguments.data, vocabulary, encode, per_family=arguments.instances, options=options)
        if arguments.draft_model is not None:
            records = record_instances(vocabulary, arguments.draft_model, arguments.instances, options)
            loaded = itertools.chain(loaded, records)
        for instance in progress(loaded, whitespace):
            if longest is not None and len(instance.prompt_ids) + len(instance.token_ids) >= longest:
                continue
            families = [instance.family, ALL] if instance.family in PUBLISHED else [instance.family]
            instances.update(families)
            for mode, (settings, model) in modes.items():
                config = EngineConfig(
                    num_speculative_tokens=arguments.num_speculative_tokens, draft_cost=arguments.draft_cost, **settings
                )
                count = replay(instance, vocabulary, finder, config, model)
                for family in families:
                    counts[family, mode] += count
        for family, mode in itertools.product((*PUBLISHED, RECORDS, ALL), modes):
            if count := counts[family, mode]:
                per_pass = f"{count['tokens'] / count['passes']:.2f}"
                rate = f"{count['accepted'] / count['drafted']:.2f}" if count["drafted"] else "-"
                table.row(whitespace, family, mode, instances[family], count["tokens"], count["passes"], per_pass, rate)


def model_modes(name: str, model: DraftModel, drafting: EngineConfig) -> Modes:
    """Return the modes with a draft model, which drafts only if no other method has a draft.

    Args:
        name: Folder or Hugging Face ID of the draft model.
        model: The draft model, which drafts under masks.
        drafting: Settings of the draft model.

    Returns:
        Mode -> engine settings and draft model. In the last mode, the draft model drafts without masks.
    """
    unmasked = drafting.model_copy(update={"draft_masks": False})
    # With a KV cache of its own.
    without_masks = DraftModel(load(name, unmasked), unmasked)
    return {
        "model": (MODES["plain"], model),
        "all": (MODES["both"], model),
        "model, no masks": (MODES["plain"], without_masks),
    }


def main() -> None:
    """Parse the command line and print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--vocabulary", default="tekken", help="tekken, sentencepiece, or a model folder or id")
    parser.add_argument("--draft-model", help="folder or id of a model; measures with its tokenizer")
    parser.add_argument("--instances", type=int, default=50, help="schemas per family")
    add_draft_options(parser)
    arguments = parse_with_data(parser)
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()

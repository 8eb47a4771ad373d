"""How many tokens does one forward pass give? Reference answers of MaskBench replayed as the target's choices.

    python -m benchmarks.acceptance --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). No model runs: the target "draws" the tokens of
the reference answer (its canonical tokenization), so a draft is accepted exactly when it is right. The prompt is the
schema's text, the only prompt the data has; figures are not comparable with published ones for real prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.instances import FAMILIES, Instance, load_instances
from benchmarks.vocabularies import named_encoder, named_vocabulary
from gpu_workers.config import EngineConfig
from gpu_workers.drafts import Drafter
from gpu_workers.forced_text import ForcedTextFinder
from gpu_workers.masks import Constraint, MaskReader
from gpu_workers.output import Outbox, OutputStream
from gpu_workers.request import GenerationRequest
from gpu_workers.sequence import Sequence
from grammar_workers import GrammarOptions, Vocabulary

MODES = {
    "plain": {"forced_text": False, "ngram": 0},
    "forced": {"forced_text": True, "ngram": 0},
    "n-gram": {"forced_text": False, "ngram": EngineConfig().ngram},
    "both": {"forced_text": True, "ngram": EngineConfig().ngram},
}


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
    instance: Instance, vocabulary: Vocabulary, finder: ForcedTextFinder, config: EngineConfig, count: Count
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
    sequence.constrain(Constraint(instance.fsm, instance.fsm.initial_state, reader.table(instance.fsm)))

    def follow() -> bool:
        sequence.catch_up()
        sequence.settle()
        sequence.append_forced()
        return sequence.finish_reason is None

    while follow():
        sequence.propose()
        count.passes += 1
        count.fed += min(sequence.pending, 16) + len(sequence.drafts)
        count.drafted += len(sequence.drafts)
        sequence.length = len(sequence.token_ids)
        sequence.receive(torch.zeros(1 + len(sequence.drafts), 1))
        while sequence.features is not None:
            sequence.append(instance.token_ids[sequence.output_length])
            count.accepted += sequence.features is not None
            if sequence.features is not None and not follow():
                break
    assert sequence.token_ids[len(instance.prompt_ids) :] == instance.token_ids[: sequence.output_length]
    count.tokens += sequence.output_length


async def measure(arguments: argparse.Namespace) -> None:
    vocabulary, encode = named_vocabulary(arguments.vocabulary), named_encoder(arguments.vocabulary)
    finder = ForcedTextFinder(vocabulary, encode)
    header = ("instances", "tokens", "passes", "tokens/pass", "accepted")
    print(f"{'grammar':10} {'family':16} {'drafts':8}", *(f"{name:>11}" for name in header))
    for whitespace in ("compact", "flexible"):
        counts: dict[tuple[str, str], Count] = collections.defaultdict(Count)
        instances: collections.Counter[str] = collections.Counter()
        options = GrammarOptions(whitespace=whitespace)
        loaded = load_instances(arguments.data, vocabulary, encode, per_family=arguments.instances, options=options)
        for instance in tqdm(loaded, desc=whitespace, total=2 * arguments.instances):
            instances[instance.family] += 1
            for mode, settings in MODES.items():
                config = EngineConfig(max_drafts=arguments.max_drafts, draft_cost=arguments.draft_cost, **settings)
                replay(instance, vocabulary, finder, config, counts[instance.family, mode])
        for mode in MODES:
            for family in list(FAMILIES):
                counts["all", mode] += counts[family, mode]
        instances["all"] = instances.total()
        for (family, mode), count in counts.items():
            rate = f"{count.accepted / count.drafted:.2f}" if count.drafted else "-"
            columns = (instances[family], count.tokens, count.passes, f"{count.tokens / count.passes:.2f}", rate)
            print(f"{whitespace:10} {family:16} {mode:8}", *(f"{column:>11}" for column in columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with MaskBench files")
    parser.add_argument("--vocabulary", default="tekken", help="tekken, sentencepiece, or a model folder or id")
    parser.add_argument("--instances", type=int, default=50, help="schemas per family")
    parser.add_argument("--max-drafts", type=int, default=EngineConfig().max_drafts)
    parser.add_argument("--draft-cost", type=float, default=EngineConfig().draft_cost)
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.exit(0, f"skipped: {arguments.data} is not a folder with MaskBench files\n")
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()

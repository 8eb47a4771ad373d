"""Measure tokens per forward pass with the embedded model's EAGLE-3 head, compared with the other draft methods.

    python -m benchmarks.eagle [--data FOLDER]

The native engine generates held-out records of `models` at temperature 0, with the prompt of the model's chat template:
under a schema of the record's keys and types (compact and flexible whitespace), and without a schema. A forward pass is
one pass of the target over one sequence; the passes over the prompt count. The head's own passes are not counted, but
the times include them. In the mode `in the step`, the head drafts inside the device step, which has at most eight
tokens per sequence. The exit status is 1 if a response differs from the response without drafts.

FOLDER contains the files of MaskBench (guidance-ai/jsonschemabench, MIT). With `--data`, the engine also generates
responses under schemas of JSON Mode Eval, function calls and JSON Schema Bench, with compact whitespace. The head was
not trained for them. The prompts name the schema's properties and contain no part of a response.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.acceptance import record_instances
from benchmarks.frame import Table, new_parser
from benchmarks.instances import PUBLISHED, Instance, add_draft_options, load_instances
from benchmarks.vocabularies import named_encoder, named_vocabulary
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import load
from gpu_workers.request import GenerationRequest, GrammarReference, SamplingParameters
from gpu_workers.speculative.eagle_drafter import load_eagle
from grammar_workers import GrammarOptions, TokenFSM, Vocabulary

MODELS = Path(__file__).parent.parent / "models"
MODEL, HEAD = str(MODELS / "turnstile-tiny"), str(MODELS / "turnstile-tiny-eagle3")
NOTHING: dict[str, Any] = {"forced_text": False, "prompt_lookup_max": 0}
LONGEST_PROMPT = 1500
ALL: dict[str, Any] = {"eagle_head": HEAD}
MODES: dict[str, dict[str, Any]] = {
    "none": NOTHING,
    "n-gram": {"forced_text": False},
    "forced": {"prompt_lookup_max": 0},
    "n-gram and forced": {},
    "EAGLE-3, masked": {**NOTHING, **ALL},
    "EAGLE-3, unmasked": {**NOTHING, **ALL, "draft_masks": False},
    "EAGLE-3, in the step": {**NOTHING, **ALL, "device_step": "eager"},
    "EAGLE-3 and forced": {"prompt_lookup_max": 0, **ALL},
    "all": ALL,
}


# `keys` are the names of the schema's properties. The prompt has no part of a response, so nothing can be copied.
PROMPT = "Write {keys} as JSON."


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one mode over all responses.

    Attributes:
        answers: Token ids of each response.
        passes: Number of forward passes of the target model.
        drafted: Number of draft tokens.
        accepted: Number of accepted draft tokens.
        seconds: Wall time of all responses.
    """

    answers: list[list[int]]
    passes: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def tokens(self) -> int:
        """Total number of generated tokens."""
        return sum(map(len, self.answers))


async def answer(settings: dict[str, Any], instances: list[Instance], guided: bool, max_tokens: int) -> Measured:
    """Generate the responses one after another, so that a step of the engine is a forward pass of one sequence.

    Args:
        settings: Draft settings of the engine, as fields of `EngineConfig`.
        instances: Prompts and grammars.
        guided: True: the responses are generated under the grammars.
        max_tokens: Maximum number of tokens of a response.

    Returns:
        The results.
    """
    config = EngineConfig(
        max_num_seqs=1,
        threads=1,
        long_prefill_token_threshold=2048,
        max_num_batched_tokens=2100,
        min_prefix_tokens=4096,
        **settings,
    )
    loaded = load(MODEL, config)

    async def fetch(grammar: GrammarReference) -> TokenFSM:
        return instances[grammar.specification["index"]].fsm

    answers = []
    with contextlib.closing(Engine(loaded, config, fetch, load_eagle(config, loaded))) as engine:
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


def rows(table: Table, name: str, instances: list[Instance], guided: bool, arguments: argparse.Namespace) -> int:
    """Generate all responses in each mode, and print a row per mode.

    Args:
        table: Table to which the rows are printed.
        name: Name of the set of instances.
        instances: Prompts and grammars.
        guided: True: the responses are generated under the grammars.
        arguments: Command line.

    Returns:
        Number of responses that differ from the response of the first mode.
    """
    wrong, expected = 0, None
    limits = {"num_speculative_tokens": arguments.num_speculative_tokens, "draft_cost": arguments.draft_cost}
    for mode in arguments.modes:
        settings = MODES[mode]
        measured = asyncio.run(answer({**limits, **settings}, instances, guided, arguments.max_tokens))
        expected = expected or measured.answers
        equal = sum(mine == theirs for mine, theirs in zip(measured.answers, expected, strict=True))
        rate = f"{measured.accepted / measured.drafted:.2f}" if measured.drafted else "-"
        per_pass, ms = measured.tokens / measured.passes, 1000 * measured.seconds / measured.tokens
        table.row(name, mode, f"{equal} of {len(instances)}", f"{per_pass:.2f}", rate, f"{ms:.2f}")
        wrong += len(instances) - equal
    return wrong


def published_instances(vocabulary: Vocabulary, folder: Path, many: int) -> dict[str, list[Instance]]:
    """Return instances of MaskBench with prompts that name the properties of the schema.

    Args:
        vocabulary: Vocabulary of the grammars.
        folder: Folder of MaskBench files.
        many: Maximum number of instances per family.

    Returns:
        Instances by family (a key of `PUBLISHED`). Prompts of more than `LONGEST_PROMPT` tokens are left out.
    """
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    found: dict[str, list[Instance]] = {family: [] for family in PUBLISHED}
    for one in load_instances(folder, vocabulary, named_encoder(MODEL), per_family=many):
        keys = ", ".join(one.schema.get("properties", {})) or "the answer"
        messages = [{"role": "user", "content": PROMPT.format(keys=keys)}]
        rendered = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        prompt_ids = tokenizer.encode(rendered, add_special_tokens=False)
        if len(prompt_ids) <= LONGEST_PROMPT:
            found[one.family].append(dataclasses.replace(one, prompt_ids=prompt_ids))
    return found


def main() -> int:
    """Parse the command line and print the table. Return 1 if a response differs from the first mode's."""
    parser = new_parser(__doc__)
    parser.add_argument("--records", type=int, default=200, help="under a schema")
    parser.add_argument("--data", type=Path, help="folder of MaskBench files: answers under published schemas, too")
    parser.add_argument("--free", type=int, default=50, help="without one")
    parser.add_argument(
        "--modes", nargs="+", default=list(MODES), choices=list(MODES), help="the first is compared with"
    )
    parser.add_argument("--max-tokens", type=int, default=120)
    add_draft_options(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = named_vocabulary(MODEL)
    table = Table("answers", "drafts", "equal", "tokens per pass", "accepted", "ms per token")
    wrong = 0
    for whitespace in ("compact", "flexible"):
        options = GrammarOptions(whitespace=whitespace)
        instances = list(record_instances(vocabulary, MODEL, arguments.records, options))
        wrong += rows(table, f"records, {whitespace}", instances, True, arguments)
    if arguments.data is not None:
        for family, published in published_instances(vocabulary, arguments.data, arguments.records).items():
            wrong += rows(table, family, published, True, arguments)
    wrong += rows(table, "records, free", instances[: arguments.free], False, arguments)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

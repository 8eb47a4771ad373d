"""Reference responses of MaskBench as token IDs, in place of the outputs of a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.texts import state_after
from gpu_workers.config import EngineConfig
from grammar_workers import GrammarError, GrammarOptions, TokenFSM, Vocabulary, compile_grammar

# Prefixes of file names by family. The schemas of the last family were not written for a model.
PUBLISHED = {
    "JSON Mode Eval": ("JME_",),
    "function calls": ("BFCL_", "Glaiveai2K"),
    "JSON Schema Bench": ("Github_easy", "Github_medium", "Kubernetes"),
}


@dataclass(frozen=True, slots=True)
class Instance:
    """A schema with one valid response.

    Attributes:
        family: Name of the set of schemas: a key of `PUBLISHED`, or another name.
        fsm: Automaton of the schema.
        schema: The schema.
        answer: The response as a JSON value.
        prompt_ids: Token ids of the prompt, by default the schema's text.
        token_ids: Token ids of the response, with an end token.
    """

    family: str
    fsm: TokenFSM
    schema: Any
    answer: Any
    prompt_ids: list[int]
    token_ids: list[int]


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--num-speculative-tokens` and `--draft-cost` to a parser.

    Args:
        parser: The parser.
    """
    parser.add_argument("--num-speculative-tokens", type=int, default=EngineConfig().num_speculative_tokens)
    parser.add_argument("--draft-cost", type=float, default=EngineConfig().draft_cost)


def load_instances(
    folder: Path,
    vocabulary: Vocabulary,
    encode: Callable[[str], list[int]],
    *,
    per_family: int,
    options: GrammarOptions = GrammarOptions(),  # noqa: B008 - immutable
) -> Iterator[Instance]:
    """Yield the first valid response of each schema of `PUBLISHED`, if the grammar accepts it.

    The response is serialized by `json.dumps`. If it lists properties in another order than its schema, the grammar
    rejects it and the schema is skipped.

    Args:
        folder: Folder of MaskBench files.
        vocabulary: Vocabulary of the grammars.
        encode: Tokenizer of `vocabulary`, without special tokens.
        per_family: Maximum number of instances per family.
        options: Options of the grammars.

    Yields:
        Instances, family by family.
    """
    for family, prefixes in PUBLISHED.items():
        found = 0
        for path in sorted(path for prefix in prefixes for path in folder.glob(f"{prefix}*.json")):
            if found == per_family:
                break
            case = json.loads(path.read_text())
            answers = [test["data"] for test in case["tests"] if test["valid"]]
            try:
                fsm = compile_grammar({"type": "json_schema", "schema": case["schema"]}, vocabulary, options=options)
            except GrammarError:
                continue
            token_ids = (
                [*encode(json.dumps(answers[0], ensure_ascii=False)), vocabulary.eos_token_ids[0]] if answers else []
            )
            if token_ids and state_after(fsm, token_ids) == fsm.end_state:
                found += 1
                prompt_ids = encode(json.dumps(case["schema"]))
                yield Instance(family, fsm, case["schema"], answers[0], prompt_ids, token_ids)

"""Reference answers of MaskBench as token ids: what a model that answers right would have generated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grammar_workers import GrammarError, GrammarOptions, TokenFSM, Vocabulary, compile_grammar

FAMILIES = {"JSON Mode Eval": ("JME_",), "function calls": ("BFCL_", "Glaiveai2K")}
PUBLISHED = {**FAMILIES, "JSON Schema Bench": ("Github_easy", "Github_medium", "Kubernetes")}
"""Prefixes of files by family; the last has schemas that nobody has written for a model."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One schema with one valid `answer`. `prompt_ids`: the schema's text; `token_ids` ends with an end token."""

    family: str
    fsm: TokenFSM
    schema: Any
    answer: Any
    prompt_ids: list[int]
    token_ids: list[int]


def load_instances(
    folder: Path,
    vocabulary: Vocabulary,
    encode: Callable[[str], list[int]],
    *,
    per_family: int,
    options: GrammarOptions = GrammarOptions(),  # noqa: B008 - immutable
    families: Mapping[str, tuple[str, ...]] = FAMILIES,
) -> Iterator[Instance]:
    """The first valid answer of each schema of `families`, as `json.dumps` writes it, where the grammar accepts it.

    A reference answer may list properties in another order than its schema; such a schema is passed over.
    """
    for family, prefixes in families.items():
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
            if token_ids and _accepts(fsm, token_ids):
                found += 1
                prompt_ids = encode(json.dumps(case["schema"]))
                yield Instance(family, fsm, case["schema"], answers[0], prompt_ids, token_ids)


def _accepts(fsm: TokenFSM, token_ids: list[int]) -> bool:
    state = fsm.initial_state
    for token_id in token_ids:
        state = fsm.next_state(state, token_id)
    return state == fsm.end_state

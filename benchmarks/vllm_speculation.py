"""Does speculation in vLLM change an answer under our masks, and how many engine steps does it save?

    PYTHONPATH=. .venv-vllm/bin/python -m benchmarks.vllm_speculation --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). Runs in the environment of `make vllm`, with the
embedded model and at most 16 requests at a time. The first row has no speculation; `equal` counts the answers that have
the same tokens at temperature 0. `valid` are those of the finished answers that `jsonschema` accepts. Steps, drafts and
preemptions are the scheduler's. `+ forced` is TURNSTILE_FORCED_DRAFTS, which wants synchronous scheduling. `itself` is
the embedded model as its own draft model; the other drafters have random weights. Exits with status 1 where an answer
differs or is invalid.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.maskbench_data import parse_with_data
from grammar_workers import GrammarError, compile_grammar
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.vllm.models import random_draft_model, random_eagle3_head
from tests.vllm.offline import EngineProcess, Request, Run
from tests.vllm.server import MODEL

WINDOW = 4
SYNC = {"async_scheduling": False}
SMALL_CACHE = {"num_gpu_blocks_override": 36, "block_size": 32}
"""Room for one request of the greatest length, or for four of 16 at the length of most."""


def chosen_schemas(folder: Path, count: int) -> list[Any]:
    """`count` schemas that we compile, from all over the folder."""
    vocabulary = load_vocabulary(str(MODEL))
    paths = sorted(folder.glob("*.json"))
    schemas: list[Any] = []
    for path in paths[:: max(1, len(paths) // (2 * count))]:
        schema = json.loads(path.read_text())["schema"]
        try:
            compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
        except GrammarError:
            continue
        schemas.append(schema)
        if len(schemas) == count:
            break
    return schemas


def requests(schemas: list[Any], max_tokens: int) -> list[Request]:
    return [
        Request(
            f"Give me an example of this: {json.dumps(schema)[:200]}",
            {"temperature": 0, "max_tokens": max_tokens},
            {"json": schema},
        )
        for schema in schemas
    ]


def speculative(method: str, **fields: Any) -> dict[str, Any]:
    return {"speculative_config": {"method": method, "num_speculative_tokens": WINDOW, **fields}}


def methods(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Name -> arguments of vLLM's LLM: without and with forced drafts."""
    ngram = speculative("ngram", prompt_lookup_max=3)
    itself = speculative("draft_model", model=str(MODEL))
    draft = speculative("draft_model", model=str(random_draft_model(folder / "draft", MODEL)))
    eagle3 = speculative("eagle3", model=str(random_eagle3_head(folder / "eagle3", MODEL)))
    plain = {
        "none": SYNC,
        "none, async": {},
        "n-gram": ngram,
        "itself": {**itself, **SYNC},
        "itself, async": itself,
        "draft model, async": draft,
        "EAGLE-3": {**eagle3, **SYNC},
        "EAGLE-3, async": eagle3,
        "itself, async, small cache": {**itself, **SMALL_CACHE},
    }
    forced = {
        "n-gram + forced": ngram,
        "itself + forced": {**itself, **SYNC},
        "EAGLE-3 + forced": {**eagle3, **SYNC},
        "n-gram + forced, small cache": {**ngram, **SMALL_CACHE},
    }
    return plain, forced


def runs(folder: Path, asked: list[Request], only: list[str] | None) -> Iterator[tuple[str, Run]]:
    plain, forced = methods(folder)
    for settings, engines in (({}, plain), ({"TURNSTILE_FORCED_DRAFTS": str(WINDOW)}, forced)):
        process = EngineProcess(folder, **settings)
        try:
            for name, arguments in engines.items():
                if only is None or name in only or name == "none":
                    yield name, process.run(arguments, [asked])[0]
        finally:
            process.close()


def is_valid(text: str, schema: Any) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (jsonschema.ValidationError, ValueError):
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=80)
    parser.add_argument("--only", nargs="*", help="rows, by name; the first one is always there")
    arguments = parse_with_data(parser)
    schemas = chosen_schemas(arguments.data, arguments.schemas)
    print("| method | equal | finished | valid | steps | drafts proposed | accepted | preemptions |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    wrong, expected = 0, None
    with tempfile.TemporaryDirectory() as folder:
        for name, run in runs(Path(folder), requests(schemas, arguments.max_tokens), arguments.only):
            tokens = [answer.token_ids for answer in run.answers]
            expected = expected or tokens
            equal = sum(mine == theirs for mine, theirs in zip(tokens, expected, strict=True))
            ended = [(a.text, s) for a, s in zip(run.answers, schemas, strict=True) if a.finish_reason == "stop"]
            valid = sum(is_valid(text, schema) for text, schema in ended)
            counts = run.counts
            print(
                f"| {name} | {equal} of {len(tokens)} | {len(ended)} | {valid} | {counts.steps:,} "
                f"| {counts.proposed:,} | {counts.accepted:,} | {counts.preemptions:,} |",
                flush=True,
            )
            wrong += len(tokens) - equal + len(ended) - valid
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

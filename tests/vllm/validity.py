"""Is what `vllm serve` answers valid? The same schemas through each of its structured output backends and ours.

    .venv-vllm/bin/python -m tests.vllm.validity --data FOLDER

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). The embedded model answers one prompt under each
schema at temperature 1, from 16 clients at a time; a server for each backend, one after the other. An answer that ended
by itself is judged by `jsonschema`; one that `max_tokens` cut is counted as cut, a 400 as refused. The model is tiny:
answers say nothing of quality. Needs `make vllm`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai

from benchmarks.frame import Table, new_parser, progress
from benchmarks.maskbench_data import parse_with_data
from benchmarks.vllm_engine import BACKENDS, OURS, vllm_name
from tests.vllm.server import vllm_serve

PROMPT: Any = [{"role": "user", "content": "Answer with an example."}]
COLUMNS = ("valid", "invalid", "cut", "refused", "failed")


def schemas(folder: Path, many: int) -> list[Any]:
    """So many schemas, evenly spread over the files; those that are no schemas to `jsonschema` are left out."""
    return list(_schemas(folder))[:: max(1, len(list(folder.glob("*.json"))) // many)][:many]


def _schemas(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*.json")):
        schema = json.loads(path.read_text())["schema"]
        try:
            jsonschema.validators.validator_for(schema).check_schema(schema)
        except (jsonschema.SchemaError, TypeError):
            continue
        yield schema


def outcome(client: openai.OpenAI, schema: Any, max_tokens: int) -> str:
    """One of `COLUMNS`."""
    try:
        answer = client.chat.completions.create(
            model="tiny",
            messages=PROMPT,
            temperature=1.0,
            max_tokens=max_tokens,
            response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
        )
    except openai.BadRequestError:
        return "refused"
    except openai.OpenAIError as error:
        print(f"{error!r:.200}", file=sys.stderr)
        return "failed"
    if answer.choices[0].finish_reason != "stop":
        return "cut"
    try:
        kind = jsonschema.validators.validator_for(schema)
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(answer.choices[0].message.content or ""))
    except (ValueError, jsonschema.ValidationError):
        return "invalid"
    return "valid"


def measure(name: str, wanted: list[Any], arguments: argparse.Namespace) -> Counter[str]:
    """Count the outcomes of the schemas under one backend."""
    with (
        tempfile.TemporaryDirectory(prefix="vllm-") as folder,
        vllm_serve(Path(folder), backend=vllm_name(name), TURNSTILE_VLLM=str(int(name == OURS))) as url,
        concurrent.futures.ThreadPoolExecutor(arguments.clients) as clients,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client,
    ):
        asked = clients.map(lambda schema: outcome(client, schema, arguments.max_tokens), wanted)
        return Counter(progress(asked, name, len(wanted)))


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--schemas", type=int, default=200, help="how many")
    parser.add_argument("--clients", type=int, default=16, help="requests at a time")
    parser.add_argument("--max-tokens", type=int, default=300, help="of each answer")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=list(BACKENDS), help="in this order")
    arguments = parse_with_data(parser)
    wanted = schemas(arguments.data, arguments.schemas)
    print(f"{len(wanted)} schemas, {arguments.clients} clients")
    table = Table("backend", *COLUMNS)
    for name in arguments.backends:
        found = measure(name, wanted, arguments)
        table.row(name, *(found[column] for column in COLUMNS))


if __name__ == "__main__":
    main()

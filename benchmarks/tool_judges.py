"""Calls drawn under our masks, read by vLLM's own tool parsers: the same names and arguments?

    .venv-vllm/bin/python -m benchmarks.tool_judges --data FOLDER [--sets 200]

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT), whose function calls become tool sets as in
`benchmarks.tool_calls`. For each tool set and each parser of vLLM's, one answer with calls is drawn at random under the
mask of the format; it is read by our reader in pieces and whole, by vLLM's parser whole and token by token, and
`jsonschema` judges the arguments. Where vLLM's reading differs, a minimal answer of the same kind stands in
tests/vllm/test_tool_parsers.py. Exit status 1 when a call of ours is invalid or our two readings differ.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import random
import sys
from typing import Any

import jsonschema
from tqdm import tqdm

from benchmarks.maskbench_data import parse_with_data
from benchmarks.tool_calls import called, generated, requests
from deployments.chat.tool_formats import FORMATS
from deployments.chat.tools import Offer, ToolDialect
from deployments.http.errors import ApiError
from deployments.openai.tool_bodies import Tool
from grammar_workers import GrammarError, Vocabulary, compile_grammar
from tests.vllm.test_tool_parsers import JUDGES
from tests.vllm.tool_call_judge import Calls, Judge, tokenizer

TOKENS = 60
"""Drawn at random in one answer before the shortest way to its end."""


@functools.cache
def vocabulary(tokens: tuple[str, ...]) -> Vocabulary:
    """That of the embedded model with special tokens more."""
    one = tokenizer(tokens)
    return Vocabulary.from_tokenizer(one, len(one))


class Counts:
    """What became of the answers of one parser."""

    def __init__(self) -> None:
        self.answers = self.calls = self.refused = self.invalid = self.whole = self.stream = 0
        self.example = ""

    def add(self, judge: Judge, tools: list[Tool], text: str, schemas: dict[str, Any]) -> None:
        """Reads one answer in all ways."""
        tool_format = FORMATS[judge.tool_format]
        content, found = called(tool_format, [text], schemas)
        self.answers += 1
        self.calls += len(found)
        ours = [(name, json.loads(arguments)) for name, arguments in found]
        valid = all(name in schemas and _is_valid(arguments, schemas[name]) for name, arguments in ours)
        self.invalid += not valid or not found or (content, found) != called(tool_format, text, schemas)
        offered = [tool.model_dump(mode="json", exclude_none=True) for tool in tools]
        for reader, read in (("whole", judge.read_whole), ("stream", judge.read_stream)):
            theirs = _read(read, text, offered)
            setattr(self, reader, getattr(self, reader) + (theirs == ours))
            if theirs != ours and not self.example:
                self.example = f"{reader}: {text!r}: {theirs!r}"


def _is_valid(arguments: Any, schema: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(arguments)


def _read(read: Any, text: str, offered: list[dict[str, Any]]) -> Calls | str:
    try:
        found: Calls = read([text], offered)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=200, help="tool sets (default 200)")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="default: all")
    arguments = parse_with_data(parser)
    logging.disable(logging.CRITICAL)  # vLLM's parsers log what they cannot read
    sets = list(requests(arguments.data))
    random.Random(1).shuffle(sets)
    print("| format | vLLM's parser | answers | calls | invalid | equal whole | equal by tokens | refused |")
    print("|---|---|---|---|---|---|---|---|")
    wrong, examples = False, []
    for judge in (judge for judge in JUDGES if judge.tool_format in arguments.formats):
        counts = Counts()
        for name, tools in tqdm(sets[: arguments.sets], desc=judge.parser, leave=False, disable=None):
            offer = Offer(tools, "required", parallel=True)
            dialect = ToolDialect(FORMATS[judge.tool_format], by_template=True)
            try:
                fsm = compile_grammar(dialect.specification(offer), vocabulary(judge.tokens))
                text = generated(fsm, random.Random(f"{judge.parser} {name}"), "", TOKENS)
            except (GrammarError, ApiError):
                counts.refused += 1
                continue
            counts.add(judge, tools, text, offer.schemas())
        cells = (counts.answers, counts.calls, counts.invalid, counts.whole, counts.stream, counts.refused)
        print(f"| {judge.tool_format} | {judge.parser} | {' | '.join(map(str, cells))} |", flush=True)
        wrong = wrong or counts.invalid > 0
        if counts.example:
            examples.append(f"{judge.parser}: {counts.example}"[:600])
    print("\nFirst differences:\n", *examples, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

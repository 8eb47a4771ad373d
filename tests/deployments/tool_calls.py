"""Does every tool call match its schema? Random walks over the constraint of each format, judged by `jsonschema`.

    python -m tests.deployments.tool_calls --data FOLDER [--sample 1/1]

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT); its two families of function calls become
requests: each file of BFCL has the functions of one request, files of Glaive have one function each. For every request,
format and tool choice, tokens are drawn at random from the masks, with the words of the format once as special tokens
and once spelled. Under `auto` the trigger comes at a random place of free text. What was generated is read as the
server reads it, whole and character by character; both must be the same, each call must name one of the functions, and
its arguments must be valid. Exit status 1 when any call is not.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import jsonschema
from tqdm import tqdm

from benchmarks.maskbench_data import parse_with_data
from deployments.chat.tool_bodies import FunctionChoice, NamedTool, Tool
from deployments.chat.tool_calls import ToolCallParser
from deployments.chat.tool_formats import TOOL_FORMATS, ToolFormat, ToolFormatName
from deployments.chat.tools import Offer, ToolDialect
from deployments.http.errors import ApiError
from deployments.shipped import REPOSITORY
from grammar_workers import GrammarError, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.vocabulary.vocabulary import load_vocabulary

WORDS = sorted(
    {
        word
        for one in TOOL_FORMATS.values()
        for text in (
            one.call,
            one.opens,
            one.closes,
            *(part for region in one.texts for part in (region.opens, region.closes)),
        )
        for word in re.findall(r"<[^<>\s$=]+>|<call:|\[[A-Z_]+\]", text)
    }
)
"""What some tokenizer has, or could have, as a special token."""


Choice = Literal["auto", "required"] | NamedTool


@functools.cache
def vocabulary(*, special: bool) -> Vocabulary:
    """That of the embedded model; `special`: with the words of the formats as special tokens."""
    plain = load_vocabulary(str(REPOSITORY / "models" / "turnstile-tiny"))
    words = WORDS if special else ()
    names = {word: plain.size + index for index, word in enumerate(words)}
    token_bytes = [*map(plain.token_bytes, range(plain.size)), *[None] * len(words)]
    return Vocabulary(token_bytes, plain.eos_token_ids, plain.special_tokens | names)


def generated(fsm: TokenFSM, rng: random.Random, prefix: str, many: int) -> str:
    """`prefix`, then up to `many` random tokens, then the shortest way to an end; special tokens as their names."""
    names = {token: name.encode() for name, token in fsm.vocabulary.special_tokens.items()}
    state = fsm.initial_state
    tokens = _spelled(fsm.vocabulary, prefix)
    for token in tokens:
        state = fsm.next_state(state, token)
    for _ in range(many):
        allowed = sorted(fsm.allowed_tokens(state) - set(fsm.vocabulary.eos_token_ids))
        if not allowed:
            break
        tokens.append(rng.choice(allowed))
        state = fsm.next_state(state, tokens[-1])
    tokens += fsm.shortest_completion(state)
    return b"".join(names.get(token) or fsm.vocabulary.token_bytes(token) for token in tokens).decode()


def _spelled(one: Vocabulary, text: str) -> list[int]:
    """A token per character, and the special tokens that `text` names."""
    tokens: list[int] = []
    while text:
        name = next((name for name in one.special_tokens if text.startswith(name)), "")
        tokens += [one.special_tokens[name]] if name else one.encode(text[0].encode()) or []
        text = text.removeprefix(name) if name else text[1:]
    return tokens


def called(
    tool_format: ToolFormat, pieces: Iterable[str], schemas: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, list[tuple[str, str]]]:
    """Content, and (name, arguments) of each call of functions with such schemas, of a text that comes in pieces."""
    return read(ToolCallParser(tool_format, 0, schemas=schemas), pieces)


def read(parser: ToolCallParser, pieces: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    """Content, and (name, arguments) of each call, that a parser finds in a text that comes in pieces."""
    content, calls = "", []
    for delta in (*(delta for piece in pieces for delta in parser.feed(piece)), *parser.finish(cut=False)):
        content += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append((call["function"]["name"], ""))
            else:
                calls[-1] = (calls[-1][0], calls[-1][1] + call["function"]["arguments"])
    return content, calls


def fault(tool_format: ToolFormat, offer: Offer, text: str, *, triggered: bool) -> str | None:
    """What is wrong with a finished answer; None when nothing is."""
    schemas = offer.schemas()
    content, calls = called(tool_format, [text], schemas)
    if (content, calls) != called(tool_format, text, schemas):
        return "read in pieces it is something else"
    demanded = offer.choice != "auto"
    if not calls and (demanded or triggered):
        return "no call"
    if content and demanded:
        return "text beside a call that was demanded"
    if len(calls) > 1 and not (offer.parallel and tool_format.several and not isinstance(offer.choice, NamedTool)):
        return "several calls"
    for name, arguments in calls:
        if name not in schemas:
            return f"{name} was not offered"
        try:
            jsonschema.validate(json.loads(arguments), schemas[name], jsonschema.Draft202012Validator)
        except (ValueError, jsonschema.ValidationError) as error:
            return f"{name}: {error}"
    return None


def choices(tools: Sequence[Tool]) -> list[Choice]:
    """Every kind of tool choice that demands or allows calls."""
    return ["auto", "required", NamedTool(type="function", function=FunctionChoice(name=tools[-1].function.name))]


def prefixes(tool_format: ToolFormat, choice: Choice, rng: random.Random) -> list[str]:
    """How answers begin: freely, and under `auto` with the trigger behind some text, too."""
    text = "" if tool_format.texts or tool_format.alone else "x " * rng.randrange(6)
    return [""] if choice != "auto" else ["", text + tool_format.trigger]


def requests(folder: Path) -> Iterator[tuple[str, list[Tool]]]:
    """The functions of each request, named by its file."""
    for file in sorted(folder.glob("BFCL_*.json")) + sorted(folder.glob("Glaive*.json")):
        schema = json.loads(file.read_text())["schema"]
        parameters: dict[str, Any] = {"f": schema}
        if file.name.startswith("BFCL"):
            alternatives = schema.get("anyOf") or schema.get("items", {}).get("anyOf") or [schema.get("items", schema)]
            parameters = {name: part for one in alternatives for name, part in one.get("properties", {}).items()}
        bodies = [{"name": name.replace(".", "_")[:64], "parameters": part} for name, part in parameters.items()]
        yield file.stem, [Tool.model_validate({"type": "function", "function": body}) for body in bodies]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", default="1/1", help="K/N: the K-th of N parts of the requests")
    parser.add_argument("--formats", nargs="+", choices=TOOL_FORMATS, default=list(TOOL_FORMATS), help="default: all")
    arguments = parse_with_data(parser)
    part, parts = map(int, arguments.sample.split("/"))
    vocabularies = [vocabulary(special=special) for special in (False, True)]
    rng = random.Random(1)
    counts: collections.Counter[tuple[ToolFormatName, str]] = collections.Counter()
    faults = []
    refusals = {}
    for name, tools in tqdm(list(requests(arguments.data))[part - 1 :: parts], desc="requests", disable=None):
        for format_name in arguments.formats:
            tool_format = TOOL_FORMATS[format_name]
            for choice, one in ((choice, one) for choice in choices(tools) for one in vocabularies):
                offer = Offer(tools, choice, parallel=True)
                try:
                    fsm = compile_grammar(ToolDialect(tool_format, by_template=False).specification(offer), one)
                except (GrammarError, ApiError) as error:
                    counts[format_name, "refused"] += 1
                    refusals[name] = str(error)
                    continue
                for prefix in prefixes(tool_format, choice, rng):
                    text = generated(fsm, rng, prefix, rng.randrange(20, 80))
                    counts[format_name, "answers"] += 1
                    counts[format_name, "calls"] += len(called(tool_format, text)[1])
                    if (wrong := fault(tool_format, offer, text, triggered=bool(prefix))) is not None:
                        counts[format_name, "invalid"] += 1
                        faults.append(f"{name} {format_name}: {wrong}\n  {text}")
    columns = ("answers", "calls", "invalid", "refused")
    print("| format | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for format_name in arguments.formats:
        print(f"| {format_name} | " + " | ".join(str(counts[format_name, column]) for column in columns) + " |")
    print("\n".join([*faults, *(f"refused: {name}: {reason}" for name, reason in refusals.items())]))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

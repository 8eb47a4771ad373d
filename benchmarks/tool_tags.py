"""Many tools at once: one structural tag over 128 or 400 functions, Turnstile beside XGrammar and llguidance.

    python -m benchmarks.tool_tags --data FOLDER [--tools 128 400]

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). Tools are the functions of its BFCL and Glaive
files, then small schemas of its other families, each with a valid instance. The text is free until `<tool_call>`; then
one of the functions must be called, and free again after it (XGrammar's issue 680 and pull request 753 are about such
tags). What is followed: some words, then a call of every sixteenth tool.

*First mask*: from the tag to the mask of the first token. *Mask*: of each further token, what it took to make it; the
second column of times is of the same text once more, in a state where what an engine remembers is known. CPU times of
the process, on one thread. Exit status 1 where an engine does not accept the text.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.engines import (
    ENGINES,
    Llguidance,
    RefusedError,
    Session,
    Turnstile,
    TurnstileSession,
    Xgrammar,
    installed,
)
from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import GrammarError, compile_grammar

TRIGGER, END = "<tool_call>", "}\n</tool_call>"
Tool = tuple[str, Any, Any]
"""Name, schema of the arguments, valid arguments."""


def begin(name: str) -> str:
    """What stands before the arguments."""
    return f'{TRIGGER}\n{{"name": "{name}", "arguments": '


def all_tools(folder: Path) -> Iterator[Tool]:
    """Functions first, then other schemas of objects."""
    for pattern in ("BFCL_*.json", "Glaive*.json", "Github_easy*.json", "Github_medium*.json"):
        for file in sorted(folder.glob(pattern)):
            case = json.loads(file.read_text())
            found = _functions(case) if pattern.startswith("BFCL") else {"f": case["schema"]}
            instances = [test["data"] for test in case["tests"] if test["valid"]]
            for name, schema in found.items():
                if (
                    not isinstance(schema, dict)
                    or schema.get("type") != "object"
                    or "$schema" in schema.get("$defs", {})
                ):
                    continue
                for data in instances:
                    arguments = _arguments(data, name) if pattern.startswith("BFCL") else data
                    if isinstance(arguments, dict):
                        yield f"{file.stem.replace('---', '_')[-40:]}_{name}"[:64], schema, arguments
                        break


def _functions(case: dict[str, Any]) -> dict[str, Any]:
    schema = case["schema"]
    alternatives = schema.get("anyOf") or schema.get("items", {}).get("anyOf") or [schema.get("items", schema)]
    return {name: part for one in alternatives for name, part in one.get("properties", {}).items()}


def _arguments(data: Any, name: str) -> Any:
    calls = data if isinstance(data, list) else [data]
    return next((call[name] for call in calls if isinstance(call, dict) and name in call), None)


def as_format(tools: list[Tool]) -> dict[str, Any]:
    """The tag in XGrammar's language, which Turnstile reads, too."""
    tags = [
        {
            "type": "tag",
            "begin": begin(name),
            "content": {"type": "json_schema", "json_schema": schema},
            "end": END,
        }
        for name, schema, _ in tools
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [TRIGGER], "tags": tags}}


def turnstile(engine: Turnstile, tools: list[Tool]) -> Session:
    try:
        fsm = compile_grammar(as_format(tools), tekken_vocabulary(), options=engine.grammar_options)
    except GrammarError as error:
        raise RefusedError(f"{error.message} at {error.pointer}") from None
    return TurnstileSession(fsm, None)


def xgrammar(engine: Xgrammar, tools: list[Tool]) -> Session:
    try:
        return engine.session(engine.compiler.compile_structural_tag(as_format(tools)))
    except RuntimeError as error:
        raise RefusedError(str(error)) from None


def llguidance(engine: Llguidance, tools: list[Tool]) -> Session:
    from llguidance import StructTag

    tags = [StructTag(trigger=TRIGGER, begin=begin(name), grammar=schema, end=END) for name, schema, _ in tools]
    return engine.session(StructTag.to_grammar(tags, assume_special=False))


COMPILE: dict[str, Callable[[Any, list[Tool]], Session]] = {
    "turnstile": turnstile,
    "llguidance": llguidance,
    "xgrammar": xgrammar,
}


def follow(session: Session, tokens: list[int]) -> tuple[bool, list[int]]:
    """Whether the tokens are allowed, and the nanoseconds that each mask but the first took."""
    session.begin()
    session.mask()
    times: list[int] = []
    for token in tokens:
        if not session.advance(token):
            return False, times
        begun = time.process_time_ns()
        session.mask()
        times.append(time.process_time_ns() - begun)
    return True, times


def measured(name: str, engine: Any, tools: list[Tool], tokens: list[int]) -> tuple[str, bool]:
    """A row of the table, and whether the text was accepted."""
    gc.collect()
    begun = time.process_time_ns()
    try:
        session = COMPILE[name](engine, tools)
        session.begin()
        session.mask()
    except RefusedError as error:
        return f"| {name} | {len(tools)} | refused: {str(error)[:80]} | | | | |", False
    first = (time.process_time_ns() - begun) / 1e6
    accepted, cold = follow(session, tokens)
    if not accepted:
        return f"| {name} | {len(tools)} | {first:.1f} | token {len(cold)} is not accepted | | | |", False
    _, warm = follow(session, tokens)
    cells = [f"{np.percentile(times, part) / 1e3:.1f}" for times in (cold, warm) for part in (50, 99)]
    return f"| {name} | {len(tools)} | {first:.1f} | {' | '.join(cells)} |", True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=int, nargs="+", default=[128, 400])
    arguments = parse_with_data(parser)
    engines = {name: ENGINES[name](_options(name)) for name in installed(list(COMPILE))}
    usable: list[Tool] = []
    for tool in tqdm(list(all_tools(arguments.data)), desc="tools", disable=None):
        if len(usable) < max(arguments.tools) and all(_accepts(COMPILE[n], e, tool) for n, e in engines.items()):
            usable.append(tool)
    print("| engine | tools | first mask, ms | mask p50, us | p99 | known p50 | known p99 |")
    print("|---|---|---|---|---|---|---|")
    passed = True
    for many in arguments.tools:
        tools = usable[:many]
        tokens = tekken_encoding().encode(text_of(tools[::16]), disallowed_special=())
        for name, engine in engines.items():
            row, accepted = measured(name, engine, tools, tokens)
            passed = passed and accepted
            print(row, flush=True)
    return 0 if passed else 1


def text_of(tools: list[Tool]) -> str:
    """Words and calls."""
    calls = [f"{begin(name)}{json.dumps(data, ensure_ascii=False)}{END}" for name, _, data in tools]
    return "".join(f"Let me look at this. {call}\n" for call in calls)


def _options(name: str) -> dict[str, Any]:
    """Options with which all read the same texts."""
    return {"whitespace": "flexible"} if name == "turnstile" else {}


def _accepts(build: Callable[[Any, list[Tool]], Session], engine: Any, tool: Tool) -> bool:
    """Whether an engine compiles this tool alone and accepts its call, so that all of them do the same work."""
    tokens = tekken_encoding().encode(text_of([tool]), disallowed_special=())
    try:
        return follow(build(engine, [tool]), tokens)[0]
    except RefusedError:
        return False


if __name__ == "__main__":
    sys.exit(main())

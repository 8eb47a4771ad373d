"""Compare Turnstile with XGrammar and llguidance on one structural tag over 128 or 400 functions.

    python -m benchmarks.tool_tags --data FOLDER [--tools 128 400]

FOLDER contains the files of MaskBench (guidance-ai/jsonschemabench, MIT). The tools are the functions of its BFCL and
Glaive files, then small schemas of its other families. Each tool has a valid instance. The text is free until
`<tool_call>`. Then one of the functions must be called, and the text after the call is free again. (XGrammar's issue
680 and pull request 753 are about structural tags of this kind.) The measured text has some words and a call for every
sixteenth tool.

*First mask* is the time from the structural tag to the mask of the first token, including the compilation. *Mask* is
the time of each further mask. The columns *known* measure the text again, with the masks in the engine's caches. Times
are CPU times of the process, on one thread. The exit status is 1 if an engine does not accept the text.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import (
    ENGINES,
    RefusedError,
    Session,
    TurnstileSession,
    installed,
)
from benchmarks.frame import Table, new_parser, progress
from benchmarks.maskbench_data import parse_with_data
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import GrammarError, compile_grammar

TRIGGER, END = "<tool_call>", "}\n</tool_call>"
# Name, schema of the arguments, valid arguments.
Tool = tuple[str, Any, Any]


def begin(name: str) -> str:
    """Return the text of a call up to the arguments of the function.

    Args:
        name: Name of the function.
    """
    return f'{TRIGGER}\n{{"name": "{name}", "arguments": '


def all_tools(folder: Path) -> Iterator[Tool]:
    """Yield the tools: functions first, then other schemas of objects.

    Args:
        folder: Folder of MaskBench files.

    Yields:
        Tuples (name, JSON Schema of the arguments, valid arguments).
    """
    for pattern in ("BFCL_*.json", "Glaive*.json", "Github_easy*.json", "Github_medium*.json"):
        for file in sorted(folder.glob(pattern)):
            case = json.loads(file.read_text())
            instances = [test["data"] for test in case["tests"] if test["valid"]]
            found = {"f": (case["schema"], instances)}
            if pattern.startswith("BFCL"):
                found = {name: (schema, _arguments(instances, name)) for name, schema in _functions(case["schema"])}
            for name, (schema, values) in found.items():
                arguments = next((value for value in values if isinstance(value, dict)), None)
                if arguments is not None and _is_plain_object(schema):
                    yield f"{file.stem.replace('---', '_')[-40:]}_{name}"[:64], schema, arguments


def _is_plain_object(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object" and "$schema" not in schema.get("$defs", {})


def _functions(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return name and parameters of each function of a request."""
    alternatives = schema.get("anyOf") or schema.get("items", {}).get("anyOf") or [schema.get("items", schema)]
    return [function for one in alternatives for function in one.get("properties", {}).items()]


def _arguments(instances: list[Any], name: str) -> list[Any]:
    """Return the arguments of the first call of a function in each instance."""
    calls = (one if isinstance(one, list) else [one] for one in instances)
    found = ([call[name] for call in many if isinstance(call, dict) and name in call] for many in calls)
    return [arguments[0] for arguments in found if arguments]


def as_format(tools: list[Tool]) -> dict[str, Any]:
    """Return the structural tag of some tools in XGrammar's format, which Turnstile also reads.

    Args:
        tools: The tools.
    """
    tags = [
        {"type": "tag", "begin": begin(name), "content": {"type": "json_schema", "json_schema": schema}, "end": END}
        for name, schema, _ in tools
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [TRIGGER], "tags": tags}}


def compile_tag(name: str, engine: Any, tools: list[Tool]) -> Session:
    """Compile the structural tag of some tools.

    Args:
        name: Name of the engine, a key of `ENGINES`.
        engine: The engine.
        tools: The tools.

    Returns:
        Session of the compiled tag.

    Raises:
        RefusedError: The engine rejects the tag.
    """
    try:
        if name == "turnstile":
            fsm = compile_grammar(as_format(tools), tekken_vocabulary(), options=engine.grammar_options)
            return TurnstileSession(fsm, None)
        if name == "xgrammar":
            return engine.session(engine.compiler.compile_structural_tag(as_format(tools)))
    except (GrammarError, RuntimeError) as error:
        raise RefusedError(str(error)) from None
    from llguidance import StructTag

    tags = [StructTag(trigger=TRIGGER, begin=begin(name), grammar=schema, end=END) for name, schema, _ in tools]
    return engine.session(StructTag.to_grammar(tags, assume_special=False))


def follow(session: Session, tokens: list[int]) -> tuple[bool, list[int]]:
    """Follow a text token by token, and measure the masks.

    Args:
        session: Session of an engine. It is reset first.
        tokens: Tokens of the text.

    Returns:
        True if all tokens are allowed; and the CPU nanoseconds of each mask except the first one.
    """
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


def measured(name: str, engine: Any, tools: list[Tool], tokens: list[int]) -> tuple[list[str], bool]:
    """Measure one engine.

    Args:
        name: Name of the engine.
        engine: The engine.
        tools: Tools of the structural tag.
        tokens: Tokens of the text.

    Returns:
        Cells of the table; and true if the engine accepts the text.
    """
    gc.collect()
    begun = time.process_time_ns()
    try:
        session = compile_tag(name, engine, tools)
        session.begin()
        session.mask()
    except RefusedError as error:
        return [f"refused: {str(error)[:80]}", *[""] * 4], False
    first = f"{(time.process_time_ns() - begun) / 1e6:.1f}"
    accepted, cold = follow(session, tokens)
    if not accepted:
        return [first, f"token {len(cold)} is not accepted", *[""] * 3], False
    _, warm = follow(session, tokens)
    return [first, *(f"{np.percentile(times, part) / 1e3:.1f}" for times in (cold, warm) for part in (50, 99))], True


def main() -> int:
    """Parse the command line and print the table. Return 1 if an engine does not accept the text."""
    parser = new_parser(__doc__)
    parser.add_argument("--tools", type=int, nargs="+", default=[128, 400])
    arguments = parse_with_data(parser)
    # With these options all engines read the same texts.
    options: dict[str, dict[str, Any]] = {"turnstile": {"whitespace": "flexible"}}
    engines = {name: ENGINES[name](options.get(name, {})) for name in installed(list(ENGINES))}
    usable: list[Tool] = []
    for tool in progress(list(all_tools(arguments.data)), "tools"):
        if len(usable) < max(arguments.tools) and all(_accepts(name, engine, tool) for name, engine in engines.items()):
            usable.append(tool)
    table = Table("engine", "tools", "first mask, ms", "mask p50, us", "p99", "known p50", "known p99")
    passed = True
    for many in arguments.tools:
        tools = usable[:many]
        tokens = tekken_encoding().encode(text_of(tools[::16]), disallowed_special=())
        for name, engine in engines.items():
            cells, accepted = measured(name, engine, tools, tokens)
            passed = passed and accepted
            table.row(name, len(tools), *cells)
    return 0 if passed else 1


def text_of(tools: list[Tool]) -> str:
    """Return a text with some words and a call for each tool.

    Args:
        tools: The tools.
    """
    calls = [f"{begin(name)}{json.dumps(data, ensure_ascii=False)}{END}" for name, _, data in tools]
    return "".join(f"Let me look at this. {call}\n" for call in calls)


def _accepts(name: str, engine: Any, tool: Tool) -> bool:
    """Return whether an engine compiles this tool alone and accepts its call, so that all engines do the same work."""
    tokens = tekken_encoding().encode(text_of([tool]), disallowed_special=())
    try:
        return follow(compile_tag(name, engine, [tool]), tokens)[0]
    except RefusedError:
        return False


if __name__ == "__main__":
    sys.exit(main())

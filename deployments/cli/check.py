"""`turnstile check SCHEMA`: compile a constraint, such as a JSON Schema, and report whether it is supported.

The report has the size of the automaton, the compile time and example outputs, or the reason of a rejection. The
constraint is compiled in this process, for the vocabulary of a model. No server is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from pydantic import ValidationError

from deployments.cli.arguments import UsageFailure
from deployments.cli.constraint_file import KIND_HELP, KINDS, read_text, specification
from deployments.cli.grammar_flags import add_grammar_flags, grammar_options
from deployments.error_excerpt import place_lines
from deployments.shipped import EMBEDDED_MODEL
from grammar_workers import GrammarError, GrammarOptions, Vocabulary, compile_grammar, warm_up
from grammar_workers.artifacts import artifact
from grammar_workers.costs import most_expensive
from grammar_workers.kernel_progress import compile_visibly
from grammar_workers.keys import refuse_mistakes
from grammar_workers.matching.examples import draw_examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turnstile check` to the parser."""
    parser.add_argument(
        "schema",
        metavar="SCHEMA",
        help="a file, `module:Name` of a Python type such as a pydantic model, or - for standard input",
    )
    parser.add_argument("--kind", choices=KINDS, help=KIND_HELP)
    parser.add_argument(
        "--examples", type=int, default=3, metavar="N", help="number of examples of valid outputs (default 3)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the examples (default 0)")
    parser.add_argument(
        "--model",
        default=str(EMBEDDED_MODEL),
        help="model whose vocabulary is used: a folder or a Hugging Face ID (default: the embedded model)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python files of the model, if its tokenizer needs them",
    )
    parser.add_argument(
        "--strict", action="store_true", help="reject misspelled keywords, as the server does with `strict: true`"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_grammar_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Compile the constraint in a file, and print a report: whether it is supported, sizes, times and example outputs.

    Args:
        options: Parsed arguments of `add_arguments`. With `json`, the report is one JSON object.

    Returns:
        Exit code: 0 if the constraint is supported, 1 if it is rejected (the report has the reason).

    Raises:
        UsageFailure: A grammar option is out of range, the file or the model's vocabulary cannot be read, or the
            suffix of the file does not tell the kind of constraint.
    """
    text = read_text(options.schema)
    try:
        policies = grammar_options(options)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UsageFailure(f"--{str(problem['loc'][0]).replace('_', '-')}: {problem['msg']}") from error
    asked: dict[str, Any] | None = None
    try:
        asked = specification(options.schema, text, options.kind)
        if options.strict and asked["type"] == "json_schema" and policies.on_unsupported != "report":
            refuse_mistakes(asked.get("schema"), "")
        vocabulary = _vocabulary(options.model, options.trust_remote_code)
        finding = _compile(asked, vocabulary, policies, count=options.examples, seed=options.seed)
    except GrammarError as error:
        if options.json:
            print(json.dumps({"supported": False, "error": error.to_dict()}, ensure_ascii=False))
        else:
            print("\n".join([f"refused ({error.code})", f"  {error.message}", *place_lines(error, asked)]))
        return 1
    as_json = json.dumps({"supported": True, **finding}, ensure_ascii=False)
    print(as_json if options.json else "\n".join(_as_text(finding)))
    return 0


def _vocabulary(model: str, trust_remote_code: bool) -> Vocabulary:
    print(f"loading the vocabulary of {model} ...", file=sys.stderr, flush=True)
    try:
        vocabulary = Vocabulary.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (ImportError, OSError, ValueError) as error:
        raise UsageFailure(f"cannot load the vocabulary of {model}: {error}") from error
    # Without the warm-up, the compile time would include work that every process does once.
    compile_visibly(sys.stderr)
    warm_up(vocabulary)
    return vocabulary


def _compile(
    asked: dict[str, Any], vocabulary: Vocabulary, options: GrammarOptions, *, count: int, seed: int
) -> dict[str, Any]:
    """Return the report on a specification that compiles, as plain data. `seconds` excludes the first mask."""
    started = time.perf_counter()
    fsm = compile_grammar(asked, vocabulary, options=options)
    seconds = time.perf_counter() - started
    fsm.allowed_mask(fsm.initial_state)
    first_mask_seconds = time.perf_counter() - started - seconds
    data = fsm.to_bytes()
    return {
        "type": asked["type"],
        "key": fsm.key,
        "automaton_states": artifact.verify(data, key=fsm.key).details()["automaton_states"],
        "artifact_bytes": len(data),
        "seconds": seconds,
        "first_mask_seconds": first_mask_seconds,
        "memory_bytes": fsm.nbytes,
        "costs": most_expensive(fsm.costs, asked),
        "notes": fsm.notes,
        "unenforced": fsm.unenforced,
        "examples": [example.decode("utf-8", "replace") for example in draw_examples(fsm, count, seed=seed)],
    }


def _as_text(finding: dict[str, Any]) -> list[str]:
    return [
        f"supported ({finding['type']})",
        f"  states    {finding['automaton_states']:,} of the byte automaton",
        f"  size      {finding['artifact_bytes']:,} bytes as stored, compressed",
        f"  compiled  in {finding['seconds'] * 1000:,.1f} ms",
        f"  1st mask  in {finding['first_mask_seconds'] * 1000:,.2f} ms; {finding['memory_bytes']:,} bytes of memory",
        f"  key       {finding['key']}",
        *(f"  note      {note}" for note in finding["notes"]),
        *(f"  NOT ENFORCED  {one['pointer']}: {one['reason']}" for one in finding["unenforced"]),
        *(["  most expensive, of CPU that a schema takes once in a cluster:"] if finding["costs"] else []),
        *(f"    {one['seconds'] * 1000:,.2f} ms  {one['place']}: {one['change']}" for one in finding["costs"]),
        *(["  examples, drawn from the automaton without a model:"] if finding["examples"] else []),
        *(f"    {example}" for text in finding["examples"] for example in text.splitlines()),
    ]

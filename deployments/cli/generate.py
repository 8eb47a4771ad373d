"""`turnstile generate PROMPT`: one answer of a running server, streamed to the terminal."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, get_args

from deployments.cli.arguments import Failure, finite, natural
from deployments.cli.constraint_file import KIND_HELP, KINDS, read_text, specification
from deployments.cli.server import Server, add_server_arguments
from deployments.openai.constraints import ON_UNSUPPORTED
from grammar_workers.errors import GrammarError
from grammar_workers.options import OnUnsupported

_PASSED_ON = ("model", "max_tokens", "temperature", "seed", "on_unsupported")
_SPELLED = {"json_schema": ("json", "schema"), "regex": ("regex", "pattern"), "choice": ("choice", "choices")}
"""Types of specifications that are a key of `structured_outputs`, which holds what their one field does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `run` needs to know."""
    parser.add_argument("prompt", metavar="PROMPT", help="the user's message, or - for standard input")
    parser.add_argument("--system", help="a system message before it")
    constraint = parser.add_argument_group("constraint (at most one)").add_mutually_exclusive_group()
    constraint.add_argument("--schema", metavar="FILE", help="a file that says what the output must match")
    constraint.add_argument("--regex", metavar="PATTERN", help="what the output must match as a whole")
    constraint.add_argument("--choice", action="append", metavar="TEXT", help="one of the outputs; may be repeated")
    constraint.add_argument("--json-object", action="store_true", help="any JSON object")
    parser.add_argument("--on-unsupported", choices=get_args(OnUnsupported), help=ON_UNSUPPORTED)
    parser.add_argument("--kind", choices=KINDS, help=f"with --schema: {KIND_HELP}")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--model", help="a name from /v1/models (default: the served one)")
    sampling.add_argument("--max-tokens", type=natural, metavar="N", help="the most tokens to generate")
    sampling.add_argument("--temperature", type=finite, metavar="T", help="0 is greedy (default 1)")
    sampling.add_argument("--seed", type=int, metavar="N", help="equal seeds give equal tokens")
    add_server_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Returns 0 for a complete answer, 1 for one that a limit cut under a constraint. Raises `Failure`."""
    server = Server(options.url, timeout_s=options.timeout)
    body: dict[str, Any] = {name: value for name in _PASSED_ON if (value := getattr(options, name)) is not None}
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    prompt = read_text("-") if options.prompt == "-" else options.prompt
    body["messages"] = [*system, {"role": "user", "content": prompt}]
    if (asked := _specification(options)) is not None:
        body["structured_outputs"] = _structured_outputs(asked)
    return _print_answer(server, body, constrained=asked is not None)


def _specification(options: argparse.Namespace) -> dict[str, Any] | None:
    if options.schema is not None:
        try:
            return specification(options.schema, read_text(options.schema), options.kind)
        except GrammarError as error:
            raise Failure(f"{options.schema}: {error}") from error
    if options.regex is not None:
        return {"type": "regex", "pattern": options.regex}
    if options.choice is not None:
        return {"type": "choice", "choices": options.choice}
    return {"type": "json_object"} if options.json_object else None


def _structured_outputs(asked: dict[str, Any]) -> dict[str, Any]:
    """A specification in the spelling of the completion endpoints."""
    if asked == {"type": "json_object"}:
        return {"json_object": True}
    name, field = _SPELLED.get(str(asked.get("type")), ("", ""))
    return {name: asked[field]} if asked.keys() == {"type", field} else {"all_of": [asked]}


def _print_answer(server: Server, body: dict[str, Any], *, constrained: bool) -> int:
    """Text to standard output as it comes, what is told about it to standard error."""
    started = time.perf_counter()
    reason, usage = None, {"completion_tokens": 0}
    unenforced: list[dict[str, Any]] = []
    for chunk in server.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}):
        for choice in chunk["choices"]:
            print(choice["delta"].get("content", ""), end="", flush=True)
            reason = choice["finish_reason"] or reason
        usage = chunk.get("usage") or usage
        unenforced = chunk.get("grammar", {}).get("unenforced") or unenforced
    print(flush=True)
    for keyword in unenforced:
        print(f"[not enforced: {keyword['pointer']}: {keyword['reason']}]", file=sys.stderr)
    cut = constrained and reason != "stop"
    remark = "; cut by the limit, so it is not complete" if cut else ""
    seconds = time.perf_counter() - started
    print(f"[{reason}; {usage['completion_tokens']} tokens in {seconds:.2f} s{remark}]", file=sys.stderr)
    return 1 if cut else 0

"""`turnstile generate PROMPT`: send one request to a running server and print the response as it arrives."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from deployments.cli.arguments import Failure, finite, natural
from deployments.cli.constraint_file import KIND_HELP, KINDS, read_text, specification
from deployments.cli.grammar_flags import add_on_unsupported
from deployments.cli.server import Server, add_server_arguments
from grammar_workers.errors import GrammarError

_PASSED_ON = ("model", "max_tokens", "temperature", "seed", "on_unsupported")
# Type of a specification -> key of `structured_outputs`, and the field of the specification that is its value.
_SPELLED = {"json_schema": ("json", "schema"), "regex": ("regex", "pattern"), "choice": ("choice", "choices")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turnstile generate` to the parser."""
    parser.add_argument("prompt", metavar="PROMPT", help="message of the user, or - for standard input")
    parser.add_argument("--system", help="system message before the message of the user")
    constraint = parser.add_argument_group("constraint (at most one)").add_mutually_exclusive_group()
    constraint.add_argument("--schema", metavar="FILE", help="file with the constraint on the output")
    constraint.add_argument("--regex", metavar="PATTERN", help="regular expression that matches the whole output")
    constraint.add_argument(
        "--choice", action="append", metavar="TEXT", help="allowed output; repeat the option for each allowed output"
    )
    constraint.add_argument("--json-object", action="store_true", help="the output is any JSON object")
    add_on_unsupported(parser)
    parser.add_argument("--kind", choices=KINDS, help=f"with --schema: {KIND_HELP}")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--model", help="a name from /v1/models (default: the served model)")
    sampling.add_argument("--max-tokens", type=natural, metavar="N", help="maximum number of output tokens")
    sampling.add_argument("--temperature", type=finite, metavar="T", help="sampling temperature; 0: greedy (default 1)")
    sampling.add_argument("--seed", type=int, metavar="N", help="seed of the sampling")
    add_server_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Send one chat completion request, and print the response on stdout as it arrives.

    `UsageFailure` is raised if a file cannot be read, or if the suffix of the constraint file is unknown. `Failure` is
    raised if the constraint file is invalid, if the server cannot be reached, or if the server reports an error.

    Args:
        options: Parsed arguments of `add_arguments`.

    Returns:
        Exit code: 1 if an output with a constraint was truncated, otherwise 0.
    """
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
    """Return a specification in the notation of the field `structured_outputs` of the completion endpoints."""
    if asked == {"type": "json_object"}:
        return {"json_object": True}
    name, field = _SPELLED.get(str(asked.get("type")), ("", ""))
    return {name: asked[field]} if asked.keys() == {"type", field} else {"all_of": [asked]}


def _print_answer(server: Server, body: dict[str, Any], *, constrained: bool) -> int:
    """Print the text to standard output as it arrives, and the finish reason and figures to standard error."""
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

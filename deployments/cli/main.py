"""Parses the command line and calls the subcommand. Exit codes: 0 fine, 1 refused or failed, 2 wrong usage."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from deployments.cli import bench, check, generate, precompile
from deployments.cli.arguments import Parser
from deployments.cli.failure import Failure, UsageFailure
from deployments.local import launcher


def parser() -> Parser:
    """Every subcommand's parser; `run` in its result is what to call with it."""
    top = Parser(
        prog="turnstile", description="Structured-output LLM serving: what leaves complete matches what was asked for."
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, module, summary in (
        ("serve", launcher, "serve a config on this machine"),
        ("check", check, "whether a schema is supported, why not, how large it is, and what it generates"),
        ("generate", generate, "ask a running server, under a constraint if one is given"),
        ("bench", bench, "put load on a running server and tell what its clients saw"),
        ("precompile", precompile, "compile schemas on a running server before the first request needs them"),
    ):
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2 if isinstance(failure, UsageFailure) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130

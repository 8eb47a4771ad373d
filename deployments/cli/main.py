"""Parses the command line and calls the subcommand. Exit codes: 0 fine, 1 refused or failed, 2 wrong usage."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from deployments.cli.arguments import Failure, Parser, UsageFailure
from deployments.version import installation

_OWN = ("deployments", "gpu_workers", "grammar_workers")


@dataclass(frozen=True)
class _Command:
    """Where a subcommand is, and what its help begins with. Its module is imported when it is asked for: `check` needs
    the base installation alone, the others the extra `serve`."""

    module: str
    summary: str


COMMANDS = {
    "serve": _Command("deployments.local.launcher", "serve a model on this machine: the embedded one, or a config's"),
    "check": _Command(
        "deployments.cli.check", "whether a schema is supported, why not, how large it is, and what it generates"
    ),
    "check-config": _Command(
        "deployments.cli.check_config", "find mistakes in a Serve config file before it is applied"
    ),
    "generate": _Command("deployments.cli.generate", "ask a running server, under a constraint if one is given"),
    "bench": _Command("deployments.cli.bench", "put load on a running server and tell what its clients saw"),
    "precompile": _Command(
        "deployments.cli.precompile", "compile schemas on a running server before the first request needs them"
    ),
}


def parser(*names: str) -> Parser:
    """The parser of all subcommands, with the arguments of those in `names`; `run` in its result is what to call."""
    top = Parser(
        prog="turnstile", description="Structured-output LLM serving: what leaves complete matches what was asked for."
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary = command.summary
        below = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name in names:
            module = importlib.import_module(command.module)
            module.add_arguments(below)
            below.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parser(*words[:1]).parse_args(words)
        return int(options.run(options))
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2 if isinstance(failure, UsageFailure) else 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OWN:
            raise
        print(f"error: {missing(error.name, words[0])}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def missing(module: str, command: str) -> str:
    """What to say where `module` is not installed: in which extra it comes, and how one has that."""
    if module == "vllm":
        return f"`turnstile {command}` needs a build of vLLM, and beside it the extra `vllm`: {installation('vllm')}"
    # Which module is missed first says little: the extra has them all.
    return f"`turnstile {command}` needs the extra `serve` ({module}, for one, is missing): {installation('serve')}"

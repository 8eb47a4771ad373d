"""Entry point of the `turnstile` command: parse the command line and run the subcommand.

Exit codes: 0 for success, 1 for a rejection or a failure, 2 for wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from deployments.cli.arguments import Failure, Parser, UsageFailure
from deployments.version import installation

_OWN = ("deployments", "gpu_workers", "grammar_workers")


# Subcommand -> its module and its help text.
#
# The module is imported only if the subcommand is used: `check` works with the base installation, the others need the
# extra `serve`.
COMMANDS = {
    "serve": (
        "deployments.local.launcher",
        "serve a model on this machine: the embedded model, or the model of a config",
    ),
    "check": (
        "deployments.cli.check",
        "check whether a schema is supported, and show its size and examples of outputs",
    ),
    "check-config": ("deployments.cli.check_config", "find mistakes in a Serve config file, without a server"),
    "generate": ("deployments.cli.generate", "send a request to a running server, with or without a constraint"),
    "bench": ("deployments.cli.bench", "send requests to a running server, and measure latency and throughput"),
    "precompile": (
        "deployments.cli.precompile",
        "compile schemas on a running server before the first request that needs them",
    ),
}


def parser(*names: str) -> Parser:
    """Return a new parser of the `turnstile` command, with all subcommands.

    The parser reports an error in one line on stderr, and exits with code 2.

    Args:
        names: Subcommands whose modules are imported and whose arguments are added, such as `serve`. The other
            subcommands have only a name and a help text.

    Returns:
        The parser. If the command line has a subcommand of `names`, the parsed arguments have the attribute `run`: the
        function that executes the subcommand. It takes the parsed arguments, and returns the exit code.
    """
    top = Parser(
        prog="turnstile",
        description="Serve LLMs with structured output: every complete response matches the requested constraint.",
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (path, summary) in COMMANDS.items():
        below = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name in names:
            module = importlib.import_module(path)
            module.add_arguments(below)
            below.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `turnstile` command, and return its exit code. The message of a failure is printed on stderr.

    Invalid arguments and `--help` raise `SystemExit`, as argparse does.

    Args:
        arguments: Command line without the name of the program. None: the command line of this process.

    Returns:
        The exit code: 0 for success, 1 for a failure, 2 for wrong usage or a missing package, 130 after Ctrl-C.

    Raises:
        ModuleNotFoundError: A module of Turnstile itself is missing. A missing third-party module gives exit code 2.
    """
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
    """Return the error message for a third-party module that is not installed.

    The message names the extra (set of optional dependencies of Turnstile) that contains the module, and the pip
    command that installs the extra.

    Args:
        module: Name of the missing module, such as `ray`.
        command: Subcommand of `turnstile` that needs the module, such as `serve`.
    """
    if module == "vllm":
        return f"`turnstile {command}` needs a build of vLLM, and beside it the extra `vllm`: {installation('vllm')}"
    # The message names the extra, because the extra also has the other modules that may be missing.
    return f"`turnstile {command}` needs the extra `serve` ({module}, for one, is missing): {installation('serve')}"

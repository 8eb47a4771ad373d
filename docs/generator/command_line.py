"""The command line, as its parsers describe it."""

from __future__ import annotations

import argparse
import functools

from deployments.cli.main import COMMANDS, parser

INTRODUCTION = """\
# Command line

Made by `make reference`: what `turnstile COMMAND --help` says. Exit codes: 0 fine, 1 refused or failed,
2 wrong usage."""
WIDTH = 110


def command_line() -> str:
    """The document as Markdown."""
    # argparse has no public way to ask for subcommands.
    (commands,) = (action for action in parser(*COMMANDS)._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join([INTRODUCTION, *map(_section, commands.choices.values())]) + "\n"


def _section(command: argparse.ArgumentParser) -> str:
    command.formatter_class = functools.partial(argparse.HelpFormatter, width=WIDTH)
    return f"## `{command.prog}`\n\n```\n{command.format_help()}```"

"""Page of the command line, generated from its parsers."""

from __future__ import annotations

import argparse
import functools

from deployments.cli.main import COMMANDS, parser

INTRODUCTION = """\
# Command line

The commands of `turnstile` and their options, as `turnstile COMMAND --help` prints them. Exit codes: 0 success, 1
rejected or failed, 2 wrong usage. `make reference` generates this page from the code."""
WIDTH = 110


def command_line() -> str:
    """Return the page as Markdown."""
    # argparse has no public way to ask for subcommands.
    (commands,) = (action for action in parser(*COMMANDS)._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join([INTRODUCTION, *map(_section, commands.choices.values())]) + "\n"


def _section(command: argparse.ArgumentParser) -> str:
    command.formatter_class = functools.partial(argparse.HelpFormatter, width=WIDTH)
    return f"## `{command.prog}`\n\n```\n{command.format_help()}```"

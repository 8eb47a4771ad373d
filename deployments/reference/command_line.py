"""The command line, from its parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from deployments.cli.main import parser
from deployments.reference.grammar_features import table

INTRODUCTION = """\
# Command line

Made by `make reference` from the parsers of `turnstile`; `turnstile COMMAND --help` says the same. Exit codes: 0 fine,
1 refused or failed, 2 wrong usage."""


def command_line() -> str:
    """The document as Markdown."""
    return "\n\n".join([INTRODUCTION, *map(_section, *zip(*_commands(), strict=True))]) + "\n"


def _commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    # argparse has no public way to ask for subcommands and arguments.
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _section(name: str, command: argparse.ArgumentParser) -> str:
    actions = [action for action in command._actions if not isinstance(action, argparse._HelpAction)]
    rows = [(f"`{_spelling(action)}`", _meaning(command, action)) for action in actions]
    parts = [f"## `turnstile {name}`", command.description or "", table(["argument", "what it means"], rows)]
    return "\n\n".join([*parts, *([command.epilog] if command.epilog else [])])


def _spelling(action: argparse.Action) -> str:
    """`--flag VALUE`, or the name of a positional argument."""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices is not None else None
    value = action.metavar or choices or action.dest.upper()
    if not action.option_strings:
        return f"{value if action.metavar else action.dest.upper()}{' ...' if action.nargs == '+' else ''}"
    return ", ".join(action.option_strings) + (f" {value}" if action.nargs != 0 else "")


def _meaning(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": command.prog}

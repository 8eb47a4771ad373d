"""Command-line flags for `GrammarOptions`, the settings of the grammar compiler.

Each field of `GrammarOptions` has one flag. The description of the field is the help text of the flag.
"""

from __future__ import annotations

import argparse
from typing import Any, get_args

from pydantic import BeforeValidator

from deployments.openai.constraints import ON_UNSUPPORTED
from grammar_workers.options import GrammarOptions, OnUnsupported


def add_grammar_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag, such as `--whitespace`, for each field of `GrammarOptions` (settings of the grammar compiler).

    `grammar_options` reads the flags from the parsed arguments.

    Args:
        parser: Parser of a command; changed in place. If a flag is absent on the command line, the parsed arguments
            have no attribute for this flag.
    """
    group = parser.add_argument_group(
        "grammar options", "Set the values of `compiler.options` in the config of the server."
    )
    for name, field in GrammarOptions.model_fields.items():
        how: dict[str, Any] = {"type": int, "metavar": "N"}
        if field.annotation is bool:
            how = {"action": argparse.BooleanOptionalAction}
        elif choices := get_args(field.annotation):
            how = {"choices": choices}
            if before := [one.func for one in field.metadata if isinstance(one, BeforeValidator)]:
                how["type"] = before[0]
        description = (field.description or "").replace("%", "%%")
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=f"option_{name}",
            default=argparse.SUPPRESS,
            help=f"{description} Default: {str(field.default).lower()}.",
            **how,
        )


def add_on_unsupported(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--on-unsupported`, which selects the treatment of schema keywords that cannot be enforced.

    Args:
        parser: Parser of a command that sends requests to a server; changed in place. Without the flag, the parsed
            attribute `on_unsupported` is None: the server decides.
    """
    choices, current = get_args(OnUnsupported)
    parser.add_argument("--on-unsupported", choices=get_args(choices), type=current.func, help=ON_UNSUPPORTED)


def grammar_options(parsed: argparse.Namespace) -> GrammarOptions:
    """Return the grammar options (settings of the grammar compiler) from command-line flags.

    If a flag is absent on the command line, its option has the default. pydantic's `ValidationError` is raised if a
    number is out of range.

    Args:
        parsed: Parsed arguments of a parser with the flags of `add_grammar_flags`.
    """
    given = {name: getattr(parsed, f"option_{name}", None) for name in GrammarOptions.model_fields}
    return GrammarOptions.model_validate({name: value for name, value in given.items() if value is not None})

"""`GrammarOptions` as flags: one for each field, with the field's own description as its help."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from grammar_workers.options import GrammarOptions


def add_grammar_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `--whitespace` and its like; what is not given keeps its default."""
    group = parser.add_argument_group("grammar options", "the `compiler.options` of the server's config")
    for name, field in GrammarOptions.model_fields.items():
        how: dict[str, Any] = {"type": int, "metavar": "N"}
        if field.annotation is bool:
            how = {"action": argparse.BooleanOptionalAction}
        elif choices := get_args(field.annotation):
            how = {"choices": choices}
        description = (field.description or "").replace("%", "%%")
        group.add_argument(
            "--" + name.replace("_", "-"),
            dest=f"option_{name}",
            default=argparse.SUPPRESS,
            help=f"{description} Default: {str(field.default).lower()}.",
            **how,
        )


def grammar_options(parsed: argparse.Namespace) -> GrammarOptions:
    """The options that the flags say. Raises pydantic's ValidationError for a number out of range."""
    given = {name: getattr(parsed, f"option_{name}", None) for name in GrammarOptions.model_fields}
    return GrammarOptions.model_validate({name: value for name, value in given.items() if value is not None})

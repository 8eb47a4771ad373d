"""Checkers of the string formats that no draft of JSON Schema defines, for the two validators that judge schemas.

Import this module wherever `jsonschema` or `jsonschema_rs` checks formats: the import registers the checkers with
`jsonschema`. `jsonschema_rs` has no registry, so pass it `formats=OTHER_FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema

OTHER_FORMATS: dict[str, Callable[[Any], bool]] = {}
"""Name of a format -> function that returns True if a value has the format. Must be True for all values that are not
strings, because `format` restricts only strings. Example: `"hex": lambda value: not isinstance(value, str) or
re.fullmatch("[0-9a-f]+", value) is not None`. Do not call the pattern of the format: the checker is to find its
errors."""

DRAFTS: tuple[Any, ...] = (
    jsonschema.Draft4Validator,
    jsonschema.Draft6Validator,
    jsonschema.Draft7Validator,
    jsonschema.Draft201909Validator,
    jsonschema.Draft202012Validator,
)


def register() -> None:
    """Register the checkers of `OTHER_FORMATS` with the validators of `jsonschema` of all drafts."""
    for draft in DRAFTS:
        for name, check in OTHER_FORMATS.items():
            draft.FORMAT_CHECKER.checks(name)(check)


register()

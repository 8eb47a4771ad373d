"""Location of an error in the specification of a constraint, shown as an excerpt in terminals and HTTP responses.

A location is a JSON Pointer (into a JSON Schema), a character position (in a regular expression or grammar), or both.
"""

from __future__ import annotations

import json
from typing import Any

from grammar_workers import GrammarError
from grammar_workers.errors import shortened
from grammar_workers.json_types import target_of

_WIDTH = 100
# Stands for the value at a pointer that leads nowhere.
_NOTHING = object()


def place_lines(error: GrammarError, specification: dict[str, Any] | None) -> list[str]:
    """Format the location of an error as lines for a terminal.

    Args:
        error: Error of a constraint's specification. Its `pointer` (JSON Pointer into a schema) and its `position`
            (character offset in a pattern or grammar, from 0) give the location. Each may be None.
        specification: The rejected specification as plain data, with the field `schema`, `pattern` or `text`. None: the
            lines have no excerpt of the specification.

    Returns:
        For a pointer: one line with the pointer and the value at the pointer. For a position: three lines with the
        offset, the line of the specification's text that contains it, and a caret below the character. Empty if the
        error has no location.
    """
    lines = []
    if error.pointer is not None:
        found = _at(specification, error.pointer)
        lines.append(f"  at {error.pointer or 'the root of the schema'}{'' if found is None else f': {found}'}")
    if error.position is not None:
        lines.append(f"  at position {error.position}")
        if (text := _text(specification)) is not None and error.position <= len(text):
            lines += [f"    {line}" for line in _marked(text, error.position)]
    return lines


def place_in_line(
    pointer: str | None, shown: str | None, position: int | None, specification: dict[str, Any] | None
) -> str:
    """Format the location of an error as the end of a one-line message, for an HTTP response.

    Args:
        pointer: JSON Pointer into the schema of `specification`. None: the error has no JSON Pointer.
        shown: Text that the message shows in place of `pointer`, such as the JSON Pointer into the request body. Empty
            or None: the message shows `the root of the schema`. Not used if `pointer` is None.
        position: Character offset in the text of the specification, from 0. None: the error has no offset.
        specification: The rejected specification as plain data, with the field `schema`, `pattern` or `text`. None: the
            message has no excerpt of it.

    Returns:
        Text with a leading space, such as ` (at /properties/age: 7)`: the location and the value at the location. Empty
        if the error has no location.
    """
    parts = []
    if pointer is not None:
        found = _at(specification, pointer)
        parts.append(f"{shown or 'the root of the schema'}{'' if found is None else f': {found}'}")
    if position is not None:
        before = (_text(specification) or "")[position : position + 20] if pointer is None else ""
        parts.append(f"character {position}{f', before {before!r}' if before else ''}")
    return f" (at {'; '.join(parts)})" if parts else ""


def _text(specification: dict[str, Any] | None) -> str | None:
    """Return the pattern or grammar text whose characters a position counts."""
    text = (specification or {}).get("pattern", (specification or {}).get("text"))
    return text if isinstance(text, str) else None


def _at(specification: dict[str, Any] | None, pointer: str) -> str | None:
    """Return the value at `pointer` (RFC 6901) as shortened JSON, or None if the pointer leads nowhere."""
    root = (specification or {}).get("schema", specification)
    value = target_of(f"#{pointer.lstrip('#')}", root, otherwise=_NOTHING)
    return None if value is _NOTHING else shortened(json.dumps(value, ensure_ascii=False), _WIDTH)


def _marked(text: str, position: int) -> list[str]:
    """Return the part of a line around `position` (in characters), and a line with a caret under that position."""
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    begin, end = max(begin, position - _WIDTH // 2), min(len(text) if end < 0 else end, position + _WIDTH // 2)
    return [text[begin:end], " " * (position - begin) + "^"]

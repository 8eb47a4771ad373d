"""Where in a specification an error is, shown."""

from __future__ import annotations

import json
from typing import Any

from grammar_workers import GrammarError

_WIDTH = 100


def place_lines(error: GrammarError, specification: dict[str, Any] | None) -> list[str]:
    """The JSON Pointer with the value it leads to, or the line with a mark under the position; [] without a place."""
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
    """Return the place of an error and its value in one line, for an HTTP answer: the place is called `shown`."""
    parts = []
    if pointer is not None:
        found = _at(specification, pointer)
        parts.append(f"{shown or 'the root of the schema'}{'' if found is None else f': {found}'}")
    if position is not None:
        before = (_text(specification) or "")[position : position + 20] if pointer is None else ""
        parts.append(f"character {position}{f', before {before!r}' if before else ''}")
    return f" (at {'; '.join(parts)})" if parts else ""


def _text(specification: dict[str, Any] | None) -> str | None:
    """The text that a position counts in."""
    text = (specification or {}).get("pattern", (specification or {}).get("text"))
    return text if isinstance(text, str) else None


def _at(specification: dict[str, Any] | None, pointer: str) -> str | None:
    """The value at `pointer` (RFC 6901) as short JSON; None where it leads nowhere."""
    value: Any = (specification or {}).get("schema", specification)
    for part in pointer.lstrip("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= _WIDTH else f"{shown[:_WIDTH]}..."


def _marked(text: str, position: int) -> list[str]:
    """The line that holds `position` (in characters), cut around it, and a line with a mark under it."""
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    begin, end = max(begin, position - _WIDTH // 2), min(len(text) if end < 0 else end, position + _WIDTH // 2)
    return [text[begin:end], " " * (position - begin) + "^"]

"""JSON values as families of models write them in place of JSON."""

from __future__ import annotations

import json
from typing import Any


def python_literal(value: Any) -> str:
    """A JSON value as Python writes it, with double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python_literal(key)}: {python_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(python_literal, value)) + "]"
    return str(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def bare_literal(value: Any, quote: str) -> str:
    """A JSON value as Gemma writes it: names have no quotes, strings stand as they are between two `quote`s."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{bare_literal(inner, quote)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(bare_literal(inner, quote) for inner in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)

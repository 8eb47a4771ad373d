"""Two notations for JSON values that some models use in tool calls: Python literals, and the notation of Gemma."""

from __future__ import annotations

import json
from typing import Any


def python_literal(value: Any) -> str:
    """Return a JSON value as a Python literal, with strings in double quotes.

    Example: the JSON value `{"a": [true, null]}` becomes the text `{"a": [True, None]}`.

    Args:
        value: None, bool, number, string, list or dict.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python_literal(key)}: {python_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(python_literal, value)) + "]"
    return str(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def bare_literal(value: Any, quote: str) -> str:
    """Return a JSON value in Gemma's notation: property names have no quotes, and strings are not escaped.

    Example: with the quote `<q>`, `{"a": "x", "b": [1, true]}` becomes `{a:<q>x<q>,b:[1,true]}`.

    Args:
        value: None, bool, number, string, list or dict.
        quote: Text that is written before and after each string.
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{bare_literal(inner, quote)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(bare_literal(inner, quote) for inner in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)

"""Strict parser for JSON text from untrusted sources. It rejects invalid JSON that Python's parser accepts."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import jiter
import numpy as np

from grammar_workers.errors import shortened

# Keys and indexes that lead to a value inside another value.
Place = tuple[str | int, ...]

_DUPLICATE = re.compile(r'Detected duplicate key ".*" at line (\d+) column (\d+)', re.DOTALL)


class JsonTextError(ValueError):
    """A text is not valid JSON, or an object in it has a key twice.

    Attributes:
        place: Keys and indexes that lead to the duplicate key, outermost first. () for any other error.
    """

    def __init__(self, message: str, place: Place = ()) -> None:
        super().__init__(message)
        self.place = place


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text strictly.

    Args:
        text: JSON text, as a string or as UTF-8 bytes.

    Returns:
        None, bool, int, float, str, list or dict.

    Raises:
        JsonTextError: The text is not JSON. It is also rejected if it contains NaN, an infinite number, a lone
            surrogate, more than 200 levels of nesting, an integer of thousands of digits, or an object that has a key
            twice.
    """
    data = text if isinstance(text, bytes) else _utf8(text)
    try:
        return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        message = str(error)
        if (found := _DUPLICATE.fullmatch(message)) is None:
            raise JsonTextError(message) from None
    line, column = map(int, found.groups())
    place = _place(data, line, column)
    name = shortened(json.dumps(place[-1], ensure_ascii=False), 100)
    raise JsonTextError(f"the key {name} stands twice in one object", place)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise JsonTextError(f"lone surrogate at position {error.start}") from None


def _place(data: bytes, line: int, column: int) -> Place:
    """Return the path of the key whose colon ends before `line` (from 1) and `column` (in bytes)."""
    line_ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    begin = 0 if line == 1 else int(line_ends[line - 2]) + 1
    up_to_key = data[: begin + column - 1].removesuffix(b":")  # at the end of a text the place is one less
    mark = secrets.token_hex()
    # With this value, the key is the last thing in every container that is open here.
    value = jiter.from_json(up_to_key + b':"' + mark.encode() + b'"', partial_mode=True)
    place: list[str | int] = []
    while not isinstance(value, str):
        place.append(_last_key(value, mark))
        value = value[place[-1]]
    return tuple(place)


def _last_key(container: Any, mark: str) -> str | int:
    if isinstance(container, list):
        return len(container) - 1
    # A duplicate key has the position of its first occurrence.
    marked = (name for name, value in container.items() if isinstance(value, str) and value == mark)
    return next(marked, next(reversed(container)))

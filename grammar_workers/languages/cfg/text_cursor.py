"""A position in a grammar text, shared by the readers: looking, taking, and errors that say where."""

from __future__ import annotations

import re
from typing import NoReturn

from grammar_workers.errors import InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.scalar_values import is_scalar_value
from grammar_workers.options import Limits

MOST_REPEATS = 1 << 20
"""The largest count that a repetition may name; `Limits` bounds what it may cost."""


class TextCursor:
    """A position that moves from left to right. All error positions are character offsets into the text."""

    def __init__(self, text: str, limits: Limits) -> None:
        if "\0" in text:
            position = text.index("\0")
            raise InvalidSpecificationError("a NUL character in a grammar; write it as an escape", position=position)
        self.text = text
        self.position = 0
        self._limits = limits
        self._depth = 0

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def peek(self, many: int = 1) -> str:
        """The next characters, fewer (or none) at the end of the text."""
        return self.text[self.position : self.position + many]

    def take(self, text: str) -> bool:
        """Move behind `text` if it comes next."""
        if self.text.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Move behind what `pattern` matches here."""
        found = pattern.match(self.text, self.position)
        if found:
            self.position = found.end()
        return found

    def enter(self, position: int) -> None:
        """Begin a group; raises LimitExceededError when groups nest too deeply. `leave` ends it."""
        self._depth += 1
        if self._depth > self._limits.max_nesting:
            raise LimitExceededError(
                f"groups nested deeper than {self._limits.max_nesting} (limit max_nesting){self.place(position)}",
                position=position,
            )

    def leave(self) -> None:
        self._depth -= 1

    def count(self, digits: str, position: int) -> int:
        """The value of a repetition count."""
        if len(digits) > 7 or int(digits) > MOST_REPEATS:
            raise LimitExceededError(f"a repeat count above {MOST_REPEATS}{self.place(position)}", position=position)
        return int(digits)

    def scalar(self, digits: str, width: int, position: int) -> str:
        """The character that an escape of exactly `width` hexadecimal digits names."""
        if len(digits) != width or not re.fullmatch("[0-9a-fA-F]+", digits):
            self.fail("malformed escape", position)
        value = int(digits, 16)
        if not is_scalar_value(value):
            self.fail("an escape that is no character", position)
        return chr(value)

    def place(self, position: int) -> str:
        """` (line 3, column 5)`: what a person looks for."""
        line = self.text.count("\n", 0, position) + 1
        column = position - self.text.rfind("\n", 0, position)
        return f" (line {line}, column {column})"

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raise InvalidSpecificationError at `position` (default: here)."""
        at = self.position if position is None else position
        raise InvalidSpecificationError(f"malformed grammar: {message}{self.place(at)}", position=at)

    def refuse(self, what: str, position: int | None = None) -> NoReturn:
        """Raise UnsupportedFeatureError at `position` (default: here)."""
        at = self.position if position is None else position
        raise UnsupportedFeatureError(f"{what}{self.place(at)}", position=at)

"""Reading the arguments of a call piece by piece as JSON text, however the family writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from deployments.chat.tool_formats.declaration import Parameters
from gpu_workers.model.text import beginning_of
from grammar_workers.json_types import types_of


class JsonValue:
    """Finds the end of one JSON value in text that is known to begin with one."""

    def __init__(self) -> None:
        self.over = False
        self._depth = 0
        self._quoted = self._escaped = self._begun = False

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the value."""
        for position, character in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif self._depth == 0 and self._begun and character not in "+-.0123456789aeflnrstuE":
                self.over = True  # a number, true, false or null has ended before this character
                return position
            elif character in "}]":
                self._depth -= 1
            self._begun = self._begun or not character.isspace()
            if self._depth == 0 and not self._quoted and character in '"}]':
                self.over = True
                return position + 1
        return len(text)

    def read(self, text: str) -> tuple[str, str]:
        """The part of `text` that belongs to the value, and the rest."""
        many = self.feed(text)
        return text[:many], text[many:]


class RawReader:
    """Text up to the last `end`, which closes the answer: there may be others before it, in the text."""

    over = False

    def __init__(self, end: str) -> None:
        self._end = end
        self._held = ""

    def read(self, text: str) -> tuple[str, str]:
        """The text that is no beginning of the end; nothing is left over."""
        text = self._held + text
        certain = len(text) - beginning_of(self._end + "\0", text)
        self._held = text[certain:]
        return text[:certain], ""

    def finish(self) -> str:
        """The rest, when no more text comes."""
        return self._held.removesuffix(self._end) if self._end else self._held


class ParameterReader:
    """Arguments that stand one after the other, as one JSON object.

        text --element's beginning--> key --> value --element's end--> text --anything else--> over

    A value is a string where the model says so, or else where the function's schema has nothing else for it; where the
    schema has both it is JSON if it can be.
    """

    def __init__(self, parameters: Parameters, schema: Any) -> None:
        self.over = False
        before, after = parameters.element.split("$value")
        self._opens = parameters.parts[0]
        self._header = _pattern(before)
        # White space around a value belongs to the markup where the declaration has some.
        self._trimmed = before.endswith("\n")
        self._closes = after.strip()
        self._schema = schema
        self._step: Callable[[str], tuple[str, str] | None] = self._between
        self._filled: dict[str, str] = {}
        self._members = 0
        self._streamed = False

    def read(self, text: str) -> tuple[str, str]:
        """JSON text that is certain now, and what of `text` is not read yet."""
        piece = ""
        while not self.over and (read := self._step(text)) is not None:
            piece, text = piece + read[0], read[1]
        return piece, text

    # Each step returns JSON text and the rest, or None where it needs more text; it may choose the next one.

    def _between(self, text: str) -> tuple[str, str] | None:
        rest = text.lstrip()
        if rest.startswith(self._opens):
            self._step = self._read_header
            return "", rest
        if self._opens.startswith(rest):
            return None
        self.over = True
        return ("}" if self._members else "{}"), text

    def _read_header(self, text: str) -> tuple[str, str] | None:
        """Up to the value."""
        found = self._header.match(text)
        if found is None:
            return None
        rest = text[found.end() :]
        if self._trimmed:
            if not rest:
                return None
            rest = rest.removeprefix("\n")
        self._filled = found.groupdict()
        self._members += 1
        key = json.dumps(self._filled["key"], ensure_ascii=False)
        self._streamed = self._is_string() is True
        self._step = self._read_value
        return f"{', ' if self._members > 1 else '{'}{key}: " + '"' * self._streamed, rest

    def _read_value(self, text: str) -> tuple[str, str] | None:
        end = text.find(self._closes)
        if not self._streamed:
            return None if end < 0 else self._close(self._json(self._cut(text[:end])), text[end:])
        if end >= 0:
            return self._close(_escaped(self._cut(text[:end])) + '"', text[end:])
        certain = len(text) - beginning_of(self._closes, text)
        if self._trimmed and text[:certain].endswith("\n"):
            certain -= 1
        return (_escaped(text[:certain]), text[certain:]) if certain else None

    def _close(self, piece: str, rest: str) -> tuple[str, str]:
        self._step = self._between
        return piece, rest[len(self._closes) :]

    def _cut(self, value: str) -> str:
        return value.removesuffix("\n") if self._trimmed else value

    def _is_string(self) -> bool | None:
        """Whether the value is a string; None: it may be one."""
        if "string" in self._filled:
            return self._filled["string"] == "true"
        types = types_of(self._schema, self._filled["key"])
        return types == {"string"} if "string" not in types or len(types) == 1 else None

    def _json(self, value: str) -> str:
        try:
            json.loads(value)
        except ValueError:
            return json.dumps(value, ensure_ascii=False)
        return value.strip()


class KeywordReader:
    """Arguments as Python writes them, `city="Paris", ok=True`, as one JSON object."""

    def __init__(self, parameters: Parameters) -> None:
        self.over = False
        before = parameters.element.removesuffix("$value").removeprefix("$key")
        self._header = re.compile(rf"(\w+){re.escape(before)}")
        self._separator = parameters.separator.strip()
        self._members = 0
        self._value: _PythonValue | None = None

    def read(self, text: str) -> tuple[str, str]:
        """JSON text that is certain now, and what of `text` is not read yet."""
        piece = ""
        while not self.over:
            if self._value is not None:
                read, text = self._value.read(text)
                piece += read
                if not self._value.over:
                    break
                self._value = None
            following = text.lstrip()
            if not following:
                break
            if self._members and following.startswith(self._separator):
                following = following.removeprefix(self._separator).lstrip()
            elif self._members or not (following[0].isalpha() or following[0] == "_"):
                self.over = True
                return piece + ("}" if self._members else "{}"), text
            found = self._header.match(following)
            if found is None:
                break
            self._members += 1
            self._value = _PythonValue()
            piece += f"{', ' if self._members > 1 else '{'}{json.dumps(found[1], ensure_ascii=False)}: "
            text = following[found.end() :]
        return piece, text


class _PythonValue:
    """One of Python's literals as JSON text, piece by piece; it ends before a comma or bracket that is none of it."""

    def __init__(self) -> None:
        self.over = False
        self._depth = 0
        self._quoted = self._escaped = False
        self._word = ""

    def read(self, text: str) -> tuple[str, str]:
        """As `KeywordReader.read`."""
        piece = ""
        for position, character in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
                piece += character
            elif character.isalnum() or character in "+-._":
                self._word += character
            else:
                piece += _CONSTANTS.get(self._word, self._word)
                self._word = ""
                if self._depth == 0 and character in ",)]}":
                    self.over = True
                    return piece, text[position:]
                self._depth += (character in "[{(") - (character in "]})")
                self._quoted = character == '"'
                piece += character
        return piece, ""


class BareReader:
    """Arguments with bare names, and strings between two quotes, `city:<escape>Paris<escape>,days:3`, as JSON."""

    def __init__(self, parameters: Parameters) -> None:
        self.over = False
        self._quote = parameters.quote
        self._quoted = False
        self._begun = False
        self._closers = ["}"]
        self._wants_name = True

    def read(self, text: str) -> tuple[str, str]:
        """JSON text that is certain now, and what of `text` is not read yet; the last brace is not ours."""
        piece = "" if self._begun else "{"
        self._begun = True
        while text and not self.over:
            if self._quoted:
                end = text.find(self._quote)
                certain = end if end >= 0 else len(text) - beginning_of(self._quote, text)
                piece += _escaped(text[:certain])
                text = text[certain:]
                if end < 0:
                    break
                piece, text, self._quoted = piece + '"', text.removeprefix(self._quote), False
            elif text[0] in "}]":
                self.over = len(self._closers) == 1
                piece += self._closers.pop()
                text = text if self.over else text[1:]
                self._wants_name = False
            elif self._wants_name:
                name, colon, rest = text.partition(":")
                if not colon:
                    break
                piece += f"{json.dumps(name.strip(), ensure_ascii=False)}: "
                text, self._wants_name = rest, False
            elif text.startswith(self._quote):
                piece, text, self._quoted = piece + '"', text.removeprefix(self._quote), True
            elif self._quote.startswith(text):
                break
            else:
                character, text = text[0], text[1:]
                if character in "{[":
                    self._closers.append("}" if character == "{" else "]")
                    self._wants_name = character == "{"
                elif character == ",":
                    self._wants_name = self._closers[-1] == "}"
                    character = ", "
                piece += character
        return piece, text


_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


def _pattern(before: str) -> re.Pattern[str]:
    """What stands before a value, whatever white space the model puts between its parts."""
    holes = {"$key": "(?P<key>.*?)", "$string": "(?P<string>true|false)"}
    parts = re.split(r"(\$key|\$string|\s+)", before.rstrip())
    return re.compile(
        "".join(holes.get(part) or (r"\s*" if part.isspace() else re.escape(part)) for part in parts), re.S
    )


def _escaped(text: str) -> str:
    """Text inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]

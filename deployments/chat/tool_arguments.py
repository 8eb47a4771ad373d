"""Incremental readers of tool call arguments. Each reader converts the notation of a model family to JSON text.

A reader gets the generated text piece by piece. Its method `read` returns JSON text, and the part of the text that it
has not read. The caller passes this part to the next call again, followed by later text. The attribute `over` is true
after the end of the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from deployments.chat.tool_formats.declaration import Parameters
from gpu_workers.model.text import beginning_of
from grammar_workers.json_types import types_of


class JsonValue:
    """Incremental reader of one JSON value in generated text.

    The reader finds the end of the value, and does not change the text. The text must be valid JSON, which the
    constraint on the output guarantees.

    Attributes:
        over: True after the end of the value. The end of a number, `true`, `false` or `null` is known only when the
            character after it has been read.
    """

    def __init__(self) -> None:
        self.over = False
        self._depth = 0
        self._quoted = self._escaped = self._begun = False

    def read(self, text: str) -> tuple[str, str]:
        """Read the next piece of text.

        Args:
            text: The next piece of text.

        Returns:
            The part of `text` that belongs to the value, and the rest. The rest is empty unless the value has ended.
        """
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
                return text[:position], text[position:]
            elif character in "}]":
                self._depth -= 1
            self._begun = self._begun or not character.isspace()
            if self._depth == 0 and not self._quoted and character in '"}]':
                self.over = True
                return text[: position + 1], text[position + 1 :]
        return text, ""


class RawReader:
    """Incremental reader of the input of a custom tool (tool that takes text instead of JSON arguments).

    A response that calls a custom tool ends with the input, followed by a fixed text. The fixed text may also occur in
    the input, so the end of the input is known only at the end of the response. Therefore `over` is never true, and
    `finish` removes the fixed text.

    Args:
        end: Fixed text after the input. Empty: the input is the end of the response.
    """

    over = False

    def __init__(self, end: str) -> None:
        self._end = end
        self._held = ""

    def read(self, text: str) -> tuple[str, str]:
        """Read the next piece of the response.

        Text that may be part of the fixed text after the input is held back.

        Args:
            text: The next piece of text.

        Returns:
            (input, unread): the next piece of the input, and an empty text, because no text remains unread.
        """
        text = self._held + text
        certain = len(text) - beginning_of(self._end + "\0", text)
        self._held = text[certain:]
        return text[:certain], ""

    def finish(self) -> str:
        """Return the last part of the input, which was held back. Call this after the response has ended."""
        return self._held.removesuffix(self._end) if self._end else self._held


class ParameterReader:
    """Incremental reader that converts arguments in markup, such as `<parameter=city>Paris</parameter>`, to JSON.

    The result is one JSON object, here `{"city": "Paris"}`. The states of the reader are:

        gap --beginning of element--> key --> value --end of element--> gap --other text--> over

    A value is a string if the markup of the model says so, or if the schema allows only strings. Any other value that
    is valid JSON is taken as JSON. A value that is not valid JSON is a string.

    Args:
        parameters: Notation of the arguments. Its `element` is the markup of one argument.
        schema: JSON Schema of the arguments object, which gives the types of the values. None: any type is allowed.

    Attributes:
        over: True after the end of the arguments.
    """

    def __init__(self, parameters: Parameters, schema: Any) -> None:
        self.over = False
        before, after = parameters.element.split("$value")
        self._opens = parameters.parts[0]
        self._header = _pattern(before)
        # If the declaration has line breaks around a value, they belong to the markup.
        self._trimmed = before.endswith("\n")
        self._closes = after.strip()
        self._schema = schema
        self._step: Callable[[str], tuple[str, str] | None] = self._between
        self._filled: dict[str, str] = {}
        self._members = 0
        self._streamed = False

    def read(self, text: str) -> tuple[str, str]:
        """Read more of the arguments.

        Args:
            text: The unread text that the previous call of `read` returned, followed by later text.

        Returns:
            (JSON text, unread text): the next piece of the arguments as JSON, and the unread part of `text`. The pieces
            of all calls of `read` form one JSON object.
        """
        piece = ""
        while not self.over and (read := self._step(text)) is not None:
            piece, text = piece + read[0], read[1]
        return piece, text

    # Each step returns JSON text and the rest, or None if it needs more text. A step may set the next step.

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
        """Read up to the beginning of the value."""
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
        """Return whether the value is a string. None: the schema allows a string and other types."""
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
    """Incremental reader that converts arguments in Python's notation, such as `city="Paris", ok=True`, to JSON.

    The result is one JSON object, here `{"city": "Paris", "ok": true}`.

    Args:
        parameters: Notation of the arguments: the texts between name and value, and between two arguments.

    Attributes:
        over: True after the end of the arguments.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.over = False
        before = parameters.element.removesuffix("$value").removeprefix("$key")
        self._header = re.compile(rf"(\w+){re.escape(before)}")
        self._separator = parameters.separator.strip()
        self._members = 0
        self._value: _PythonValue | None = None

    def read(self, text: str) -> tuple[str, str]:
        """Read more of the arguments.

        Args:
            text: The unread text that the previous call of `read` returned, followed by later text.

        Returns:
            (JSON text, unread text): the next piece of the arguments as JSON, and the unread part of `text`. The pieces
            of all calls of `read` form one JSON object.
        """
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
    """Reader of one Python literal, as JSON. The literal ends before a comma or bracket that is not part of it."""

    def __init__(self) -> None:
        self.over = False
        self._depth = 0
        self._quoted = self._escaped = False
        self._word = ""

    def read(self, text: str) -> tuple[str, str]:
        """Return JSON text and the rest, as `KeywordReader.read` does."""
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
    """Incremental reader that converts arguments with bare names and special quotes to JSON.

    For example, it converts `city:<escape>Paris<escape>,days:3` to the JSON object `{"city": "Paris", "days": 3}`. The
    arguments end at the closing brace of the call.

    Args:
        parameters: Notation of the arguments. Its `quote` is the text before and after a string (here `<escape>`).

    Attributes:
        over: True after the end of the arguments.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.over = False
        self._quote = parameters.quote
        self._quoted = False
        self._begun = False
        self._closers = ["}"]
        self._wants_name = True

    def read(self, text: str) -> tuple[str, str]:
        """Read more of the arguments.

        Args:
            text: The unread text that the previous call of `read` returned, followed by later text.

        Returns:
            (JSON text, unread text): the next piece of the arguments as JSON, and the unread part of `text`. The pieces
            of all calls of `read` form one JSON object. After the end of the arguments, the unread part starts with the
            closing brace of the tool call.
        """
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
    """Return the pattern of the text before a value. It accepts any white space between the parts."""
    holes = {"$key": "(?P<key>.*?)", "$string": "(?P<string>true|false)"}
    parts = re.split(r"(\$key|\$string|\s+)", before.rstrip())
    return re.compile(
        "".join(holes.get(part) or (r"\s*" if part.isspace() else re.escape(part)) for part in parts), re.S
    )


def _escaped(text: str) -> str:
    """Return `text` escaped for a JSON string, without quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]

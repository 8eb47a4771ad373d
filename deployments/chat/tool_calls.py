"""Reading tool calls out of generated text, piece by piece, as the constraint guarantees it to be written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

from deployments.chat.thinking import beginning_of
from deployments.chat.tool_formats import ToolFormat

Delta = dict[str, Any]
"""What one more piece of text adds to an answer: `{"content": text}` or `{"tool_calls": [...]}`, OpenAI's shape."""


def call_id(tool_format: ToolFormat, *seed: object) -> str:
    """The id of a call, the same for the same `seed`: a repeated request has the same ids."""
    digest = hashlib.sha256(repr(seed).encode()).hexdigest()
    return tool_format.id_prefix + digest[: tool_format.id_length]


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
                self._read_quoted(character)
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif self._depth == 0 and self._begun and character not in "+-.0123456789aeflnrstuE":
                self.over = True  # a number, true, false or null has ended before this character
                return position
            elif character in "}]":
                self._depth -= 1
            self._begun = True
            if self._depth == 0 and not self._quoted and character in '"}]':
                self.over = True
                return position + 1
        return len(text)

    def _read_quoted(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._quoted = False


class ToolCallParser:
    """One choice's text, cut into content and calls.

        text --trigger--> header (the name) --before_arguments--> arguments --JSON is whole--> end --> text

    White space and separators at the borders of calls are no content. A call that was cut off keeps what there is of
    its arguments; of one that was cut off before them nothing is told.
    """

    def __init__(self, tool_format: ToolFormat, *id_seed: object) -> None:
        self.calls = 0
        self._format = tool_format
        self._id_seed = id_seed
        self._steps = {"text": self._text, "header": self._header, "arguments": self._arguments, "end": self._end}
        self._place: Literal["text", "header", "arguments", "end"] = "text"
        self._held = ""
        self._value = JsonValue()
        self._after_call = False

    def feed(self, text: str) -> Iterator[Delta]:
        """What is certain now."""
        self._held += text
        while True:
            place = self._place
            yield from self._steps[place]()
            if place == self._place:
                return

    def finish(self, *, cut: bool) -> Iterator[Delta]:
        """The rest, when no more text comes; `cut`: more would have come, so what may begin a call is no content."""
        if self._place == "text":
            begun = beginning_of(self._format.trigger, self._held) if cut else 0
            if text := self._held[: len(self._held) - begun]:
                yield {"content": text}
        self._held = ""

    def _text(self) -> Iterator[Delta]:
        """Content up to the next trigger; white space or the beginning of a trigger at its end has to wait."""
        if self._after_call:
            self._held = self._held.lstrip().removeprefix(self._format.separator.strip()).lstrip()
        trigger = self._format.trigger
        found = self._held.find(trigger)
        certain = len(self._held) - beginning_of(trigger, self._held) if found < 0 else found
        text = self._held[:certain].rstrip()
        if text:
            self._after_call = False
            yield {"content": text}
        self._held = self._held[len(text) if found < 0 else found :]
        if found >= 0:
            self._place = "header"

    def _header(self) -> Iterator[Delta]:
        tool_format = self._format
        end = self._held.find(tool_format.before_arguments, len(tool_format.before_name))
        if end < 0:
            return
        name = self._held[len(tool_format.before_name) : end]
        self._held = self._held[end + len(tool_format.before_arguments) :]
        self._value = JsonValue()
        self._place = "arguments"
        self.calls += 1
        identity = call_id(tool_format, *self._id_seed, self.calls)
        yield self._call(id=identity, type="function", function={"name": name, "arguments": ""})

    def _arguments(self) -> Iterator[Delta]:
        many = self._value.feed(self._held)
        piece, self._held = self._held[:many], self._held[many:]
        if self._value.over:
            self._place = "end"
        if piece:
            yield self._call(function={"arguments": piece})

    def _end(self) -> Iterator[Delta]:
        if len(self._held) >= len(self._format.end):
            self._held = self._held[len(self._format.end) :]
            self._place, self._after_call = "text", True
        yield from ()

    def _call(self, **fields: Any) -> Delta:
        return {"tool_calls": [{"index": self.calls - 1, **fields}]}

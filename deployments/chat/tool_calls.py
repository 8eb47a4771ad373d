"""Reading tool calls out of generated text, piece by piece, as the constraint guarantees it to be written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from deployments.chat.thinking import beginning_of
from deployments.chat.tool_formats import ToolFormat

Delta = dict[str, Any]
"""What one more piece of text adds to an answer: `{"content": text}` or `{"tool_calls": [...]}`, OpenAI's shape."""
Deltas = list[Delta]


def call_id(tool_format: ToolFormat, name: str, number: int, written: dict[str, str], *seed: object) -> str:
    """The id of the call of this number, the same for the same `seed`: a repeated request has the same ids.

    `written`: what the model wrote into holes for ids.
    """
    digest = hashlib.sha256(repr((*seed, number)).encode()).hexdigest()
    made = {"$name": name, "$count": str(number), "$random": digest[: tool_format.id_length]}
    return tool_format.id_for_client({**made, **written})


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
            self._begun = self._begun or not character.isspace()
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

        text --trigger--> opens -> call, part by part -> separator -> call, part by part -> closes --> text

    White space and separators at the borders of calls are no content. A call that was cut off keeps what there is of
    its arguments; of one that was cut off before them nothing is told.
    """

    def __init__(self, tool_format: ToolFormat, *id_seed: object) -> None:
        self.calls = 0
        self._format = tool_format
        self._id_seed = id_seed
        self._step: Callable[[], Deltas | None] = self._text
        self._held = ""
        self._part = 0
        self._filled: dict[str, str] = {}
        self._value: JsonValue | None = None
        self._after_call = False
        self._kind = "content"
        self._markers = {tool_format.trigger: ""}
        for region in tool_format.texts:
            self._markers |= {region.opens: region.kind} | ({region.closes: "content"} if region.closes else {})

    def feed(self, text: str) -> Iterator[Delta]:
        """What is certain now."""
        self._held += text
        while True:
            deltas = self._step()
            yield from deltas or ()
            if deltas is None:
                return

    def finish(self, *, cut: bool) -> Iterator[Delta]:
        """The rest, when no more text comes; `cut`: more would have come, so what may begin a call is no content."""
        if self._step == self._text:
            begun = self._begun_marker() if cut else 0
            if text := self._held[: len(self._held) - begun]:
                yield {self._kind: text}
        self._held = ""

    # Each step returns what it has found out, or None where it needs more text; it may choose the next one.

    def _text(self) -> Deltas | None:
        """Text up to the next marker; white space or the beginning of a marker at its end has to wait."""
        if self._after_call:
            separator = "" if self._format.in_sections else self._format.separator.strip()
            self._held = self._held.lstrip().removeprefix(separator).lstrip()
        places = {marker: self._held.find(marker) for marker in self._markers}
        found = min((marker for marker in places if places[marker] >= 0), key=lambda one: places[one], default=None)
        certain = len(self._held) - self._begun_marker() if found is None else places[found]
        text = self._held[:certain].rstrip()
        deltas: Deltas = [{self._kind: text}] if text else []
        if text:
            self._after_call = False
        if found is None:
            self._held = self._held[len(text) :]
            return deltas or None
        self._held = self._held[certain:]
        if found == self._format.trigger:
            self._step = self._opening
        else:
            self._held = self._held[len(found) :]
            self._kind = self._markers[found]
        return deltas

    def _begun_marker(self) -> int:
        return max(beginning_of(marker, self._held) for marker in self._markers)

    def _opening(self) -> Deltas | None:
        return self._read(self._format.opens, self._begin_call)

    def _begin_call(self) -> Deltas:
        self._part, self._filled, self._step = 0, {}, self._call_part
        return []

    def _call_part(self) -> Deltas | None:
        """One more part of a call."""
        parts = self._format.parts
        if self._part == len(parts):
            return self._end_call()
        part = parts[self._part]
        if part == "$arguments":
            return self._arguments()
        if not part.startswith("$"):
            return self._read(part, self._next_part)
        # What follows a hole in a declaration is never in what fills it.
        end = self._held.find(parts[self._part + 1])
        if end < 0:
            return None
        self._filled[part], self._held = self._held[:end], self._held[end:]
        return self._next_part()

    def _next_part(self) -> Deltas:
        self._part += 1
        return []

    def _arguments(self) -> Deltas | None:
        if self._value is None:
            self._value = JsonValue()
            return [self._announced()]
        if not self._held:
            return None
        many = self._value.feed(self._held)
        piece, self._held = self._held[:many], self._held[many:]
        if self._value.over:
            self._value = None
            self._part += 1
        return [self._delta(function={"arguments": piece})] if piece else []

    def _announced(self) -> Delta:
        name = self._filled.pop("$name")
        identity = call_id(self._format, name, self.calls, self._filled, *self._id_seed)
        self.calls += 1
        return self._delta(id=identity, type="function", function={"name": name, "arguments": ""})

    def _end_call(self) -> Deltas:
        self._step = self._between if self._format.in_sections else self._text
        self._after_call = True
        return []

    def _between(self) -> Deltas | None:
        """In a section after a call: another one, or the end of the section."""
        again = self._format.separator + self._format.parts[0]
        if self._held.startswith(again):
            return self._read(self._format.separator, self._begin_call)
        if again.startswith(self._held):
            return None
        return self._read(self._format.closes, self._end_section)

    def _end_section(self) -> Deltas:
        self._step = self._text
        return []

    def _read(self, expected: str, then: Callable[[], Deltas]) -> Deltas | None:
        """Goes on with `then` behind a text that the constraint puts here; what is something else is text."""
        if self._held.startswith(expected):
            self._held = self._held[len(expected) :]
            return then()
        if expected.startswith(self._held):
            return None
        self._step = self._text
        kept, self._held = self._held[:1], self._held[1:]
        return [{self._kind: kept}]

    def _delta(self, **fields: Any) -> Delta:
        return {"tool_calls": [{"index": self.calls - 1, **fields}]}

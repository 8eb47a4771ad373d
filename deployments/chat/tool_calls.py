"""Incremental parser of generated text with tool calls, and the function that makes the ids of calls.

The constraint on the output guarantees that calls in the text have the format of the model family.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from deployments.chat.tool_arguments import BareReader, JsonValue, KeywordReader, ParameterReader, RawReader
from deployments.chat.tool_formats.declaration import RawInput, ToolFormat
from gpu_workers.model.text import beginning_of

# Addition of more text to a response, in OpenAI's format: `{"content": text}`, or the same with `reasoning_content`,
# or `{"tool_calls": [...]}`.
Delta = dict[str, Any]
Deltas = list[Delta]


def call_id(tool_format: ToolFormat, name: str, number: int, written: dict[str, str], *seed: object) -> str:
    """Return the id of a tool call in the response to the client.

    The id is a function of the arguments, so a repeated request gets equal ids.

    Args:
        tool_format: Format of the model's calls. It determines the form of the ids.
        name: Name of the called function.
        number: Index of the call in the response, from 0.
        written: Parts of the id that the model has written: placeholder (`$count` or `$random`) -> text. A missing
            `$count` is replaced by `number`, a missing `$random` by a hash of `seed` and `number`.
        seed: Values that identify the output, such as the seed of the request and the index of the choice.
    """
    digest = hashlib.sha256(repr((*seed, number)).encode()).hexdigest()
    made = {"$name": name, "$count": str(number), "$random": digest[: tool_format.id_length]}
    return tool_format.id_for_client({**made, **written})


class ToolCallParser:
    """Incremental parser that splits the text of one choice (output) into content and tool calls.

    The parser has these states. `trigger`, `opens`, `separator` and `closes` are texts of the format:

        text --trigger--> opens -> call, part by part -> separator -> call, part by part -> closes --> text

    White space and separators next to calls are not content. If the output is truncated within the arguments of a
    call, the call has incomplete arguments. If it is truncated earlier in a call, the call is omitted.

    Args:
        tool_format: Format of the model's calls.
        id_seed: Values from which the ids of calls are derived, such as the seed of the request and the index of the
            choice.
        schemas: Name of a tool -> JSON Schema of its arguments, or `RawInput` for a custom tool (tool that takes text
            instead of JSON arguments). Tools without an entry are treated as functions that take any arguments.
        text_begin: None: the response may have both text and calls. A text: the response has either text or calls. If
            it has text, it begins with `text_begin` (which may be empty), and this beginning is not content.

    Attributes:
        calls: Number of calls that have started.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        *id_seed: object,
        schemas: Mapping[str, Any] = MappingProxyType({}),
        text_begin: str | None = None,
    ) -> None:
        self.calls = 0
        self._format = tool_format
        self._schemas = schemas
        self._id_seed = id_seed
        self._step: Callable[[], Deltas | None] = self._text
        self._held = ""
        self._part = 0
        self._filled: dict[str, str] = {}
        self._value: BareReader | JsonValue | KeywordReader | ParameterReader | RawReader | None = None
        self._after_call = False
        self._text_begin = text_begin or ""
        self._alone = tool_format.alone or (text_begin is not None and not tool_format.texts)
        self._last = [one for one in tool_format.texts if one.last and text_begin is not None]
        self._kind = "content"
        self._markers = {tool_format.trigger: ""}
        for region in tool_format.texts:
            self._markers |= {region.opens: region.kind} | ({region.closes: "content"} if region.closes else {})

    def feed(self, text: str) -> Iterator[Delta]:
        """Parse the next piece of generated text.

        Text that may be the beginning of a marker is held back.

        Args:
            text: The next piece of text.

        Yields:
            Deltas (pieces of a response in the format of OpenAI's streams): dicts with exactly one of the keys
            `content`, `reasoning_content` and `tool_calls`.
        """
        self._held += text
        while True:
            deltas = self._step()
            yield from deltas or ()
            if deltas is None:
                return

    def finish(self, *, cut: bool) -> Iterator[Delta]:
        """Parse the text that was held back. Call this method after the output has ended.

        Args:
            cut: True if the output was truncated by the limit on tokens. Then an incomplete marker at the end of the
                text is dropped.

        Yields:
            At most one delta, in the form that `feed` yields: the rest of the text, or the rest of the input of a
            custom tool.
        """
        if isinstance(self._value, RawReader):
            if text := self._value.finish():
                yield self._delta(custom={"input": text})
            self._value = None
        elif self._step == self._text:
            begun = self._begun_marker() if cut else 0
            if text := self._held[: len(self._held) - begun]:
                yield {self._kind: text}
        self._held = ""

    # Each step returns deltas, or None if it needs more text. A step may set the next step.

    def _text(self) -> Deltas | None:
        """Read text up to the next marker. White space and the beginning of a marker at its end are held back."""
        if self._after_call:
            separator = "" if self._format.in_sections else self._format.separator.strip()
            self._held = self._held.lstrip().removeprefix(separator).lstrip()
        if self._alone and not self._begins_with_calls():
            return None
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
            for region in self._last:
                if region.opens == found:  # its text contains no further markers
                    self._markers = {region.closes: "content"} if region.closes else {}
        return deltas

    def _begins_with_calls(self) -> bool:
        """Return False if more text is needed to decide. If the response is text, remove the markers to search for."""
        trigger = self._format.trigger
        if not self._held.startswith(trigger):
            if trigger.startswith(self._held):
                return False
            if self._markers:
                self._held = self._held.removeprefix(self._text_begin)
            self._markers.clear()
        return True

    def _begun_marker(self) -> int:
        return max((beginning_of(marker, self._held) for marker in self._markers), default=0)

    def _opening(self) -> Deltas | None:
        return self._read(self._format.opens, self._begin_call)

    def _begin_call(self) -> Deltas:
        self._part, self._filled, self._step = 0, {}, self._call_part
        return []

    def _call_part(self) -> Deltas | None:
        """Read the next part of a call."""
        parts = self._format.parts
        if self._part == len(parts):
            return self._end_call()
        part = parts[self._part]
        if part == "$arguments":
            return self._arguments()
        if not part.startswith("$"):
            return self._read(part, self._next_part)
        # The text after a hole of a declaration never occurs in the content of the hole.
        ends = [place for text in self._following() if (place := self._held.find(text)) >= 0]
        if not ends:
            return None
        end = min(ends)
        self._filled[part], self._held = self._held[:end], self._held[end:]
        return self._next_part()

    def _following(self) -> tuple[str, ...]:
        """Return the texts of which one follows the hole that is being read."""
        after, *others = self._format.parts[self._part + 1 :]
        if after != "$arguments":
            return (after,)
        assert self._format.parameters is not None
        return (self._format.parameters.parts[0], others[0])

    def _next_part(self) -> Deltas:
        self._part += 1
        return []

    def _arguments(self) -> Deltas | None:
        if self._value is None:
            return [self._announced()]
        if not self._held:
            return None
        piece, self._held = self._value.read(self._held)
        if isinstance(self._value, RawReader):
            return [self._delta(custom={"input": piece})] if piece else None
        if self._value.over:
            self._value = None
            self._part += 1
            return [self._delta(function={"arguments": piece})] if piece else []
        return [self._delta(function={"arguments": piece})] if piece else None

    def _announced(self) -> Delta:
        name = self._filled.pop("$name")
        parameters = self._format.parameters
        raw = isinstance(self._schemas.get(name), RawInput)
        if raw:
            self._value = RawReader(self._format.end + self._format.closes)
        elif parameters is None:
            self._value = JsonValue()
        elif parameters.notation == "python":
            self._value = KeywordReader(parameters)
        elif parameters.notation == "bare":
            self._value = BareReader(parameters)
        else:
            self._value = ParameterReader(parameters, self._schemas.get(name))
        identity = call_id(self._format, name, self.calls, self._filled, *self._id_seed)
        self.calls += 1
        if raw:
            return self._delta(id=identity, type="custom", custom={"name": name, "input": ""})
        return self._delta(id=identity, type="function", function={"name": name, "arguments": ""})

    def _end_call(self) -> Deltas:
        self._step = self._between if self._format.in_sections else self._text
        self._after_call = True
        return []

    def _between(self) -> Deltas | None:
        """Read the text after a call in a section: the beginning of another call, or the end of the section."""
        first = self._format.parts[0]
        again = (self._format.separator + ("" if first.startswith("$") else first)).lstrip()
        held = self._held.lstrip()
        closes = self._format.closes.lstrip()
        if not again and held and not (held.startswith(closes) or closes.startswith(held)):
            # White space alone separates calls that begin with their names.
            self._held = held
            return self._begin_call()
        if again and held.startswith(again):
            return self._read(self._format.separator, self._begin_call)
        if again.startswith(held):
            return None
        return self._read(self._format.closes, self._end_section)

    def _end_section(self) -> Deltas:
        self._step = self._text
        return []

    def _read(self, expected: str, then: Callable[[], Deltas]) -> Deltas | None:
        """Read the text `expected` after optional white space, then call `then`. Other text becomes content."""
        if expected.isspace() and self._held.startswith(expected):
            # Further white space may belong to the input of a custom tool.
            self._held = self._held[len(expected) :]
            return then()
        held, expected = self._held.lstrip(), expected.lstrip()
        if held.startswith(expected):
            self._held = held[len(expected) :]
            return then()
        if expected.startswith(held):
            return None
        self._step = self._text
        kept, self._held = self._held[:1], self._held[1:]
        return [{self._kind: kept}]

    def _delta(self, **fields: Any) -> Delta:
        return {"tool_calls": [{"index": self.calls - 1, **fields}]}

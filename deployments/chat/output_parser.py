"""Incremental parser that splits the generated text of one choice into reasoning, content and tool calls.

The parser yields *deltas*: pieces of a response in the format of OpenAI's streams.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from deployments.chat.thinking import ReasoningParser
from deployments.chat.tool_calls import Delta, ToolCallParser


@dataclasses.dataclass
class OutputParser:
    """Incremental parser that splits the text of one choice (output) into reasoning, content and tool calls.

    Attributes:
        thoughts: Parser of the reasoning at the beginning of the output. None: the output has no reasoning section.
        calls: Parser of tool calls, and of the markers that some models write around text. None: the output has no
            tool calls and no markers.
        may_call: True if the request offers tools. `calls` can be set even if this is False, for a model that writes
            all text between markers.
    """

    thoughts: ReasoningParser | None = None
    calls: ToolCallParser | None = None
    may_call: bool = False

    @property
    def plain(self) -> bool:
        """True if all generated text is content: the output has no reasoning, no tool calls and no markers."""
        return self.thoughts is None and self.calls is None

    @property
    def called(self) -> bool:
        """True if a tool call has started in the text that `read` has received so far."""
        return self.calls is not None and self.calls.calls > 0

    def read(self, text: str, finish_reason: str | None) -> Iterator[Delta]:
        """Parse the next piece of the generated text.

        The end of a piece may be the beginning of a marker. The parser holds this end back until more text has arrived.

        Args:
            text: The next piece of text. It may be empty.
            finish_reason: None: more text follows. Otherwise `text` is the last piece. `length` means that the output
                was truncated. Then an incomplete marker at the end of the text is dropped.

        Yields:
            Deltas (pieces of a response in the format of OpenAI's streams): dicts with exactly one of the keys
            `content`, `reasoning_content` and `tool_calls`. With the last piece, the deltas include the text that was
            held back.
        """
        if self.thoughts is not None:
            thoughts, text = self.thoughts.feed(text)
            if thoughts:
                yield {"reasoning_content": thoughts}
        if self.calls is not None:
            yield from self.calls.feed(text)
        elif text:
            yield {"content": text}
        if finish_reason is None:
            return
        if self.thoughts is not None and (rest := self.thoughts.finish()):
            yield {"reasoning_content": rest}
        if self.calls is not None:
            yield from self.calls.finish(cut=finish_reason == "length")

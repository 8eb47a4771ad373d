"""One choice's text as the deltas of OpenAI's streams: thoughts, content and tool calls."""

from __future__ import annotations

from collections.abc import Iterator

from deployments.chat.thinking import ReasoningParser
from deployments.chat.tool_calls import Delta, ToolCallParser


class OutputParser:
    """Puts the readers of a choice in a row; each is None where the model writes no such thing.

    `may_call`: the model was offered tools; `calls` is there also where it marks all of its text.
    """

    def __init__(
        self,
        thoughts: ReasoningParser | None = None,
        calls: ToolCallParser | None = None,
        *,
        may_call: bool = False,
    ) -> None:
        self.thoughts = thoughts
        self.may_call = may_call
        self._calls = calls

    @property
    def plain(self) -> bool:
        """Whether all of the text is content."""
        return self.thoughts is None and self._calls is None

    @property
    def called(self) -> bool:
        """Whether a call has begun."""
        return self._calls is not None and self._calls.calls > 0

    def read(self, text: str, finish_reason: str | None) -> Iterator[Delta]:
        """What is certain after more text, and the rest where the output has ended (`finish_reason`)."""
        if self.thoughts is not None:
            thoughts, text = self.thoughts.feed(text)
            if thoughts:
                yield {"reasoning_content": thoughts}
        if self._calls is not None:
            yield from self._calls.feed(text)
        elif text:
            yield {"content": text}
        if finish_reason is None:
            return
        if self.thoughts is not None and (rest := self.thoughts.finish()):
            yield {"reasoning_content": rest}
        if self._calls is not None:
            yield from self._calls.finish(cut=finish_reason == "length")

"""How the served model speaks in a conversation: its tool calls and its thoughts, in the prompt and in the output."""

from __future__ import annotations

import dataclasses
from typing import Any

from deployments.chat.output_parser import OutputParser
from deployments.chat.thinking import ReasoningParser, Thinking, ThoughtsLimit
from deployments.chat.tool_calls import ToolCallParser
from deployments.chat.tools import ToolDialect
from deployments.openai.protocol import ChatCompletionBody


@dataclasses.dataclass(frozen=True)
class ChatFormat:
    """What its chat template, or the configuration, says about the model."""

    dialect: ToolDialect
    thinking: Thinking

    def thinks(self, body: ChatCompletionBody) -> bool:
        """Whether the output begins with thoughts. Raises `ApiError` 400 where the model has none."""
        return self.thinking.wanted(body.asks_for_thoughts)

    def thoughts_limit(self, body: ChatCompletionBody) -> ThoughtsLimit | None:
        """How many tokens of thoughts there may be."""
        if not body.thinking_budget or self.thinking.markers is None:
            return None
        markers = self.thinking.markers
        return ThoughtsLimit(body.thinking_budget, markers.end, markers.closes)

    def prompt_fields(self, body: ChatCompletionBody) -> dict[str, Any]:
        """The fields of a generation request that depend on the model."""
        fields = self.thinking.prompt_fields(body.asks_for_thoughts)
        offer = body.offer()
        if body.speaks_of_tools:
            fields |= self.dialect.prompt_fields(body.template_messages, offer)
        if offer is not None or self.thinks(body) or self.dialect.format.texts:
            fields["special_token_text"] = True
        return fields

    def reader(self, body: ChatCompletionBody, *call_id_seed: object) -> OutputParser:
        """Reads one choice of the answer."""
        markers = self.thinking.markers
        thoughts = ReasoningParser(markers) if markers is not None and self.thinks(body) else None
        offer, tool_format = body.offer(), self.dialect.format
        if offer is None and not tool_format.texts:
            return OutputParser(thoughts)
        schemas = {} if offer is None else offer.schemas()
        calls = ToolCallParser(tool_format, *call_id_seed, schemas=schemas)
        return OutputParser(thoughts, calls, may_call=offer is not None)

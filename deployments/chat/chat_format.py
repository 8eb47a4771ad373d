"""How the served model speaks in a conversation: its tool calls and its thoughts, in the prompt and in the output."""

from __future__ import annotations

import dataclasses
from typing import Any

from deployments.chat.output_parser import OutputParser
from deployments.chat.thinking import ReasoningParser, Thinking, ThoughtsLimit
from deployments.chat.tool_calls import ToolCallParser
from deployments.chat.tools import Offer, ToolDialect
from deployments.http.errors import ApiError, Places
from deployments.openai.protocol import ChatCompletionBody
from grammar_workers.specification import GrammarSpecification


@dataclasses.dataclass(frozen=True)
class ChatFormat:
    """What its chat template, or the configuration, says about the model."""

    dialect: ToolDialect
    thinking: Thinking

    def thinks(self, body: ChatCompletionBody) -> bool:
        """Whether the output begins with thoughts. Raises `ApiError` 400 where the model has none."""
        return self.thinking.wanted(body.asks_for_thoughts, body.thinking_field)

    def thoughts_limit(self, body: ChatCompletionBody) -> ThoughtsLimit | None:
        """How many tokens of thoughts there may be."""
        markers = self.thinking.markers
        if not body.thinking_budget or markers is None:
            return None
        trigger = self._trigger_behind_thoughts(body)
        return ThoughtsLimit(body.thinking_budget, (markers.end, *([trigger] if trigger else [])), markers.closes)

    def tools(self, body: ChatCompletionBody, offer: Offer) -> tuple[GrammarSpecification, Places]:
        """The specification of an answer that is offered tools, thoughts included, and `ApiError.of_grammar`'s places.

        Raises `ApiError`.
        """
        thoughts = self.thinking.markers if self.thinks(body) else None
        return self.dialect.specification(offer, thoughts), self.dialect.places(offer, thoughts)

    def prompt_fields(self, body: ChatCompletionBody) -> dict[str, Any]:
        """The fields of a generation request that depend on the model. Raises `ApiError`."""
        if body.continue_final_message and self.dialect.format.texts:
            message = "the model puts its text between markers, within which no message can be continued"
            raise ApiError(400, message, param="continue_final_message", code="invalid_value")
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
        thoughts = None
        if markers is not None and self.thinks(body):
            thoughts = ReasoningParser(markers, self._trigger_behind_thoughts(body))
        offer, tool_format = body.offer(), self.dialect.format
        if offer is None and not tool_format.texts:
            return OutputParser(thoughts)
        schemas = {} if offer is None else offer.schemas()
        text_begin = None if offer is None else self.dialect.text_begin(offer)
        calls = ToolCallParser(tool_format, *call_id_seed, schemas=schemas, text_begin=text_begin)
        return OutputParser(thoughts, calls, may_call=offer is not None)

    def _trigger_behind_thoughts(self, body: ChatCompletionBody) -> str | None:
        """What begins a call that ends thoughts; None where none does."""
        return self.dialect.format.trigger if self.dialect.format.ends_thoughts and body.offer() is not None else None

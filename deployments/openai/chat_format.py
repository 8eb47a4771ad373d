"""Chat format of the served model: how tool calls and reasoning appear in prompt, constraint and output."""

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
    """Format of a model's chats (reasoning and tool calls), from its chat template or from the configuration.

    Attributes:
        dialect: Format of tool calls, and the support for tools in the chat template.
        thinking: Markers of the reasoning, and the variable of the chat template that turns it on or off.
    """

    dialect: ToolDialect
    thinking: Thinking

    def thinks(self, body: ChatCompletionBody) -> bool:
        """Return whether the output for a request starts with reasoning.

        `ApiError` 400 is raised if the request turns reasoning on and the model has no reasoning section.

        Args:
            body: The request. If it does not turn reasoning on or off, the default of the model applies.
        """
        return self.thinking.wanted(body.asks_for_thoughts, body.thinking_field)

    def thoughts_limit(self, body: ChatCompletionBody) -> ThoughtsLimit | None:
        """Return the limit on the reasoning tokens of a response, with the texts that end the reasoning.

        Args:
            body: The request.

        Returns:
            The limit. None if the request has no `thinking_budget` above 0, or the model has no reasoning section.
        """
        markers = self.thinking.markers
        if not body.thinking_budget or markers is None:
            return None
        trigger = self._trigger_behind_thoughts(body)
        return ThoughtsLimit(body.thinking_budget, (markers.end, *([trigger] if trigger else [])), markers.closes)

    def tools(self, body: ChatCompletionBody, offer: Offer) -> tuple[GrammarSpecification, Places]:
        """Return the constraint on an output that may call tools.

        `ApiError` 400 is raised if the model's format does not support one of the tools. It is also raised if the
        request turns reasoning on and the model has no reasoning section.

        Args:
            body: The request.
            offer: The tools of the request.

        Returns:
            The constraint on the whole output, including reasoning, and the translation of JSON Pointers from this
            constraint to the request body, for errors. An entry is (prefix of a pointer, replacement) or (prefix,
            replacement, field of the body).
        """
        thoughts = self.thinking.markers if self.thinks(body) else None
        return self.dialect.specification(offer, thoughts), self.dialect.places(offer, thoughts)

    def prompt_fields(self, body: ChatCompletionBody) -> dict[str, Any]:
        """Return the fields of a replica's generation request that depend on the chat format.

        Args:
            body: The request.

        Returns:
            Fields that replace or extend the fields of `body.generation_request`. `messages` and `tools` are the input
            of the chat template. `template_arguments` and `answer_prefix` turn reasoning on or off.
            `special_token_text` is true if the output text must contain the names of special tokens. A field that the
            request does not need is absent.

        Raises:
            ApiError: 400 if the request continues the last message and the model writes all text between markers, or if
                the request turns reasoning on and the model has no reasoning section.
        """
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
        """Return a new parser that splits the output of one choice into reasoning, content and tool calls.

        Use the parser for one output only. `ApiError` 400 is raised if the request turns reasoning on and the model has
        no reasoning section.

        Args:
            body: The request.
            call_id_seed: Values from which the ids of tool calls are derived, such as the seed of the request and the
                index of the choice.
        """
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
        """Return the beginning of a call that may end the reasoning without its end marker, or None."""
        return self.dialect.format.trigger if self.dialect.format.ends_thoughts and body.offer() is not None else None

"""The messages of a conversation as `/v1/messages` takes them, and the chat messages that they mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from deployments.http.body_errors import shown_place
from deployments.http.client_fields import ClientModel
from deployments.http.fields import contradiction
from deployments.openai.chat_messages import TextOr, joined
from deployments.openai.tool_bodies import FunctionName, call_of
from grammar_workers.errors import shortened
from grammar_workers.validation import by_json_type

KINDS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
ROLES = {
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
}
"""Whose turns have blocks of a type; those of all others are in both."""
MAX_KIND = 64
"""Characters of a type that is not supported."""


class _Block(ClientModel):
    ignores: ClassVar[str] = "a part or block"
    type: str


class TextBlock(_Block):
    """Text."""

    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(_Block):
    """What the model thought earlier."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(_Block):
    """Thoughts that nobody can read; left out of the prompt."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(_Block):
    """A call that the model made earlier."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: FunctionName
    input: dict[str, Any]


Text = Annotated[TextOr[TextBlock], by_json_type("text, or a list of text blocks")]


class ToolResultBlock(_Block):
    """What a call returned."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: Text = ""
    is_error: StrictBool | None = Field(None, description="True: the model is told `Error: ` before the content.")


def _known_kind(block: Any) -> Any:
    kind = block.get("type", "text") if isinstance(block, dict) else "text"
    if kind not in KINDS:
        context = {"kind": shortened(str(kind), MAX_KIND), "kinds": ", ".join(KINDS)}
        raise PydanticCustomError("block", "blocks of the type `{kind}` are not supported: only {kinds}", context)
    return block


Block = Annotated[
    Annotated[
        TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
    ],
    BeforeValidator(_known_kind),
]


class MessageParam(ClientModel):
    """One turn."""

    ignores: ClassVar[str] = "a message or item"
    role: Literal["user", "assistant"]
    content: Annotated[TextOr[Block], by_json_type("text, or a list of blocks")]

    @property
    def is_empty(self) -> bool:
        """True for a turn of the assistant that says nothing."""
        texts = [self.content] if isinstance(self.content, str) else [getattr(one, "text", "?") for one in self.content]
        return self.role == "assistant" and not "".join(texts).strip()

    @model_validator(mode="after")
    def _check_blocks(self) -> MessageParam:
        for index, block in enumerate(self.content):
            if isinstance(block, _Block) and (role := ROLES.get(block.type, self.role)) != self.role:
                place = ("content", index)
                raise contradiction(shown_place(place), f"belongs to the {role}", place)
        return self


def chat_messages(
    system: str | list[TextBlock] | None, given: Sequence[MessageParam]
) -> tuple[list[dict[str, Any]], list[tuple[int, int] | None]]:
    """`messages` of a chat completion; and for each the indexes of the message and the block where it begins.

    None: it is no message here. Results of calls become messages of their own, before the text beside them.
    """
    messages: list[dict[str, Any]] = []
    begins: list[tuple[int, int] | None] = []
    if system is not None:
        messages.append({"role": "system", "content": joined(system)})
        begins.append(None)
    for place, message in enumerate(given):
        blocks = [TextBlock(text=message.content)] if isinstance(message.content, str) else message.content
        for index, block in enumerate(blocks):
            if isinstance(block, ToolResultBlock):
                text = ("Error: " if block.is_error else "") + joined(block.content)
                messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
                begins.append((place, index))
        rest = [block for block in blocks if not isinstance(block, ToolResultBlock)]
        if rest or not blocks:
            messages.append(_turn(message.role, rest))
            begins.append((place, 0))
    return messages, begins


def _turn(role: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """One message of text, thoughts and calls."""
    turn: dict[str, Any] = {
        "role": role,
        "content": "".join(block.text for block in blocks if isinstance(block, TextBlock)),
    }
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    if thoughts:
        turn["reasoning_content"] = "".join(thoughts)
    calls = [
        call_of(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    if calls:
        turn["tool_calls"] = calls
    return turn

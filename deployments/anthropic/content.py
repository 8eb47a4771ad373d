"""Messages in the bodies of `/v1/messages`, and their translation into the messages of a chat completion."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from deployments.chat.tool_bodies import FunctionName, call_of
from deployments.http.body_errors import shown_place
from deployments.http.client_fields import ClientModel
from deployments.http.fields import contradiction
from deployments.openai.chat_messages import TextOr, joined
from grammar_workers.errors import shortened
from grammar_workers.validation import by_json_type

KINDS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
# Type of a block -> the role whose messages may contain it. Other types are allowed in messages of both roles.
ROLES = {
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
}
# Maximum number of characters that an error shows of an unsupported type.
MAX_KIND = 64


class _Block(ClientModel):
    ignores: ClassVar[str] = "a part or block"
    type: str


class TextBlock(_Block):
    """Text in a message of a `/v1/messages` request."""

    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(_Block):
    """Reasoning of the model in an earlier response. The client sends it back in a message of the assistant."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(_Block):
    """Encrypted reasoning of an earlier response. The server cannot read it, and leaves it out of the prompt."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(_Block):
    """Function call from an earlier response of the model. `input` has the arguments."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: FunctionName
    input: dict[str, Any]


Text = Annotated[TextOr[TextBlock], by_json_type("text, or a list of text blocks")]


class ToolResultBlock(_Block):
    """Result of an earlier function call, in a message of the user. `tool_use_id` is the `id` of that call."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: Text = ""
    is_error: StrictBool | None = None
    """`true`: the server writes `Error: ` before the content in the prompt."""


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
    """Message of the user or of the assistant in a `/v1/messages` request.

    `content` is text or a list of blocks. Only the assistant may send reasoning and function calls, and only the user
    may send results of calls.
    """

    ignores: ClassVar[str] = "a message or item"
    role: Literal["user", "assistant"]
    content: Annotated[TextOr[Block], by_json_type("text, or a list of blocks")]

    @property
    def is_empty(self) -> bool:
        """True if this is a message of the assistant that has no content except white space."""
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
) -> tuple[list[dict[str, Any]], list[int | None]]:
    """Translate the conversation of a `/v1/messages` request into the messages of a chat completion.

    Each `tool_result` block (result of a function call) becomes a chat message of its own, with the role `tool`. The
    other blocks of its message become one chat message after it.

    Args:
        system: Text of the system message, or its text blocks. None: the conversation has no system message.
        given: Messages of the conversation, in their order; not changed.

    Returns:
        Two lists of equal length. The first has the chat messages. The second has, for each chat message, the index in
        `given` of the message from which it was made, or None for the system message.
    """
    messages: list[dict[str, Any]] = []
    begins: list[int | None] = []
    if system is not None:
        messages.append({"role": "system", "content": joined(system)})
        begins.append(None)
    for place, message in enumerate(given):
        blocks = [TextBlock(text=message.content)] if isinstance(message.content, str) else message.content
        for block in blocks:
            if isinstance(block, ToolResultBlock):
                text = ("Error: " if block.is_error else "") + joined(block.content)
                messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
        rest = [block for block in blocks if not isinstance(block, ToolResultBlock)]
        if rest or not blocks:
            messages.append(_turn(message.role, rest))
        begins += [place] * (len(messages) - len(begins))
    return messages, begins


def _turn(role: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return one chat message with the text, the reasoning and the calls of `blocks`."""
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

"""Items of a conversation in the body of `/v1/responses`, and their translation into chat messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from deployments.chat.tool_bodies import FunctionName, call_of
from deployments.http.client_fields import ClientModel
from deployments.http.fields import text_parts
from deployments.openai.chat_messages import MAX_PARTS, TextOr, TextPart, joined
from grammar_workers.validation import FailFast, by_json_type

Status = Literal["in_progress", "completed", "incomplete"]


class _Item(ClientModel):
    ignores: ClassVar[str] = "a message or item"


_TextKind = Annotated[Literal["input_text", "output_text", "text"], text_parts("input_text", "output_text", "text")]


class InputText(TextPart):
    """Text part of a message in a `/v1/responses` request. A part of the type `refusal` is read as text."""

    type: _TextKind  # type: ignore[assignment]
    """The server rejects other types of content."""


Content = Annotated[TextOr[InputText], by_json_type("text, or a list of text parts")]


class MessageInput(_Item):
    """Message of a conversation in the `input` of a `/v1/responses` request."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class CallInput(_Item):
    """Function call from an earlier response. `arguments` is JSON text, which may be truncated."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: FunctionName
    arguments: str


class CallOutputInput(_Item):
    """Result of an earlier function call. `call_id` is the `call_id` of that call."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: Content


class CustomCallInput(_Item):
    """Call of a custom tool (tool that takes text instead of JSON arguments) from an earlier response."""

    type: Literal["custom_tool_call"]
    call_id: str = Field(min_length=1)
    name: FunctionName
    input: str

    @property
    def arguments(self) -> str:
        """Input of the call as function arguments: the text of a JSON object with the one property `input`."""
        return json.dumps({"input": self.input}, ensure_ascii=False)


class CustomCallOutputInput(CallOutputInput):
    """Result of an earlier call of a custom tool. `call_id` is the `call_id` of that call."""

    type: Literal["custom_tool_call_output"]  # type: ignore[assignment]


class ReasoningText(ClientModel):
    """Text of the model's reasoning, or of its summary, in an earlier response."""

    ignores: ClassVar[str] = "a part or block"
    type: Literal["reasoning_text", "summary_text"]
    text: str


Thoughts = Annotated[list[ReasoningText], FailFast(), Field(max_length=MAX_PARTS)]


class ReasoningInput(_Item):
    """Reasoning of the model in an earlier response. `summary` is used only if `content` is absent or empty."""

    type: Literal["reasoning"]
    summary: Thoughts = Field([])
    content: Thoughts | None = None
    encrypted_content: str | None = None
    """The server cannot read this value, and leaves it out of the prompt."""


def _kind(item: Any) -> str | None:
    """Return the type of an item. It is `message` if absent."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else None


InputItem = Annotated[
    Annotated[MessageInput, Tag("message")]
    | Annotated[CallInput, Tag("function_call")]
    | Annotated[CallOutputInput, Tag("function_call_output")]
    | Annotated[CustomCallInput, Tag("custom_tool_call")]
    | Annotated[CustomCallOutputInput, Tag("custom_tool_call_output")]
    | Annotated[ReasoningInput, Tag("reasoning")],
    Discriminator(_kind),
]


def chat_messages(
    instructions: str | None, given: str | Sequence[InputItem]
) -> tuple[list[dict[str, Any]], list[int | None]]:
    """Translate the conversation of a `/v1/responses` request into the messages of a chat completion.

    Consecutive items of the assistant become one message. A reasoning item always starts a new message.

    Args:
        instructions: Text of the system message. None: no system message.
        given: Text of the user, or the items of the conversation in their order; not changed.

    Returns:
        Two lists of equal length. The first has the chat messages. The second has, for each chat message, the index in
        `given` of the first item from which it was made. The index is None for the system message, and if `given` is a
        text.
    """
    messages: list[dict[str, Any]] = []
    begins: list[int | None] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
        begins.append(None)
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}], [*begins, None]
    turn: dict[str, Any] | None = None  # the last message of the assistant, if more items may join it
    for index, item in enumerate(given):
        if isinstance(item, MessageInput) and item.role != "assistant":
            messages.append({"role": item.role, "content": joined(item.content)})
            turn = None
        elif isinstance(item, CallOutputInput):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": joined(item.output)})
            turn = None
        else:
            if turn is None or isinstance(item, ReasoningInput):
                turn = {"role": "assistant", "content": []}
                messages.append(turn)
            if isinstance(item, ReasoningInput):
                turn["reasoning_content"] = "".join(piece.text for piece in item.content or item.summary)
            elif isinstance(item, CallInput | CustomCallInput):
                turn.setdefault("tool_calls", []).append(call_of(item.call_id, item.name, item.arguments))
            else:
                turn["content"].append(joined(item.content))
        begins += [index] * (len(messages) - len(begins))
    for message in messages:
        message["content"] = "".join(message["content"])
    return messages, begins

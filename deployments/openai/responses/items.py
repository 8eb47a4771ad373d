"""The items of a conversation as `/v1/responses` takes them, and the chat messages that they mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from deployments.http.client_fields import ClientModel
from deployments.http.fields import text_parts
from deployments.openai.chat_messages import MAX_PARTS, TextOr, TextPart, joined
from deployments.openai.tool_bodies import FunctionName, call_of
from grammar_workers.validation import FailFast, by_json_type

Status = Literal["in_progress", "completed", "incomplete"]


class _Item(ClientModel):
    ignores: ClassVar[str] = "a message or item"


_TextKind = Annotated[Literal["input_text", "output_text", "text"], text_parts("input_text", "output_text", "text")]


class InputText(TextPart):
    """A piece of a message's text; other kinds of content are refused, but `refusal`, which is read as text."""

    type: _TextKind = Field(description="Other kinds of content are refused.")  # type: ignore[assignment]


Content = Annotated[TextOr[InputText], by_json_type("text, or a list of text parts")]


class MessageInput(_Item):
    """One turn."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class CallInput(_Item):
    """A call that the model made earlier."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: FunctionName
    arguments: str


class CallOutputInput(_Item):
    """What a call returned."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: Content


class CustomCallInput(_Item):
    """A call of a custom tool that the model made earlier."""

    type: Literal["custom_tool_call"]
    call_id: str = Field(min_length=1)
    name: FunctionName
    input: str

    @property
    def arguments(self) -> str:
        """As the arguments of a function."""
        return json.dumps({"input": self.input}, ensure_ascii=False)


class CustomCallOutputInput(CallOutputInput):
    """Result of a call of a custom tool."""

    type: Literal["custom_tool_call_output"]  # type: ignore[assignment]


class ReasoningText(ClientModel):
    """A piece of thoughts."""

    ignores: ClassVar[str] = "a part or block"
    type: Literal["reasoning_text", "summary_text"]
    text: str


Thoughts = Annotated[list[ReasoningText], FailFast(), Field(max_length=MAX_PARTS)]


class ReasoningInput(_Item):
    """What the model thought earlier."""

    type: Literal["reasoning"]
    summary: Thoughts = Field([])
    content: Thoughts | None = None
    encrypted_content: str | None = Field(None, description="Nobody here can read it; left out of the prompt.")


def _kind(item: Any) -> str | None:
    """The discriminator: messages may leave their `type` out."""
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
    """`messages` of a chat completion, and of each the index of the item where it begins (None: it is no item).

    Thoughts, text and calls of one turn of the assistant become one message.
    """
    messages: list[dict[str, Any]] = []
    begins: list[int | None] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
        begins.append(None)
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}], [*begins, None]
    turn: dict[str, Any] | None = None  # the assistant's, while it may go on
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

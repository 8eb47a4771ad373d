"""The items of a conversation as `/v1/responses` takes them, and the chat messages that they mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Status = Literal["in_progress", "completed", "incomplete"]


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str | None = Field(None, description="Accepted and ignored: nothing is stored.")
    status: Status | None = Field(None, description="Accepted and ignored.")


class InputText(BaseModel):
    """A piece of a message's text; other kinds of content are refused."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = Field(None, description="As earlier answers have them; ignored.")
    logprobs: list[Any] | None = Field(None, description="As earlier answers have them; ignored.")


class MessageInput(_Item):
    """One turn."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputText]
    phase: str | None = Field(None, description="Accepted and ignored.")


class CallInput(_Item):
    """A call that the model made earlier."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str
    arguments: str


class CallOutputInput(_Item):
    """What a call returned."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: str | list[InputText]


class ReasoningText(BaseModel):
    """A piece of thoughts."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningInput(_Item):
    """What the model thought earlier."""

    type: Literal["reasoning"]
    summary: list[ReasoningText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: None = None


def _kind(item: Any) -> str | None:
    """The discriminator: messages may leave their `type` out."""
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


InputItem = Annotated[
    Annotated[MessageInput, Tag("message")]
    | Annotated[CallInput, Tag("function_call")]
    | Annotated[CallOutputInput, Tag("function_call_output")]
    | Annotated[ReasoningInput, Tag("reasoning")],
    Discriminator(_kind),
]


def chat_messages(instructions: str | None, given: str | Iterable[InputItem]) -> list[dict[str, Any]]:
    """`messages` of a chat completion: thoughts, text and calls of one turn of the assistant become one message."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    turn: dict[str, Any] | None = None  # the assistant's, while it may go on
    for item in given:
        if isinstance(item, MessageInput) and item.role != "assistant":
            messages.append({"role": item.role, "content": _text(item.content)})
            turn = None
        elif isinstance(item, CallOutputInput):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            turn = None
        else:
            if turn is None or isinstance(item, ReasoningInput):
                turn = {"role": "assistant", "content": ""}
                messages.append(turn)
            if isinstance(item, ReasoningInput):
                turn["reasoning_content"] = "".join(piece.text for piece in item.content or item.summary)
            elif isinstance(item, CallInput):
                function = {"name": item.name, "arguments": item.arguments}
                turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
            else:
                turn["content"] += _text(item.content)
    return messages


def _text(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "".join(piece.text for piece in content)

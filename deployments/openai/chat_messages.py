"""Messages of a conversation as chat completions take them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, Tag, model_validator

from deployments.http.client_fields import ClientModel
from deployments.http.fields import Only, contradiction, refusal_as_text, text_parts
from deployments.openai.tool_bodies import MAX_CALLS, ToolCall
from grammar_workers.validation import FailFast, by_json_type

MAX_PARTS = 4096
"""Texts that one message is made of."""


class TextPart(ClientModel):
    """One piece of a message's content; one of the type `refusal` is read as text."""

    ignores: ClassVar[str] = "a part or block"
    type: Annotated[Literal["text"], text_parts("text")] = Field(description="Other kinds of content are refused.")
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read_refusal(cls, part: Any) -> Any:
        return refusal_as_text(part)


Part = TypeVar("Part")
TextOr = Annotated[str, Tag("string")] | Annotated[list[Part], FailFast(), Field(max_length=MAX_PARTS), Tag("array")]
"""Text, or a list of parts: members of a union with the discriminator `by_json_type`."""
Content = Annotated[TextOr[TextPart], by_json_type("text, or a list of text parts")]


def joined(content: str | list[Any]) -> str:
    """The text of a content, which is text or parts with a `text`."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Message(ClientModel):
    """One turn of a conversation. Clients send a previous answer back as their packages parsed it."""

    ignores: ClassVar[str] = "a message or item"
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = Field(None, description="Text; null only of the assistant.")
    name: str | None = Field(None, description="Passed to the chat template; most templates ignore it.")
    refusal: str | None = Field(None, description="Text of the assistant that takes the place of `content`.")
    audio: Annotated[Any, Only()] = None
    function_call: Annotated[Any, Only()] = None
    reasoning_content: str | None = Field(None, description="What the assistant thought; templates may leave it out.")
    reasoning: str | None = Field(None, description="Another name of `reasoning_content`.")
    tool_calls: Annotated[list[ToolCall], FailFast(), Field(max_length=MAX_CALLS)] | None = Field(
        None, description="Calls that the assistant made."
    )
    tool_call_id: str | None = Field(None, description="Of a `tool` message: the call that it answers.")

    @model_validator(mode="after")
    def _check_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise contradiction("tool_calls", "belongs to the assistant")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise contradiction("tool_call_id", "belongs to messages of the role `tool`, which need it")
        if self.content is None and self.role != "assistant":
            raise contradiction("content", "must be text, or a list of text parts")
        return self

    def sent_characters(self) -> int:
        """Of what the message says."""
        said = len(joined(self.content or self.refusal or ""))
        return said + sum(len(call.function.arguments) for call in self.tool_calls or ())

    def template_input(self) -> dict[str, Any]:
        """The message as chat templates take it: plain text, and `developer` by its older name."""
        text = joined(self.content or self.refusal or "")
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        if self.tool_calls:
            message["tool_calls"] = [call.template_input() for call in self.tool_calls]
        given = {"tool_call_id": self.tool_call_id, "name": self.name}
        given["reasoning_content"] = self.reasoning if self.reasoning_content is None else self.reasoning_content
        message |= {name: value for name, value in given.items() if value is not None}
        return message

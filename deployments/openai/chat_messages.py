"""Messages of a conversation in the body of a chat completion."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, Tag, model_validator

from deployments.chat.tool_bodies import MAX_CALLS, ToolCall
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Only, contradiction, refusal_as_text, text_parts
from grammar_workers.validation import FailFast, by_json_type

# Maximum number of text parts in one message.
MAX_PARTS = 4096


class TextPart(ClientModel):
    """Text part of a message's content. A part of type `refusal` is read as text. Other types are rejected."""

    ignores: ClassVar[str] = "a part or block"
    type: Annotated[Literal["text"], text_parts("text")]
    """The server rejects other types of content."""
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read_refusal(cls, part: Any) -> Any:
        return refusal_as_text(part)


Part = TypeVar("Part")
# Text, or a list of parts: members of a union with the discriminator `by_json_type`.
TextOr = Annotated[str, Tag("string")] | Annotated[list[Part], FailFast(), Field(max_length=MAX_PARTS), Tag("array")]
Content = Annotated[TextOr[TextPart], by_json_type("text, or a list of text parts")]


def joined(content: str | list[Any]) -> str:
    """Return the content of a message as one text.

    Args:
        content: A text, or a list of parts. The fields `text` of parts are joined without separator.
    """
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Message(ClientModel):
    """Message of a conversation in a chat completion.

    A message of the assistant may be an earlier response that the client sends back. Therefore, the fields of response
    messages in OpenAI's client library are accepted.
    """

    ignores: ClassVar[str] = "a message or item"
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    """Text of the message. Only messages of the assistant may have `null`."""
    name: str | None = None
    """Name for the chat template. Most templates ignore it."""
    refusal: str | None = None
    """Refusal of the assistant. It replaces `content`."""
    audio: Annotated[Any, Only()] = None
    function_call: Annotated[Any, Only()] = None
    reasoning_content: str | None = None
    """Reasoning of the assistant. A chat template may leave it out."""
    reasoning: str | None = None
    """Another name of `reasoning_content`."""
    tool_calls: Annotated[list[ToolCall], FailFast(), Field(max_length=MAX_CALLS)] | None = None
    """Tool calls of the assistant."""
    tool_call_id: str | None = None
    """For the role `tool`: ID of the call whose result the message has."""

    @model_validator(mode="after")
    def _check_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise contradiction("tool_calls", "belongs to the assistant")
        if (self.tool_call_id is None) == (self.role == "tool"):
            what = "is required in" if self.tool_call_id is None else "is only for"
            raise contradiction("tool_call_id", f"{what} messages of the role `tool`")
        if self.content is None and self.role != "assistant":
            raise contradiction("content", "must be text, or a list of text parts")
        return self

    def sent_characters(self) -> int:
        """Return the number of characters in the content and in the arguments of the tool calls."""
        said = len(joined(self.content or self.refusal or ""))
        return said + sum(len(call.function.arguments) for call in self.tool_calls or ())

    def template_input(self) -> dict[str, Any]:
        """Return the message as plain data for a chat template.

        Returns:
            A dict with `role` (`system` in place of `developer`) and `content` (text). The fields `tool_calls`,
            `tool_call_id`, `name` and `reasoning_content` are present only if they have a value.
        """
        text = joined(self.content or self.refusal or "")
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        if self.tool_calls:
            message["tool_calls"] = [call.template_input() for call in self.tool_calls]
        given = {"tool_call_id": self.tool_call_id, "name": self.name}
        given["reasoning_content"] = self.reasoning if self.reasoning_content is None else self.reasoning_content
        message |= {name: value for name, value in given.items() if value is not None}
        return message

"""Bodies of other shapes that ask for a chat completion, and how places in it are called in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import PrivateAttr

from deployments.http.body_errors import inner_body
from deployments.http.client_fields import ClientModel
from deployments.openai.protocol import ChatCompletionBody
from grammar_workers.strict_json import Place


class TranslatedBody(ClientModel):
    """A body that is translated into a chat completion, `chat`. Its tools are flat."""

    ignores: ClassVar[str] = "a request"
    names: ClassVar[Mapping[str, str]] = {}
    """Fields of a chat completion by the name that they have here."""
    parameters: ClassVar[str] = "parameters"
    """Field of a tool that holds the schema of its arguments."""

    _chat: ChatCompletionBody = PrivateAttr()

    @property
    def chat(self) -> ChatCompletionBody:
        """The chat completion that this request is translated into."""
        return self._chat

    def _translate(self, fields: Mapping[str, Any], message_place: Callable[[int], Place]) -> None:
        """Make `chat` of those of its `fields` that are not None; `message_place`: where a message of it stands here.

        Raises PydanticCustomError for its first error.
        """

        def moved(place: Place) -> Place:
            match place:
                case ("messages", int(message), *_):
                    return message_place(message)
                case ("tools", int(tool), "function", *rest):
                    return ("tools", tool, *(self.parameters if part == "parameters" else part for part in rest))
                case ("tool_choice", "allowed_tools", *rest):
                    return ("tool_choice", *rest)
                case (str(field), *rest):
                    return (*self.names.get(field, field).split("."), *rest)
            return place

        given = {name: value for name, value in fields.items() if value is not None}
        self._chat = inner_body(ChatCompletionBody, given, moved)

    @classmethod
    def in_these_words(cls, param: str | None, pointer: str | None) -> tuple[str | None, str | None]:
        """Field and pointer of the chat completion, by the names that this body's fields have."""
        if param == "tools" and pointer is not None:
            pointer = pointer.replace("/function/parameters", f"/function/{cls.parameters}", 1)
            pointer = pointer.replace("/function", "", 1)
        return (None if param is None else cls.names.get(param, param)), pointer

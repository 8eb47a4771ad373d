"""Base class of request bodies that are translated into chat completions. Locations of errors are translated back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import PrivateAttr

from deployments.http.body_errors import inner_body
from deployments.http.client_fields import ClientModel
from deployments.openai.protocol import ChatCompletionBody
from grammar_workers.strict_json import Place


class TranslatedBody(ClientModel):
    """Base class of request bodies of other APIs that are translated into chat completions.

    The fields of a function (such as `name`) are fields of the tool itself. Chat completions have them in a nested
    object `function`.

    Attributes:
        names: Field of a chat completion -> name of the equivalent field in this body, for the locations of errors.
        parameters: Name of the field that contains the JSON Schema of a tool's arguments in this body.
    """

    ignores: ClassVar[str] = "a request"
    # Field of a chat completion -> name of the field in this body.
    names: ClassVar[Mapping[str, str]] = {}
    # Field of a tool that has the schema of the arguments.
    parameters: ClassVar[str] = "parameters"

    _chat: ChatCompletionBody = PrivateAttr()

    @property
    def chat(self) -> ChatCompletionBody:
        """Chat completion body into which this body was translated at its validation."""
        return self._chat

    def _translate(self, fields: Mapping[str, Any], message_place: Callable[[int], Place]) -> None:
        """Set `chat`, from the values of `fields` that are not None. Raise `PydanticCustomError` for its first error.

        `message_place` returns the location in this body of the message with an index in `chat`.
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
        """Translate the location of an error from the chat completion to this body.

        Args:
            param: Field of the chat completion. None: the error has no field.
            pointer: JSON Pointer into the value of `param`. None: the error has no pointer.

        Returns:
            (field, pointer) in this body. Each is None if the corresponding argument is None.
        """
        if param == "tools" and pointer is not None:
            pointer = pointer.replace("/function/parameters", f"/function/{cls.parameters}", 1)
            pointer = pointer.replace("/function", "", 1)
        return (None if param is None else cls.names.get(param, param)), pointer

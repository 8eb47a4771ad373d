"""The HTTP bodies of tools, OpenAI's names: what a client offers, what it wants called, what was called before."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator
from pydantic_core import PydanticCustomError, from_json

MAX_TOOLS = 128
FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Function(_Body):
    """A function that the model may call."""

    name: FunctionName = Field(description="Up to 64 letters, digits, underscores and hyphens.")
    description: str | None = Field(None, description="Told to the model.")
    parameters: dict[str, Any] | None = Field(
        None, description="JSON Schema of the arguments, an object. Absent: the function takes none."
    )
    strict: StrictBool | None = Field(None, description="Accepted either way: the schema is always enforced.")

    @field_validator("parameters")
    @classmethod
    def _is_an_object(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        if parameters is not None and parameters.get("type", "object") != "object":
            raise PydanticCustomError("parameters_type", "arguments are an object: `type` must be `object`")
        return parameters

    def arguments_schema(self) -> dict[str, Any]:
        """The JSON Schema that arguments must match; arguments are an object also where it does not say so."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return self.parameters if "type" in self.parameters else {**self.parameters, "type": "object"}


class Tool(_Body):
    """One tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def template_input(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        function = self.function
        described = {"name": function.name, "description": function.description or ""}
        return {"type": "function", "function": {**described, "parameters": function.arguments_schema()}}


class FunctionChoice(_Body):
    """Names a function."""

    name: str


class NamedTool(_Body):
    """The one function that must be called."""

    type: Literal["function"]
    function: FunctionChoice


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(_Body):
    """A call's function and arguments; `arguments` is JSON text."""

    name: FunctionName
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _is_an_object(cls, arguments: str) -> str:
        try:
            parsed = from_json(arguments or "{}", allow_inf_nan=False)
        except ValueError as error:
            raise PydanticCustomError("json_text", "not JSON: {error}", {"error": str(error)}) from error
        if not isinstance(parsed, dict):
            raise PydanticCustomError("json_text", "the JSON text of an object")
        return arguments


class ToolCall(_Body):
    """A call that the model made earlier in the conversation."""

    id: str = Field(min_length=1)
    type: Literal["function"]
    function: CalledFunction

    def template_input(self) -> dict[str, Any]:
        """The call as chat templates take it: arguments as data."""
        function = {"name": self.function.name, "arguments": json.loads(self.function.arguments or "{}")}
        return {"id": self.id, "type": "function", "function": function}

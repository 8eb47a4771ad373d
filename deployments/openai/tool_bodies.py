"""The HTTP bodies of tools, OpenAI's names: what a client offers, what it wants called, what was called before."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, Tag
from pydantic_core import PydanticCustomError

from deployments.http.fields import parsed_json
from grammar_workers.validation import FailFast, StrictModel, by_json_type

MAX_TOOLS = 128
MAX_CALLS = 128
"""In one message."""
FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


def _of_an_object(parameters: dict[str, Any]) -> dict[str, Any]:
    if parameters.get("type", "object") != "object":
        raise PydanticCustomError("parameters_type", "arguments are an object: `type` must be `object`")
    return parameters


Parameters = Annotated[dict[str, Any], AfterValidator(_of_an_object)]


def _text_of_an_object(arguments: str) -> str:
    if not isinstance(parsed_json(arguments or "{}"), dict):
        raise PydanticCustomError("arguments_type", "must be the JSON text of an object")
    return arguments


Arguments = Annotated[str, AfterValidator(_text_of_an_object)]


class Function(StrictModel):
    """A function that the model may call."""

    name: FunctionName = Field(description="Up to 64 letters, digits, underscores and hyphens.")
    description: str | None = Field(None, description="Told to the model.")
    parameters: Parameters | None = Field(
        None, description="JSON Schema of the arguments, an object. Absent: the function takes none."
    )
    strict: StrictBool | None = Field(None, description="Accepted either way: the schema is always enforced.")

    def arguments_schema(self) -> dict[str, Any]:
        """The JSON Schema that arguments must match; arguments are an object also where it does not say so."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return self.parameters if "type" in self.parameters else {**self.parameters, "type": "object"}


class Tool(StrictModel):
    """One tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def template_input(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        function = self.function
        described = {"name": function.name, "description": function.description or ""}
        return {"type": "function", "function": {**described, "parameters": function.arguments_schema()}}


class FunctionChoice(StrictModel):
    """Names a function."""

    name: str


class NamedTool(StrictModel):
    """The one function that must be called."""

    type: Literal["function"]
    function: FunctionChoice


class AllowedTools(StrictModel):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"] = Field(description="As in `tool_choice`.")
    tools: Annotated[list[NamedTool], FailFast(), Field(min_length=1, max_length=MAX_TOOLS)] = Field(
        description="Those of `tools` that may be called; the model is told about all of them."
    )


class AllowedToolsChoice(StrictModel):
    """Only some of the tools may be called."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    def names(self) -> frozenset[str]:
        return frozenset(tool.function.name for tool in self.allowed_tools.tools)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("string")]
    | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type"), Tag("object")],
    by_json_type('"none", "auto", "required", or an object that names functions'),
]


class CalledFunction(StrictModel):
    """A call's function and arguments; `arguments` is JSON text."""

    name: FunctionName
    arguments: Arguments


class ToolCall(StrictModel):
    """A call that the model made earlier in the conversation."""

    id: str = Field(min_length=1)
    type: Literal["function"]
    function: CalledFunction

    def template_input(self) -> dict[str, Any]:
        """The call as chat templates take it: arguments as data."""
        function = {"name": self.function.name, "arguments": json.loads(self.function.arguments or "{}")}
        return {"id": self.id, "type": "function", "function": function}

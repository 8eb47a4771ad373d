"""The HTTP bodies of tools, OpenAI's names: what a client offers, what it wants called, what was called before."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, StrictBool, Tag
from pydantic_core import PydanticCustomError, from_json

from deployments.chat.tool_formats.declaration import RawInput
from deployments.http.client_fields import ClientModel
from deployments.openai.constraints import STRICT
from grammar_workers.specification import GrammarSpecification, GrammarTextSpecification, RegexSpecification
from grammar_workers.strict_json import JsonTextError, parse_json
from grammar_workers.validation import FailFast, by_json_type

MAX_TOOLS = 128
MAX_CALLS = 128
"""In one message."""
FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_./-]{1,128}$")]


def _of_an_object(parameters: dict[str, Any]) -> dict[str, Any]:
    if parameters.get("type", "object") != "object":
        raise PydanticCustomError("parameters_type", "arguments are an object: `type` must be `object`")
    return parameters


Parameters = Annotated[dict[str, Any], AfterValidator(_of_an_object)]


def arguments_in(text: str) -> dict[str, Any]:
    """The arguments of an earlier call. Of JSON text that was truncated they are those that it has.

    Any other text is the value of a single argument, `arguments`: no text in the history makes a request invalid.
    """
    with contextlib.suppress(JsonTextError):
        if isinstance(value := parse_json(text.strip() or "{}"), dict):
            return value
    with contextlib.suppress(ValueError):
        # Python refuses to write what is too large to be read back, such as numbers with thousands of digits.
        value = parse_json(json.dumps(from_json(text, allow_partial="trailing-strings")))
        if isinstance(value, dict):
            return value
    return {"arguments": text}


def call_of(identity: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call of a function in OpenAI's shape."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


class Function(ClientModel):
    """A function that the model may call."""

    ignores: ClassVar[str] = "a tool"
    renames: ClassVar[str] = "a function"
    name: FunctionName = Field(
        description="Up to 128 letters, digits and `_`, `-`, `.`, `/`, as far as the model can write them."
    )
    description: str | None = Field(None, description="Told to the model.")
    parameters: Parameters | None = Field(
        None, description="JSON Schema of the arguments, an object. Absent: the function takes none."
    )
    strict: StrictBool | None = Field(None, description=STRICT)

    def arguments_schema(self) -> dict[str, Any]:
        """The JSON Schema that arguments must match; arguments are an object also where it does not say so."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return self.parameters if "type" in self.parameters else {**self.parameters, "type": "object"}


class Tool(ClientModel):
    """One tool; functions are the only kind."""

    ignores: ClassVar[str] = "a tool"
    renames: ClassVar[str] = "a tool"
    type: Literal["function"]
    function: Function

    def template_input(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        function = self.function
        described = {"name": function.name, "description": function.description or ""}
        return {"type": "function", "function": {**described, "parameters": function.arguments_schema()}}


class InputGrammar(ClientModel):
    """The grammar of a custom tool's input, as chat completions nest it."""

    syntax: Literal["lark", "regex"]
    definition: str

    def specification(self) -> GrammarSpecification:
        if self.syntax == "regex":
            return RegexSpecification(pattern=self.definition)
        return GrammarTextSpecification(syntax="lark", text=self.definition)


class GrammarInput(ClientModel):
    """Input that a grammar describes."""

    type: Literal["grammar"]
    grammar: InputGrammar


class TextInput(ClientModel):
    """Any input."""

    type: Literal["text"]


class CustomFunction(ClientModel):
    """A tool whose input is text."""

    ignores: ClassVar[str] = "a tool"
    name: FunctionName
    description: str | None = None
    format: Annotated[GrammarInput | TextInput, Field(discriminator="type")] | None = None

    def arguments_schema(self) -> RawInput:
        """Text in the place of arguments."""
        given = self.format
        return RawInput(given.grammar.specification() if isinstance(given, GrammarInput) else ANY_INPUT)


class CustomTool(ClientModel):
    """A tool whose input is text, which is written in the place of arguments."""

    ignores: ClassVar[str] = "a tool"
    type: Literal["custom"]
    custom: CustomFunction

    @property
    def function(self) -> CustomFunction:
        return self.custom

    def template_input(self) -> dict[str, Any]:
        """The tool as chat templates take it: a function of one text."""
        told = f"{self.custom.description or ''}\nIts input is plain text in the place of the arguments.".strip()
        described = {"name": self.custom.name, "description": told}
        return {"type": "function", "function": {**described, "parameters": INPUT_SCHEMA}}


AnyTool = Annotated[Tool | CustomTool, Field(discriminator="type")]
INPUT_SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
ANY_INPUT = RegexSpecification(pattern="[\\s\\S]*")


class FunctionChoice(ClientModel):
    """Names a function."""

    name: str


class NamedTool(ClientModel):
    """The one function that must be called."""

    type: Literal["function"]
    function: FunctionChoice


class AllowedTools(ClientModel):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"] = Field(description="As in `tool_choice`.")
    tools: Annotated[list[NamedTool], FailFast(), Field(min_length=1, max_length=MAX_TOOLS)] = Field(
        description="Those of `tools` that may be called; the model is told about all of them."
    )


class AllowedToolsChoice(ClientModel):
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


class CalledFunction(ClientModel):
    """A call's function and arguments: JSON text, which may be truncated."""

    ignores: ClassVar[str] = "a tool call"
    name: FunctionName
    arguments: str


class ToolCall(ClientModel):
    """A call that the model made earlier in the conversation."""

    ignores: ClassVar[str] = "a tool call"
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction

    def template_input(self) -> dict[str, Any]:
        """The call as chat templates take it: arguments as data."""
        return call_of(self.id, self.function.name, arguments_in(self.function.arguments))

"""Tools in request bodies, in OpenAI's format: the tools of a request, the field `tool_choice`, and earlier calls."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, StrictBool, Tag
from pydantic_core import PydanticCustomError, from_json

from deployments.chat.tool_formats.declaration import RawInput
from deployments.http.client_fields import ClientModel
from grammar_workers.specification import GrammarSpecification, GrammarTextSpecification, RegexSpecification
from grammar_workers.strict_json import JsonTextError, parse_json
from grammar_workers.validation import FailFast, by_json_type

MAX_TOOLS = 128
# Maximum number of calls in one message.
MAX_CALLS = 128
STRICT = (
    "The schema is enforced with `true` and with `false`. With `true`, the server also rejects a misspelled keyword, "
    "such as `maxlength`, and the error suggests a keyword. `on_unsupported: report` turns this check off."
)
FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_./-]{1,128}$")]


def _of_an_object(parameters: dict[str, Any]) -> dict[str, Any]:
    if parameters.get("type", "object") != "object":
        raise PydanticCustomError("parameters_type", "arguments are an object: `type` must be `object`")
    return parameters


Parameters = Annotated[dict[str, Any], AfterValidator(_of_an_object)]


def arguments_in(text: str) -> dict[str, Any]:
    """Parse the arguments of an earlier function call, which a client sends back as text. Any text is accepted.

    Args:
        text: JSON text, which may be truncated. Empty: the call has no arguments.

    Returns:
        The arguments by name. If the JSON is truncated: the arguments that it contains so far. If the text is not a
        JSON object: `{"arguments": text}`.
    """
    with contextlib.suppress(JsonTextError):
        if isinstance(value := parse_json(text.strip() or "{}"), dict):
            return value
    with contextlib.suppress(ValueError):
        # `dumps` raises ValueError for values that are too large to be parsed, such as numbers of thousands of digits.
        value = parse_json(json.dumps(from_json(text, allow_partial="trailing-strings")))
        if isinstance(value, dict):
            return value
    return {"arguments": text}


def call_of(identity: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return a function call in OpenAI's format: a dict with `id`, `type` and `function`.

    Args:
        identity: Id of the call.
        name: Name of the called function.
        arguments: Arguments as JSON text (in request bodies) or as a dict (for chat templates).
    """
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


class Function(ClientModel):
    """Function that the model may call: its name, its description and the JSON Schema of its arguments."""

    ignores: ClassVar[str] = "a tool"
    renames: ClassVar[str] = "a function"
    name: FunctionName
    """Up to 128 letters, digits and the characters `_`, `-`, `.`, `/`. The tokenizer of the model must be able to
    encode the name."""
    description: str | None = None
    """Description for the model, as part of the prompt."""
    parameters: Parameters | None = None
    """JSON Schema of the arguments. Its instances must be objects. Absent: the function has no arguments."""
    strict: StrictBool | None = Field(None, description=STRICT)

    def arguments_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the function's arguments.

        If the request has no schema, the result is a schema that allows no arguments. If the schema has no `type`, the
        result has `type: object`.
        """
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return self.parameters if "type" in self.parameters else {**self.parameters, "type": "object"}


class Tool(ClientModel):
    """Function that a request offers to the model: a tool of type `function`, in OpenAI's format."""

    ignores: ClassVar[str] = "a tool"
    renames: ClassVar[str] = "a tool"
    type: Literal["function"]
    function: Function

    def template_input(self) -> dict[str, Any]:
        """Return the tool as plain data for a chat template.

        Returns:
            A dict with `type` and `function`. `function` has `name`, `description` (empty if absent) and `parameters`.
        """
        function = self.function
        described = {"name": function.name, "description": function.description or ""}
        return {"type": "function", "function": {**described, "parameters": function.arguments_schema()}}


class InputGrammar(ClientModel):
    """Constraint on the input of a custom tool (tool that takes text instead of JSON arguments).

    `definition` is the text of a context-free grammar (`syntax: lark`) or a regular expression (`syntax: regex`).
    """

    syntax: Literal["lark", "regex"]
    definition: str

    def specification(self) -> GrammarSpecification:
        """Return the constraint in the compiler's format: a regular expression or a context-free grammar."""
        if self.syntax == "regex":
            return RegexSpecification(pattern=self.definition)
        return GrammarTextSpecification(syntax="lark", text=self.definition)


class GrammarInput(ClientModel):
    """Input format of a custom tool: text that matches a context-free grammar or a regular expression."""

    type: Literal["grammar"]
    grammar: InputGrammar


class TextInput(ClientModel):
    """Input format of a custom tool: any text."""

    type: Literal["text"]


class CustomFunction(ClientModel):
    """Definition of a custom tool: name, description for the model, and input format (absent: any text)."""

    ignores: ClassVar[str] = "a tool"
    name: FunctionName
    description: str | None = None
    format: Annotated[GrammarInput | TextInput, Field(discriminator="type")] | None = None

    def arguments_schema(self) -> RawInput:
        """Return the constraint on the input.

        The class `RawInput` distinguishes it from the JSON Schema of a function's arguments.
        """
        given = self.format
        return RawInput(given.grammar.specification() if isinstance(given, GrammarInput) else ANY_INPUT)


class CustomTool(ClientModel):
    """Tool of type `custom` that a request offers to the model. A call has text instead of JSON arguments."""

    ignores: ClassVar[str] = "a tool"
    type: Literal["custom"]
    custom: CustomFunction

    @property
    def function(self) -> CustomFunction:
        """Definition of the custom tool (field `custom`). The class `Tool` has an attribute of this name, too."""
        return self.custom

    def template_input(self) -> dict[str, Any]:
        """Return the tool as plain data for a chat template.

        Returns:
            A dict with `type` and `function`. Templates support only functions, so the dict describes the tool as a
            function with one string argument named `input`.
        """
        told = f"{self.custom.description or ''}\nIts input is plain text in the place of the arguments.".strip()
        described = {"name": self.custom.name, "description": told}
        return {"type": "function", "function": {**described, "parameters": INPUT_SCHEMA}}


AnyTool = Annotated[Tool | CustomTool, Field(discriminator="type")]
INPUT_SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
ANY_INPUT = RegexSpecification(pattern="[\\s\\S]*")


class FunctionChoice(ClientModel):
    """Name of a function in the field `tool_choice`."""

    name: str


class NamedTool(ClientModel):
    """Value of `tool_choice` that names one function, which the model must call."""

    type: Literal["function"]
    function: FunctionChoice


class AllowedTools(ClientModel):
    """Subset of the request's tools that the model may call. With `mode: required`, it must call one of them."""

    mode: Literal["auto", "required"]
    """`auto` or `required`, as in `tool_choice`."""
    tools: Annotated[list[NamedTool], FailFast(), Field(min_length=1, max_length=MAX_TOOLS)]
    """The tools of `tools` that the model may call. The prompt describes all tools."""


class AllowedToolsChoice(ClientModel):
    """Value of `tool_choice` that allows only some of the request's tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    def names(self) -> frozenset[str]:
        """Return the names of the tools that the model may call."""
        return frozenset(tool.function.name for tool in self.allowed_tools.tools)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("string")]
    | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type"), Tag("object")],
    by_json_type('"none", "auto", "required", or an object that names functions'),
]


class CalledFunction(ClientModel):
    """Name and arguments of a function that the model has called. `arguments` is JSON text, possibly truncated."""

    ignores: ClassVar[str] = "a tool call"
    name: FunctionName
    arguments: str


class ToolCall(ClientModel):
    """Function call that the model made earlier in the conversation, sent back in a message of the assistant."""

    ignores: ClassVar[str] = "a tool call"
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction

    def template_input(self) -> dict[str, Any]:
        """Return the call as plain data for a chat template.

        Returns:
            A dict with `id`, `type` and `function`. The arguments in `function` are parsed to a dict.
        """
        return call_of(self.id, self.function.name, arguments_in(self.function.arguments))

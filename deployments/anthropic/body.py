"""Bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, and their translation into a chat completion.

A field of an unsupported feature accepts only null and values that turn the feature off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from deployments.anthropic.content import MAX_KIND, MessageParam, Text, chat_messages
from deployments.chat.tool_bodies import MAX_TOOLS, STRICT, FunctionName, Parameters
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Only, Positive, Refused, contradiction
from deployments.openai.protocol import MAX_MESSAGES
from deployments.openai.sampling import CommonBody, Stop
from deployments.openai.translated import TranslatedBody
from grammar_workers.errors import shortened
from grammar_workers.specification import JsonSchema
from grammar_workers.strict_json import Place
from grammar_workers.validation import FailFast

# Field of a chat completion -> name of the field in these bodies.
FIELDS = {
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "thinking_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}


class JsonFormat(ClientModel):
    """Constraint on the text of the response: JSON that is valid under the JSON Schema in `schema`."""

    type: Literal["json_schema"]
    json_schema: JsonSchema = Field(alias="schema")


class OutputConfig(ClientModel):
    """Settings of the output in a `/v1/messages` request.

    `format` constrains the text of the response. If it is null, the text is free. `effort` has no effect.
    """

    format: JsonFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Ignored."""


class ToolParam(ClientModel):
    """Function in the `tools` of a `/v1/messages` request. The model may call it.

    `input_schema` is the JSON Schema of the function's arguments.
    """

    ignores: ClassVar[str] = "a tool"
    renames: ClassVar[str] = "a tool of /v1/messages"
    type: Annotated[Literal["custom"] | None, Field(description="The server rejects tools that Anthropic runs.")] = None
    name: FunctionName
    description: str | None = None
    input_schema: Parameters
    """JSON Schema of the arguments. Its instances must be objects."""
    strict: StrictBool | None = Field(None, description=STRICT)
    allowed_callers: Annotated[Any, Only(["direct"])] = None
    defer_loading: Annotated[Any, Only(False)] = None


def _function(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "custom":
        message = "`{kind}` is a tool that Anthropic runs: offer functions (`type: custom`)"
        raise PydanticCustomError("tool", message, {"kind": shortened(kind, MAX_KIND)})
    return tool


Tool = Annotated[ToolParam, BeforeValidator(_function)]


class AutoChoice(ClientModel):
    """Value of `tool_choice` without a function name. `auto`: the model may call functions. `any`: it must call one."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: StrictBool | None = None
    """`true`: the response has at most one call."""


class ToolChoice(ClientModel):
    """Value of `tool_choice` that names one function, which the model must call."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: StrictBool | None = None
    """Ignored: the response has exactly one call."""


class NoneChoice(ClientModel):
    """Value of `tool_choice` that forbids calls. The prompt then does not describe the functions."""

    type: Literal["none"]


class ThinkingEnabled(ClientModel):
    """Value of `thinking` that makes the model reason before it responds.

    `enabled` and `adaptive` have equal effects. Without `budget_tokens`, only `max_tokens` limits the reasoning.
    """

    type: Literal["enabled", "adaptive"]
    budget_tokens: StrictInt | None = Field(None, ge=1)
    """Maximum number of reasoning tokens."""
    display: Literal["summarized", "omitted"] | None = None
    """Ignored. The response has the reasoning unchanged."""


class ThinkingDisabled(ClientModel):
    """Value of `thinking` that turns reasoning off. Without the field `thinking`, reasoning is off, too."""

    type: Literal["disabled"]


class _Conversation(TranslatedBody):
    """Fields of both bodies."""

    renames: ClassVar[str] = "a request of /v1/messages"
    names: ClassVar[Mapping[str, str]] = FIELDS
    parameters: ClassVar[str] = "input_schema"
    model: str
    """A name from `/v1/models`."""
    messages: Annotated[list[MessageParam], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Text | None = None
    tools: Annotated[list[Tool], FailFast(), Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[AutoChoice | ToolChoice | NoneChoice, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingEnabled | ThinkingDisabled, Field(discriminator="type")] | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    """Older name of `output_config.format`."""
    speed: Annotated[Any, Only("standard")] = None

    @model_validator(mode="after")
    def _make_chat(self) -> _Conversation:
        # A response that was truncated before its first block becomes an empty message. It is dropped.
        given = self.messages[: -1 if self.messages[-1].is_empty else None]
        if not given or given[-1].role == "assistant":
            message = "must end with the user: an answer cannot be begun for the model"
            raise contradiction("messages", message, ("messages", len(self.messages) - 1))
        messages, begins = chat_messages(self.system, given)

        def place(message: int) -> Place:
            begun = begins[message]
            return ("system",) if begun is None else ("messages", begun)

        self._translate({"messages": messages, **self._chat_fields()}, place)
        return self

    def _chat_fields(self) -> dict[str, Any]:
        config = self.output_config
        if config is not None and config.format is not None and self.output_format is not None:
            raise contradiction("output_format", "is the older name of `output_config.format`: give one of them")
        wanted = self.output_format if config is None or config.format is None else config.format
        choice = self.tool_choice
        fields: dict[str, Any] = {
            "model": self.model,
            "response_format": None if wanted is None else {"type": "json_schema", "schema": wanted.json_schema},
            "tools": None if self.tools is None else [_chat_tool(tool) for tool in self.tools],
            "thinking": isinstance(self.thinking, ThinkingEnabled),
            "thinking_budget": self.thinking.budget_tokens if isinstance(self.thinking, ThinkingEnabled) else None,
        }
        if choice is not None:
            names = {"auto": "auto", "any": "required", "none": "none"}
            named = {"type": "function", "function": {"name": choice.name}} if isinstance(choice, ToolChoice) else None
            fields["tool_choice"] = named or names[choice.type]
            if not isinstance(choice, NoneChoice) and choice.disable_parallel_tool_use:
                fields["parallel_tool_calls"] = False
        return fields


class CountTokensBody(_Conversation):
    """Body of `POST /v1/messages/count_tokens`: the conversation whose prompt tokens the server counts."""


class MessagesBody(CommonBody, _Conversation):
    """Body of `POST /v1/messages`: the conversation that the model continues, and settings of the output."""

    max_tokens: Positive
    """Maximum number of output tokens, including reasoning tokens."""
    stop_sequences: Stop | None = None
    """Texts that end the output. The output does not include them."""
    temperature: StrictFloat | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    """Sampling temperature. 0: greedy."""
    top_k: StrictInt | None = Field(None, ge=0)
    """Sample from this number of the likeliest allowed tokens. 0: all."""
    inference_geo: Annotated[Any, Refused("the server cannot choose a location")] = None
    container: Annotated[Any, Refused("the server does not run code")] = None
    mcp_servers: Annotated[Any, Refused("offer functions in `tools`")] = None

    def _chat_fields(self) -> dict[str, Any]:
        fields = super()._chat_fields()
        if fields["response_format"] is not None and self.structured_outputs is not None:
            raise contradiction("structured_outputs", "does not go with a format of the text: give one of them")
        own = {"max_completion_tokens": self.max_tokens, "stop": self.stop_sequences or None}
        return {**fields, **self.settings(CommonBody), **own}


def _chat_tool(tool: ToolParam) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {**function, "strict": tool.strict}}

"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, and the chat completion that they ask for.

As everywhere, a field that cannot be honoured is accepted only with the value that means "off".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from deployments.anthropic.content import MAX_KIND, MessageParam, Text, chat_messages
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Only, Positive, Refused, contradiction
from deployments.openai.constraints import STRICT
from deployments.openai.protocol import MAX_MESSAGES
from deployments.openai.sampling import CommonBody, Stop
from deployments.openai.tool_bodies import MAX_TOOLS, FunctionName, Parameters
from deployments.openai.translated import TranslatedBody
from grammar_workers.errors import shortened
from grammar_workers.specification import JsonSchema
from grammar_workers.strict_json import Place
from grammar_workers.validation import FailFast

FIELDS = {
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "thinking_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Fields of a chat completion by the name that they have here."""


class JsonFormat(ClientModel):
    """Text that is valid under a JSON Schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema = Field(alias="schema")


class OutputConfig(ClientModel):
    """What the text of the answer must match, and how much thought goes into it."""

    format: JsonFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(None, description="Accepted and ignored.")


class ToolParam(ClientModel):
    """A function that the model may call."""

    ignores: ClassVar[str] = "a tool"
    renames: ClassVar[str] = "a tool of /v1/messages"
    type: Annotated[Literal["custom"] | None, Field(description="Tools that Anthropic runs are refused.")] = None
    name: FunctionName
    description: str | None = None
    input_schema: Parameters = Field(description="JSON Schema of the arguments, an object.")
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
    """The model decides (`auto`), or must call some function (`any`)."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: StrictBool | None = Field(None, description="True: at most one call.")


class ToolChoice(ClientModel):
    """The function that must be called."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: StrictBool | None = Field(None, description="Accepted: there is one call.")


class NoneChoice(ClientModel):
    """No function may be called; the model is not told about them."""

    type: Literal["none"]


class ThinkingEnabled(ClientModel):
    """The model thinks before it answers."""

    type: Literal["enabled", "adaptive"]
    budget_tokens: StrictInt | None = Field(None, ge=1, description="The most tokens of thoughts.")
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="Accepted and ignored: thoughts are told as they are."
    )


class ThinkingDisabled(ClientModel):
    """The model answers at once, as it does where `thinking` is absent."""

    type: Literal["disabled"]


class _Conversation(TranslatedBody):
    """What both bodies have."""

    renames: ClassVar[str] = "a request of /v1/messages"
    names: ClassVar[Mapping[str, str]] = FIELDS
    parameters: ClassVar[str] = "input_schema"
    model: str = Field(description="A name from `/v1/models`.")
    messages: Annotated[list[MessageParam], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Text | None = None
    tools: Annotated[list[Tool], FailFast(), Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[AutoChoice | ToolChoice | NoneChoice, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingEnabled | ThinkingDisabled, Field(discriminator="type")] | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = Field(None, description="The older place of `output_config.format`.")
    speed: Annotated[Any, Only("standard")] = None

    @model_validator(mode="after")
    def _make_chat(self) -> _Conversation:
        # An answer that was cut before its first block leads to an empty message.
        given = self.messages[: -1 if self.messages[-1].is_empty else None]
        if not given or given[-1].role == "assistant":
            message = "must end with the user: an answer cannot be begun for the model"
            raise contradiction("messages", message, ("messages", len(self.messages) - 1))
        messages, begins = chat_messages(self.system, given)

        def place(message: int) -> Place:
            begun = begins[message]
            return ("system",) if begun is None else ("messages", begun[0])

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
    """Body of `POST /v1/messages/count_tokens`."""


class MessagesBody(CommonBody, _Conversation):
    """Body of `POST /v1/messages`."""

    max_tokens: Positive = Field(description="The most tokens to generate, thoughts included.")
    stop_sequences: Stop | None = Field(None, description="Texts that end the answer; they are no part of it.")
    temperature: StrictFloat | None = Field(None, ge=0, le=1, allow_inf_nan=False, description="0 is greedy.")
    top_k: StrictInt | None = Field(None, ge=0, description="Only so many likeliest allowed tokens; 0: all.")
    inference_geo: Annotated[Any, Refused("this server is where it is")] = None
    container: Annotated[Any, Refused("nothing here runs code")] = None
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

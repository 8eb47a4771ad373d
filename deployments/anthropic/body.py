"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, and the chat completion that they ask for.

As everywhere, a field that cannot be honoured is accepted only with the value that means "off".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from deployments.anthropic.content import MAX_KIND, CacheControl, MessageParam, Text, chat_messages
from deployments.http.body_errors import place_of_problem, shown_place
from deployments.http.errors import ApiError
from deployments.http.fields import Only, Positive, Refused, contradiction
from deployments.openai.constraints import ON_UNSUPPORTED, StructuredOutputs
from deployments.openai.protocol import MAX_MESSAGES, ChatCompletionBody
from deployments.openai.sampling import Stop
from deployments.openai.tool_bodies import MAX_TOOLS, FunctionName, Parameters
from grammar_workers.errors import shortened
from grammar_workers.options import OnUnsupported
from grammar_workers.specification import JsonSchema
from grammar_workers.strict_json import Place
from grammar_workers.validation import FailFast, StrictModel

FIELDS = {
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "thinking_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Fields of a chat completion by the name that they have here."""


class JsonFormat(StrictModel):
    """Text that is valid under a JSON Schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema = Field(alias="schema")


class OutputConfig(StrictModel):
    """What the text of the answer must match, and how much thought goes into it."""

    format: JsonFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(None, description="Accepted and ignored.")


class ToolParam(StrictModel):
    """A function that the model may call."""

    type: Annotated[Literal["custom"] | None, Field(description="Tools that Anthropic runs are refused.")] = None
    name: FunctionName
    description: str | None = None
    input_schema: Parameters = Field(description="JSON Schema of the arguments, an object.")
    strict: StrictBool | None = Field(None, description="Accepted either way: the schema is always enforced.")
    cache_control: CacheControl | None = Field(None, description="Accepted and ignored.")
    eager_input_streaming: StrictBool | None = Field(None, description="Accepted: arguments come as they are drawn.")
    input_examples: Annotated[list[dict[str, Any]], FailFast(), Field(max_length=64)] | None = Field(
        None, description="Accepted and ignored."
    )
    allowed_callers: Annotated[Any, Only(["direct"])] = None
    defer_loading: Annotated[Any, Only(False)] = None


def _function(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "custom":
        message = "`{kind}` is a tool that Anthropic runs: offer functions (`type: custom`)"
        raise PydanticCustomError("tool", message, {"kind": shortened(kind, MAX_KIND)})
    return tool


Tool = Annotated[ToolParam, BeforeValidator(_function)]


class AutoChoice(StrictModel):
    """The model decides (`auto`), or must call some function (`any`)."""

    type: Literal["auto", "any"]
    disable_parallel_tool_use: StrictBool | None = Field(None, description="True: at most one call.")


class ToolChoice(StrictModel):
    """The function that must be called."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: StrictBool | None = Field(None, description="Accepted: there is one call.")


class NoneChoice(StrictModel):
    """No function may be called; the model is not told about them."""

    type: Literal["none"]


class ThinkingEnabled(StrictModel):
    """The model thinks before it answers."""

    type: Literal["enabled", "adaptive"]
    budget_tokens: StrictInt | None = Field(None, ge=1, description="The most tokens of thoughts.")
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="Accepted and ignored: thoughts are told as they are."
    )


class ThinkingDisabled(StrictModel):
    """The model answers at once, as it does where `thinking` is absent."""

    type: Literal["disabled"]


class RequestMetadata(StrictModel):
    """Who the request is for."""

    user_id: str | None = None


class _Conversation(StrictModel):
    """What both bodies have."""

    model: str = Field(description="A name from `/v1/models`.")
    messages: Annotated[list[MessageParam], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Text | None = None
    tools: Annotated[list[Tool], FailFast(), Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[AutoChoice | ToolChoice | NoneChoice, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingEnabled | ThinkingDisabled, Field(discriminator="type")] | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = Field(None, description="The older place of `output_config.format`.")
    cache_control: CacheControl | None = Field(None, description="Accepted and ignored.")
    speed: Annotated[Any, Only("standard")] = None

    _chat: ChatCompletionBody = PrivateAttr()

    @model_validator(mode="after")
    def _make_chat(self) -> _Conversation:
        if self.messages[-1].role == "assistant":
            message = "must end with the user: an answer cannot be begun for the model"
            raise contradiction("messages", message, ("messages", len(self.messages) - 1))
        messages, begins = chat_messages(self.system, self.messages)
        try:
            self._chat = ChatCompletionBody.model_validate({"messages": messages, **self._chat_fields()})
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = _in_this_body(place_of_problem(problem, ChatCompletionBody), begins)
            told = problem["ctx"]["message"] if "message" in problem.get("ctx", {}) else problem["msg"]
            raise contradiction(shown_place(place), told, place) from None
        return self

    @property
    def chat(self) -> ChatCompletionBody:
        """The same request as a chat completion."""
        return self._chat

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
        return {name: value for name, value in fields.items() if value is not None}


class CountTokensBody(_Conversation):
    """Body of `POST /v1/messages/count_tokens`."""


class MessagesBody(_Conversation):
    """Body of `POST /v1/messages`."""

    max_tokens: Positive = Field(description="The most tokens to generate, thoughts included.")
    stream: StrictBool | None = Field(None, description="Answer as server-sent events.")
    stop_sequences: Stop | None = Field(None, description="Texts that end the answer; they are no part of it.")
    temperature: StrictFloat | None = Field(None, ge=0, le=1, allow_inf_nan=False, description="0 is greedy.")
    top_p: StrictFloat | None = Field(None, gt=0, le=1, description="Nucleus sampling inside the allowed tokens.")
    top_k: StrictInt | None = Field(None, ge=1, description="Only so many likeliest allowed tokens.")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="What the text of the answer must match, as in a chat completion."
    )
    on_unsupported: OnUnsupported | None = Field(None, description=ON_UNSUPPORTED)
    metadata: RequestMetadata | None = Field(None, description="Accepted and ignored.")
    service_tier: Annotated[Any, Only("auto", "standard_only")] = None
    inference_geo: Annotated[Any, Refused("this server is where it is")] = None
    container: Annotated[Any, Refused("nothing here runs code")] = None
    mcp_servers: Annotated[Any, Refused("offer functions in `tools`")] = None
    context_management: Annotated[Any, Refused("the whole conversation is the prompt")] = None

    def _chat_fields(self) -> dict[str, Any]:
        given = {
            "max_completion_tokens": self.max_tokens,
            "stream": self.stream,
            "stop": self.stop_sequences or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "structured_outputs": self.structured_outputs,
            "on_unsupported": self.on_unsupported,
        }
        fields = super()._chat_fields()
        if "response_format" in fields and self.structured_outputs is not None:
            raise contradiction("structured_outputs", "does not go with a format of the text: give one of them")
        return fields | {name: value for name, value in given.items() if value is not None}


def _chat_tool(tool: ToolParam) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": described}


def _in_this_body(place: Place, begins: list[tuple[int, int] | None]) -> Place:
    """The place of what a chat completion has at `place`; `begins` as `chat_messages` returns it."""
    match place:
        case ("messages", int(message), *rest):
            begun = begins[message]
            if begun is None:
                return ("system",)
            inside = {"tool_call_id": ("content", begun[1], "tool_use_id")}
            return ("messages", begun[0], *inside.get(str(rest[0]) if rest else "", ()))
        case (str(field), *rest):
            return (*FIELDS.get(field, field).split("."), *rest)
    return place


def in_these_words(error: ApiError) -> ApiError:
    """An error about the chat completion, told by the names that this body's fields have."""
    error.move(place_in_these_words)
    return error


def place_in_these_words(param: str | None, pointer: str | None) -> tuple[str | None, str | None]:
    """Field and pointer of the chat completion, by the names that this body's fields have."""
    if param == "tools" and pointer is not None:
        pointer = pointer.replace("/function/parameters", "/input_schema", 1).replace("/function", "", 1)
    return (None if param is None else FIELDS.get(param, param)), pointer

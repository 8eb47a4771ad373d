"""Body of `POST /v1/responses`, and its translation into a chat completion.

A field of an unsupported feature accepts only null and values that turn the feature off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, StrictInt, Tag, model_validator

from deployments.chat.tool_bodies import MAX_TOOLS, CustomFunction, Function, InputGrammar, TextInput
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Metadata, Only, Positive, Refused
from deployments.openai.constraints import GrammarFormat, JsonObjectFormat, NamedJsonSchema, RegexFormat, TextFormat
from deployments.openai.protocol import MAX_MESSAGES, ReasoningEffort
from deployments.openai.responses.items import InputItem, chat_messages
from deployments.openai.sampling import MAX_TOP_LOGPROBS, OpenAIBody
from deployments.openai.structural_tags import StructuralTag
from deployments.openai.translated import TranslatedBody
from grammar_workers.strict_json import Place
from grammar_workers.validation import FailFast, by_json_type

# Field of a chat completion -> name of the field in this body.
FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "thinking": "reasoning.effort",
}

NOT_STORED = "responses are not stored: send the earlier turns in `input`"


class NamedSchemaFormat(NamedJsonSchema):
    """Output format: JSON that is valid under a JSON Schema. `name` is optional and has no effect."""

    type: Literal["json_schema"]
    name: str | None = None  # type: ignore[assignment]
    """Label for the client. It does not affect the output."""


AnyFormat = Annotated[
    TextFormat | JsonObjectFormat | NamedSchemaFormat | RegexFormat | GrammarFormat | StructuralTag,
    Field(discriminator="type"),
]


class TextConfig(ClientModel):
    """Settings of the output text. `format` is the constraint on the text; null: free text."""

    ignores: ClassVar[str] = "text"
    format: AnyFormat | None = None


class ReasoningConfig(ClientModel):
    """Setting that turns the model's reasoning on or off."""

    effort: ReasoningEffort | None = None
    """`none`: no reasoning. Other values: reasoning."""
    summary: Annotated[Any, Only("auto", "concise", "detailed")] = None
    """Ignored. The response has the reasoning unchanged."""
    generate_summary: Annotated[Any, Only("auto", "concise", "detailed")] = None


class FunctionTool(Function):
    """Function that the model may call. The fields of the function are not nested in an object `function`."""

    renames: ClassVar[str] = "a flat tool"
    type: Literal["function"]


class GrammarInput(InputGrammar):
    """Constraint on the input of a custom tool: a context-free grammar or a regular expression."""

    type: Literal["grammar"]


AnyInput = Annotated[GrammarInput | TextInput, Field(discriminator="type")]


class CustomTool(CustomFunction):
    """Tool that takes text (input) instead of JSON arguments. Without `format`, the input is any text.

    If a request has a custom tool, the response has at most one call.
    """

    renames: ClassVar[str] = "a flat tool"
    type: Literal["custom"]
    format: AnyInput | None = None  # type: ignore[assignment]


AnyTool = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


class NamedFunction(ClientModel):
    """Value of `tool_choice` that names one function or custom tool, which the model must call."""

    type: Literal["function", "custom"]
    name: str


class AllowedFunctions(ClientModel):
    """Value of `tool_choice` that allows only some tools. With `mode: required`, the model must call one of them."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    """`auto` or `required`, as in `tool_choice`."""
    tools: Annotated[list[NamedFunction], FailFast(), Field(min_length=1, max_length=MAX_TOOLS)]
    """The tools of `tools` that the model may call. The prompt describes all tools."""


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("string")]
    | Annotated[NamedFunction | AllowedFunctions, Field(discriminator="type"), Tag("object")],
    by_json_type('"none", "auto", "required", or an object that names functions'),
]


class StreamOptions(ClientModel):
    """Options of a stream. The server accepts this object, but its fields have no effect."""

    include_obfuscation: Annotated[Any, Only(False)] = None


class ResponsesBody(OpenAIBody, TranslatedBody):
    """Body of `POST /v1/responses`. Responses are not stored: each request must contain the whole conversation."""

    renames: ClassVar[str] = "a request of /v1/responses"
    names: ClassVar[Mapping[str, str]] = FIELDS
    input: Annotated[
        Annotated[str, Tag("string")]
        | Annotated[list[InputItem], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES), Tag("array")],
        by_json_type("text, or a list of items"),
    ]
    """Message of the user, or the items of a conversation."""
    instructions: str | None = None
    """System message before the input."""
    max_output_tokens: Positive | None = None
    """Maximum number of output tokens."""
    text: TextConfig | None = None
    tools: Annotated[list[AnyTool], FailFast(), Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    reasoning: ReasoningConfig | None = None
    stream_options: StreamOptions | None = None
    metadata: Metadata | None = None
    """The response returns this value unchanged."""
    user: str | None = None
    """The response returns this value unchanged."""
    include: Annotated[list[str], FailFast(), Field(max_length=16)] | None = None
    """`message.output_text.logprobs`: the response has log-probabilities. Other values are ignored."""
    background: Annotated[Any, Only(False)] = None
    truncation: Literal["auto", "disabled"] | None = None
    """`auto`: if the input is too long, the server drops the oldest items. Otherwise the server rejects an input that
    is too long."""
    top_logprobs: StrictInt | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    """Number of likeliest tokens whose log-probabilities the response lists at each position."""
    previous_response_id: Annotated[Any, Refused(NOT_STORED)] = None
    conversation: Annotated[Any, Refused(NOT_STORED)] = None
    prompt: Annotated[Any, Refused("prompts are not stored: send `instructions` and `input`")] = None

    @model_validator(mode="after")
    def _make_chat(self) -> ResponsesBody:
        messages, begins = chat_messages(self.instructions, self.input)

        def place(message: int) -> Place:
            if (item := begins[message]) is not None:
                return ("input", item)
            return ("input",) if isinstance(self.input, str) and message == len(begins) - 1 else ("instructions",)

        self._translate({"messages": messages, **self._chat_fields()}, place)
        return self

    def drop_oldest(self) -> bool:
        """Remove the oldest quarter (rounded up) of the messages from `chat`, in place. Call this for a long prompt.

        The system message with `instructions` and the last message are not removed, and do not count.

        Returns:
            True if messages were removed. False if there was no message to remove.
        """
        messages = self._chat.messages
        first = 0 if self.instructions is None else 1
        if (droppable := len(messages) - first - 1) < 1:
            return False
        kept = [*messages[:first], *messages[first + -(-droppable // 4) :]]
        self._chat = self._chat.model_copy(update={"messages": kept})
        self._chat.__dict__.pop("template_messages", None)  # the cached value has the dropped messages, too
        return True

    @property
    def logprobs(self) -> bool:
        """True if the client requests log-probabilities of the output tokens."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())

    def _chat_fields(self) -> dict[str, Any]:
        fields = {
            **self.settings(OpenAIBody),
            "max_completion_tokens": self.max_output_tokens,
            "response_format": self._response_format(),
            "tools": None if self.tools is None else [_chat_tool(tool) for tool in self.tools],
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "logprobs": self.logprobs or None,
            "top_logprobs": self.top_logprobs or None,
        }
        if isinstance(self.tool_choice, NamedFunction):
            fields["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        elif isinstance(self.tool_choice, AllowedFunctions):
            named = [{"type": "function", "function": {"name": tool.name}} for tool in self.tool_choice.tools]
            allowed = {"mode": self.tool_choice.mode, "tools": named}
            fields["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
        return fields

    def _response_format(self) -> Any:
        wanted = None if self.text is None else self.text.format
        if isinstance(wanted, NamedSchemaFormat):
            return {"type": "json_schema", "schema": wanted.json_schema, "strict": wanted.strict}
        return wanted


def _chat_tool(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    if isinstance(tool, CustomTool):
        custom = tool.model_dump(exclude={"type"}, exclude_none=True)
        if isinstance(tool.format, GrammarInput):
            custom["format"] = {"type": "grammar", "grammar": tool.format.model_dump(exclude={"type"})}
        return {"type": "custom", "custom": custom}
    return {"type": "function", "function": tool.model_dump(exclude={"type"})}

"""The body of `POST /v1/responses`, and the chat completion that it asks for.

As everywhere, a field that cannot be honoured is accepted only with the value that means "off".
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    Tag,
    model_validator,
)

from deployments.http.body_errors import inner_body
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Metadata, Only, Positive, Refused
from deployments.openai.constraints import (
    ON_UNSUPPORTED,
    STRICT,
    GrammarFormat,
    JsonObjectFormat,
    RegexFormat,
    StructuredOutputs,
    TextFormat,
)
from deployments.openai.protocol import MAX_MESSAGES, ChatCompletionBody, ReasoningEffort
from deployments.openai.responses.items import InputItem, chat_messages
from deployments.openai.sampling import MAX_TOP_LOGPROBS, Stop
from deployments.openai.structural_tags import StructuralTag
from deployments.openai.tool_bodies import MAX_TOOLS, FunctionName, Parameters, TextInput
from grammar_workers.options import OnUnsupported
from grammar_workers.specification import JsonSchema
from grammar_workers.strict_json import Place
from grammar_workers.validation import FailFast, by_json_type

FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "thinking": "reasoning.effort",
}
"""Fields of a chat completion by the name that they have here."""

NOT_STORED = "responses are not stored: send the earlier turns in `input`"


class NamedSchemaFormat(ClientModel):
    """Text that is valid under a JSON Schema."""

    type: Literal["json_schema"]
    name: str | None = Field(None, description="A label of the caller's; it does not influence the output.")
    description: str | None = None
    json_schema: JsonSchema = Field(alias="schema")
    strict: StrictBool | None = Field(None, description=STRICT)


class TextConfig(ClientModel):
    """What the text of the answer must match."""

    ignores: ClassVar[str] = "text"
    format: (
        Annotated[
            TextFormat | JsonObjectFormat | NamedSchemaFormat | RegexFormat | GrammarFormat | StructuralTag,
            Field(discriminator="type"),
        ]
        | None
    ) = None


class ReasoningConfig(ClientModel):
    """Whether the model thinks before it answers."""

    effort: ReasoningEffort | None = Field(None, description="`none`: no thoughts; any other: thoughts.")
    summary: Annotated[Any, Only("auto", "concise", "detailed")] = Field(
        None, description="Accepted and ignored: thoughts are told as they are."
    )
    generate_summary: Annotated[Any, Only("auto", "concise", "detailed")] = None


class FunctionTool(ClientModel):
    """A function that the model may call."""

    ignores: ClassVar[str] = "a tool"
    renames: ClassVar[str] = "a flat tool"
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = Field(None, description="JSON Schema of the arguments, an object.")
    strict: StrictBool | None = Field(None, description=STRICT)


class GrammarInput(ClientModel):
    """The grammar of a custom tool's input."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(ClientModel):
    """A tool whose input is text; an answer calls one of them at most."""

    ignores: ClassVar[str] = "a tool"
    renames: ClassVar[str] = "a flat tool"
    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: Annotated[GrammarInput | TextInput, Field(discriminator="type")] | None = None


class NamedFunction(ClientModel):
    """The one function or custom tool that must be called."""

    type: Literal["function", "custom"]
    name: str


class AllowedFunctions(ClientModel):
    """Some of the tools, and whether one of them must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = Field(description="As in `tool_choice`.")
    tools: Annotated[list[NamedFunction], FailFast(), Field(min_length=1, max_length=MAX_TOOLS)] = Field(
        description="Those of `tools` that may be called; the model is told about all of them."
    )


class StreamOptions(ClientModel):
    """Nothing to choose yet."""

    include_obfuscation: Annotated[Any, Only(False)] = None


class ResponsesBody(ClientModel):
    """Body of `POST /v1/responses`. Nothing is stored: send the whole conversation each time."""

    ignores: ClassVar[str] = "a request"
    renames: ClassVar[str] = "a request of /v1/responses"
    model: str | None = Field(None, description="A name from `/v1/models`; the served model when absent.")
    input: Annotated[
        Annotated[str, Tag("string")]
        | Annotated[list[InputItem], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES), Tag("array")],
        by_json_type("text, or a list of items"),
    ] = Field(description="The user's message, or the items of a conversation.")
    instructions: str | None = Field(None, description="A system message before the input.")
    max_output_tokens: Positive | None = Field(None, description="The most tokens to generate.")
    temperature: StrictFloat | None = Field(None, ge=0, le=2, allow_inf_nan=False, description="0 is greedy.")
    top_p: StrictFloat | None = Field(None, gt=0, le=1, description="Nucleus sampling inside the allowed tokens.")
    text: TextConfig | None = None
    tools: (
        Annotated[
            list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]],
            FailFast(),
            Field(max_length=MAX_TOOLS),
        ]
        | None
    ) = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("string")]
            | Annotated[NamedFunction | AllowedFunctions, Field(discriminator="type"), Tag("object")],
            by_json_type('"none", "auto", "required", or an object that names functions'),
        ]
        | None
    ) = None
    parallel_tool_calls: StrictBool | None = None
    reasoning: ReasoningConfig | None = None
    stream: StrictBool | None = Field(None, description="Answer as server-sent events.")
    stream_options: StreamOptions | None = None
    on_unsupported: OnUnsupported | None = Field(None, description=ON_UNSUPPORTED)
    metadata: Metadata | None = Field(None, description="Returned as it is.")
    user: str | None = Field(None, description="Returned as it is.")
    include: Annotated[list[str], FailFast(), Field(max_length=16)] | None = Field(
        None, description="`message.output_text.logprobs`: log-probabilities; the others are ignored."
    )
    background: Annotated[Any, Only(False)] = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="`auto`: the oldest items are dropped where the input is too long; else it is refused."
    )
    top_logprobs: StrictInt | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="Log-probabilities of so many of the likeliest tokens."
    )
    top_k: StrictInt | None = Field(None, ge=-1, lt=1 << 63, description="As in a chat completion.")
    seed: StrictInt | None = Field(None, ge=-(1 << 63), lt=1 << 63, description="Equal seeds give equal tokens.")
    stop: Stop | None = Field(None, description="As in a chat completion.")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="What the text of the answer must match, as in a chat completion."
    )
    finish_within_budget: StrictBool | None = Field(None, description="As in a chat completion.")
    previous_response_id: Annotated[Any, Refused(NOT_STORED)] = None
    conversation: Annotated[Any, Refused(NOT_STORED)] = None
    prompt: Annotated[Any, Refused("prompts are not stored: send `instructions` and `input`")] = None

    _chat: ChatCompletionBody = PrivateAttr()

    @model_validator(mode="after")
    def _make_chat(self) -> ResponsesBody:
        messages, begins = chat_messages(self.instructions, self.input)
        fields = {"messages": messages, **self._chat_fields()}
        in_this_body = functools.partial(_in_this_body, begins=begins, given=self.input)
        self._chat = inner_body(ChatCompletionBody, fields, in_this_body)
        return self

    def drop_oldest(self) -> bool:
        """Drop a quarter of the conversation, the oldest first. False where nothing is left to drop."""
        messages = self._chat.messages
        first = 0 if self.instructions is None else 1
        if (droppable := len(messages) - first - 1) < 1:
            return False
        kept = [*messages[:first], *messages[first + -(-droppable // 4) :]]
        self._chat = self._chat.model_copy(update={"messages": kept})
        self._chat.__dict__.pop("template_messages", None)  # of all messages
        return True

    @property
    def logprobs(self) -> bool:
        """True if log-probabilities are asked for."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())

    @property
    def chat(self) -> ChatCompletionBody:
        """The same request as a chat completion."""
        return self._chat

    def _chat_fields(self) -> dict[str, Any]:
        fields = {
            "model": self.model,
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "response_format": self._response_format(),
            "tools": None if self.tools is None else [_chat_tool(tool) for tool in self.tools],
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "stream": self.stream,
            "on_unsupported": self.on_unsupported,
            "logprobs": self.logprobs or None,
            "top_logprobs": self.top_logprobs or None,
            "top_k": self.top_k,
            "seed": self.seed,
            "stop": self.stop,
            "structured_outputs": self.structured_outputs,
            "finish_within_budget": self.finish_within_budget,
        }
        if isinstance(self.tool_choice, NamedFunction):
            fields["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        elif isinstance(self.tool_choice, AllowedFunctions):
            named = [{"type": "function", "function": {"name": tool.name}} for tool in self.tool_choice.tools]
            allowed = {"mode": self.tool_choice.mode, "tools": named}
            fields["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
        return {name: value for name, value in fields.items() if value is not None}

    def _response_format(self) -> Any:
        wanted = None if self.text is None else self.text.format
        if isinstance(wanted, NamedSchemaFormat):
            return {"type": "json_schema", "schema": wanted.json_schema, "strict": wanted.strict}
        return wanted


def _in_this_body(place: Place, begins: list[int | None], given: Any) -> Place:
    """The place of what a chat completion has at `place`; `begins` as `chat_messages` returns it."""
    match place:
        case ("messages", int(message), *_):
            if (item := begins[message]) is not None:
                return ("input", item)
            return ("input",) if isinstance(given, str) and message == len(begins) - 1 else ("instructions",)
        case ("tools", int(tool), "function", *rest):
            return ("tools", tool, *rest)
        case ("tool_choice", "allowed_tools", *rest):
            return ("tool_choice", *rest)
        case (str(field), *rest):
            return (*FIELDS.get(field, field).split("."), *rest)
    return place


def _chat_tool(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    if isinstance(tool, CustomTool):
        custom = tool.model_dump(exclude={"type"}, exclude_none=True)
        if isinstance(tool.format, GrammarInput):
            custom["format"] = {"type": "grammar", "grammar": tool.format.model_dump(exclude={"type"})}
        return {"type": "custom", "custom": custom}
    return {"type": "function", "function": tool.model_dump(exclude={"type"})}


def place_in_these_words(param: str | None, pointer: str | None) -> tuple[str | None, str | None]:
    """Field and pointer of the chat completion, by the names that this body's fields have."""
    if param == "tools" and pointer is not None:
        pointer = pointer.replace("/function", "", 1)
    return (None if param is None else FIELDS.get(param, param)), pointer

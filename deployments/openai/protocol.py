"""Request bodies of the two completion endpoints, in OpenAI's format, and their translation into generation requests.

An undefined field is rejected, unless `deployments/http/client_fields.yaml` lists it as ignored. A field of an
unsupported feature accepts only values that turn the feature off. Values are not converted: `"5"` is not a number.
"""

from __future__ import annotations

import collections
import functools
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, StrictBool, StrictFloat, StrictInt, Tag, model_validator

from deployments.chat.tool_bodies import (
    MAX_TOOLS,
    AllowedToolsChoice,
    AnyTool,
    NamedTool,
    Tool,
    ToolChoice,
)
from deployments.chat.tools import Offer
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Natural, Only, Positive, Refused, TokenId, contradiction
from deployments.openai.chat_messages import Message
from deployments.openai.constraints import ResponseFormat, banned_specification
from deployments.openai.sampling import MAX_TOP_LOGPROBS, SamplingBody
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.keys import refuse_mistakes
from grammar_workers.specification import AllOfSpecification, GrammarSpecification
from grammar_workers.validation import FailFast

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
MAX_TIMEOUT_S = 24 * 3600
# Maximum number of messages, not counting a system message, which the other APIs have in a separate field.
MAX_MESSAGES = 4096
MAX_PROMPT_TOKENS = 1 << 20
MAX_PROMPTS = 16


class StreamOptions(ClientModel):
    """Options of a streamed response. With `include_usage`, the stream ends with a chunk that has the token counts."""

    include_usage: StrictBool = False
    """`true`: before the end, the stream has one more chunk with the token counts."""
    include_obfuscation: Annotated[Any, Only(False)] = None


class ChatTemplateArguments(ClientModel):
    """Variables of the chat template. Only variables that turn reasoning on or off are supported."""

    enable_thinking: StrictBool | None = None
    thinking: StrictBool | None = None


class GenerationBody(SamplingBody):
    """Fields of the bodies of both completion endpoints, `/v1/chat/completions` and `/v1/completions`."""

    ignores: ClassVar[str] = "a request"
    renames: ClassVar[str] = "a request"
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    """Constraint on the output, in OpenAI's format."""
    timeout_s: StrictFloat | None = Field(None, gt=0, le=MAX_TIMEOUT_S)
    """Maximum duration of the response in seconds, including queueing and compilation. A longer response ends with HTTP
    408, or with an error event if the stream has begun."""

    @model_validator(mode="after")
    def _check(self) -> GenerationBody:
        if self.response_format is not None and self.structured_outputs is not None:
            raise contradiction("structured_outputs", "does not go with `response_format`: give one of them")
        if self.finish_within_budget and not self.constrained:
            raise contradiction("finish_within_budget", "needs a constraint")
        if self.on_unsupported == "report" and not self.constrained:
            raise contradiction("on_unsupported", "needs a constraint")
        if self.on_unsupported is not None and self.grammar_key() is not None:
            raise contradiction("on_unsupported", "comes too late for a compiled grammar: it is part of its key")
        if self.conditional_sampling is not None:
            if not self.constrained:
                raise contradiction("conditional_sampling", "needs a constraint: without one nothing is distorted")
            if self.stream:
                message = "does not go with `stream`: which particle is the answer is known at its end"
                raise contradiction("conditional_sampling", message)
        if self.banned_words is not None and self.grammar_key() is not None:
            raise contradiction("banned_words", "cannot join a compiled grammar: compile them together with `all_of`")
        return self

    @property
    def include_usage(self) -> bool:
        """True if the last chunk of the stream must contain the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @functools.cached_property
    def specification(self) -> tuple[GrammarSpecification, str] | None:
        """Constraint of the request, as a pair (specification for the compiler, field of the body that contains it).

        The specification also excludes the words in `banned_words`. None: the request has no constraint, or it has the
        key of a compiled grammar instead.
        """
        for name in ("response_format", "structured_outputs"):
            constraint = getattr(self, name)
            if constraint is not None and (specification := constraint.specification()) is not None:
                if self.banned_words is not None:
                    banned = banned_specification(self.banned_words)
                    specification = AllOfSpecification(specifications=[specification, banned])
                return specification, name
        return None

    @property
    def constraint_field(self) -> str:
        """Name of the body's field that contains the constraint, for errors. The body must have a constraint."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    @property
    def constrained(self) -> bool:
        """True if the body contains a constraint, or the key of a compiled grammar."""
        return self.specification is not None or self.grammar_key() is not None

    def grammar_key(self) -> str | None:
        """Return the key of a compiled grammar that the client has sent instead of a constraint, or None."""
        return None if self.structured_outputs is None else self.structured_outputs.key

    def prompt_fields(self) -> dict[str, Any]:
        """Return the fields of a generation request that contain the prompt. Subclasses override this method."""
        raise NotImplementedError

    def sent_characters(self) -> int:
        """Return the size of the prompt in characters. A token id counts as one. Subclasses override this method."""
        raise NotImplementedError

    def generation_request(self, request_id: str, *, drawn_seed: int) -> dict[str, Any]:
        """Return the request that a model replica gets for the first choice (output), without the grammar.

        Args:
            request_id: Id of the generation on the replica.
            drawn_seed: Seed of the sampling if the body has no `seed`.

        Returns:
            The fields of `gpu_workers.request.GenerationRequest` as plain data. `grammar` is None.
        """
        sampling = self.sampling(drawn_seed=drawn_seed)
        if self.specification is not None:
            sampling.pop("banned_words", None)
        return {
            "request_id": request_id,
            "prompt": None,
            "messages": None,
            **self.prompt_fields(),
            "sampling": sampling,
            "choice_index": 0,
            "grammar": None,
            "timeout_s": self.timeout_s,
            "emitted_token_ids": [],
        }


class ChatCompletionBody(GenerationBody):
    """Body of `POST /v1/chat/completions`: a conversation to continue, with the settings of the output."""

    messages: Annotated[list[Message], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES + 1)
    max_completion_tokens: Positive | None = None
    """Newer name of `max_tokens`. It applies if a request has both."""
    logprobs: StrictBool | None = None
    """`true`: the response has the log-probability of each token, after the mask."""
    top_logprobs: StrictInt | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    """With `logprobs`: number of likeliest tokens that the response also lists at each position."""
    tools: Annotated[list[AnyTool], FailFast(), Field(max_length=MAX_TOOLS)] | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """`auto` (the default): calls or text. `required`: only calls. `none`: only text. An object names one function that
    the model must call, or the functions that the model may call."""
    parallel_tool_calls: StrictBool | None = None
    """`true` (the default): a response may have several calls."""
    thinking: StrictBool | None = None
    """`true`: the model reasons before the response, and a constraint applies to the text after the reasoning. Default:
    the setting of the server or of the model."""
    reasoning_effort: ReasoningEffort | None = None
    """Setting `thinking` in OpenAI's format: `none` means `false`, other values mean `true`."""
    thinking_budget: Natural | None = None
    """Maximum number of reasoning tokens. After them, the response follows. 0: no reasoning."""
    chat_template_kwargs: ChatTemplateArguments | None = None
    """Setting `thinking` in Qwen's format."""
    continue_final_message: StrictBool | None = None
    """`true`: the output continues the last message, whose role must be `assistant`. A constraint applies to the
    message and the output together."""
    add_generation_prompt: StrictBool | None = None
    """Must be `false` with `continue_final_message`, and `true` without it. Absent: this value."""
    modalities: Annotated[Any, Only(["text"])] = None
    functions: Annotated[Any, Refused("send the newer field `tools`")] = None
    function_call: Annotated[Any, Refused("send the newer field `tool_choice`")] = None
    audio: Annotated[Any, Refused("responses are text")] = None
    moderation: Annotated[Any, Refused("the server does not moderate")] = None
    web_search_options: Annotated[Any, Refused("the server does not search the web; offer a function in `tools`")] = (
        None
    )

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatCompletionBody:
        if self.top_logprobs and not self.logprobs:
            raise contradiction("top_logprobs", "needs `logprobs: true`")
        return self

    @model_validator(mode="after")
    def _check_thinking(self) -> ChatCompletionBody:
        asked = self._asked_for_thoughts
        if len(set(asked.values())) > 1:
            raise contradiction(list(asked)[-1], f"contradicts `{next(iter(asked))}`")
        if self.thinking_budget:
            if False in asked.values():
                raise contradiction("thinking_budget", "is for thoughts: leave it out, or let the model think")
            # The answer is a second generation, which does not have the state that these fields need.
            for name in ("finish_within_budget", "logprobs", "raw_logprobs", "beam_search"):
                if getattr(self, name):
                    raise contradiction("thinking_budget", f"does not go with `{name}`")
        return self

    @model_validator(mode="after")
    def _check_continued(self) -> ChatCompletionBody:
        if self.add_generation_prompt is not None and self.add_generation_prompt == bool(self.continue_final_message):
            raise contradiction("add_generation_prompt", "is false with `continue_final_message`, and true without it")
        if self.continue_final_message:
            if self.messages[-1].role != "assistant" or self.messages[-1].tool_calls:
                raise contradiction("continue_final_message", "needs a last message of the assistant, without calls")
            for name, asked in {**self._asked_for_thoughts, "thinking_budget": self.thinking_budget}.items():
                if asked:
                    raise contradiction(name, "does not go with `continue_final_message`: its thoughts are over")
        return self

    def _check_spelling(self) -> None:
        """Raise an error for a misspelled keyword in the schema of a tool with `strict: true`."""
        for index, tool in enumerate(self.tools or ()):
            if isinstance(tool, Tool) and tool.function.strict:
                try:
                    refuse_mistakes(tool.function.parameters, "")
                except UnsupportedFeatureError as error:
                    article, where = ("an", f" (at {error.pointer})") if error.pointer else ("a", "")
                    message = f"has {article} {error.message}{where}"
                    place = ("tools", index, "function", "parameters")
                    raise contradiction("parameters", message, place) from None

    @model_validator(mode="after")
    def _check_tools(self) -> ChatCompletionBody:
        names = [tool.function.name for tool in self.tools or []]
        if twice := [name for name, count in collections.Counter(names).items() if count > 1]:
            raise contradiction("tools", f"has two functions of one name: {twice[0]}")
        if self.tool_choice not in (None, "none", "auto") and not names:
            raise contradiction("tool_choice", "needs `tools`")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise contradiction("tool_choice", f"{self.tool_choice.function.name} is not in `tools`")
        if isinstance(self.tool_choice, AllowedToolsChoice):
            for index, tool in enumerate(self.tool_choice.allowed_tools.tools):
                if tool.function.name not in names:
                    where = ("tool_choice", "allowed_tools", "tools", index)
                    raise contradiction("tool_choice", f"{tool.function.name} is not in `tools`", where)
        if self.on_unsupported != "report":
            self._check_spelling()
        if (offer := self.offer()) is not None:
            # If calls are required, there is no text to which the other constraint could apply.
            if self.grammar_key() is not None and offer.choice == "auto":
                message = "cannot join `tools` as a compiled grammar: send its specification"
                raise contradiction("structured_outputs", message)
            for name in ("beam_search", "banned_words", "continue_final_message"):
                if getattr(self, name):
                    raise contradiction(name, "does not go with `tools`, except with `tool_choice: none`")
        return self

    @property
    def asks_for_thoughts(self) -> bool | None:
        """Setting of the client for reasoning. True: on. False: off. None: the default of the model applies.

        With `continue_final_message`, reasoning is always off.
        """
        if self.continue_final_message:
            return False
        if self.thinking_budget is not None:
            return self.thinking_budget > 0
        return next(iter(self._asked_for_thoughts.values()), None)

    @property
    def thinking_field(self) -> str:
        """Name of the body's field that turns reasoning on or off, for error messages."""
        return next(iter(self._asked_for_thoughts), "thinking_budget")

    @property
    def _asked_for_thoughts(self) -> dict[str, bool]:
        """Fields in the request that turn reasoning on (True) or off (False)."""
        template = self.chat_template_kwargs or ChatTemplateArguments()
        asked = {
            "thinking": self.thinking,
            "reasoning_effort": None if self.reasoning_effort is None else self.reasoning_effort != "none",
            "chat_template_kwargs.enable_thinking": template.enable_thinking,
            "chat_template_kwargs.thinking": template.thinking,
        }
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def constrained(self) -> bool:
        """True if the body contains a constraint, the key of a compiled grammar, or tools that the model may call."""
        return super().constrained or self.offer() is not None

    @property
    def speaks_of_tools(self) -> bool:
        """True if the model may call tools, or if an earlier message of the conversation has tool calls."""
        return self.offer() is not None or any(message.tool_calls for message in self.messages)

    def offer(self) -> Offer | None:
        """Return the tools that the model may call, and the constraint on text. None: the model cannot call tools."""
        if not self.tools or self.tool_choice == "none":
            return None
        choice = self.tool_choice or "auto"
        allowed: frozenset[str] | None = None
        if isinstance(choice, AllowedToolsChoice):
            allowed = choice.names()
            choice = choice.allowed_tools.mode
        text = self.specification[0] if choice == "auto" and self.specification is not None else None
        return Offer(self.tools, choice, self.parallel_tool_calls is not False, allowed, text)

    def top_logprobs_wanted(self) -> int | None:
        """Return the number of most likely tokens to report at each position.

        Returns:
            0: report only the generated token. None: report no log-probabilities.
        """
        return self.top_logprobs or 0 if self.logprobs else None

    def limit(self) -> int | None:
        """Return the maximum number of output tokens. None: only the context length of the model limits the output."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompt_fields(self) -> dict[str, Any]:
        """Return the fields of a generation request that contain the prompt.

        Returns:
            `messages` (for the chat template), and `continue_final_message` if it is true.
        """
        fields: dict[str, Any] = {"messages": self.template_messages}
        return fields | ({"continue_final_message": True} if self.continue_final_message else {})

    def sent_characters(self) -> int:
        """Return the number of characters in all messages, including the arguments of tool calls."""
        return sum(message.sent_characters() for message in self.messages)

    @functools.cached_property
    def template_messages(self) -> list[dict[str, Any]]:
        """Messages of the conversation as plain data, for the chat template.

        The result of a tool call also has the field `name` (name of the called function), if a message has the call.
        """
        names = {call.id: call.function.name for message in self.messages for call in message.tool_calls or ()}
        return [
            message.template_input() | ({"name": names[message.tool_call_id]} if message.tool_call_id in names else {})
            for message in self.messages
        ]


def _kind_of_prompt(given: Any) -> str | None:
    if isinstance(given, list):
        kinds: dict[type, str] = {str: "texts", list: "token lists"}
        return kinds.get(type(given[0]), "tokens") if given else "tokens"
    return "text" if isinstance(given, str) else None


Tokens = Annotated[list[TokenId], FailFast(), Field(min_length=1, max_length=MAX_PROMPT_TOKENS)]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[list[str], FailFast(), Field(min_length=1, max_length=MAX_PROMPTS), Tag("texts")]
    | Annotated[list[Tokens], FailFast(), Field(min_length=1, max_length=MAX_PROMPTS), Tag("token lists")],
    Discriminator(
        _kind_of_prompt,
        custom_error_type="wrong_type",
        custom_error_message="must be a text or a list of token ids, or a list of those",
    ),
]


class CompletionBody(GenerationBody):
    """Body of `POST /v1/completions`: one or more prompts to continue, with the settings of the output."""

    prompt: Prompt
    """A prompt (text or token IDs), or a list of prompts. The response has `n` choices for each prompt, in the order of
    the prompts."""
    max_tokens: Positive | None = 16
    """Maximum number of output tokens. The default is the default of OpenAI's API."""
    logprobs: StrictInt | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    """The response has the log-probability of each token, and of this number of likeliest tokens at each position."""
    echo: Annotated[Any, Only(False)] = None
    best_of: Annotated[Any, Only(1)] = None
    suffix: Annotated[Any, Only("")] = None

    def top_logprobs_wanted(self) -> int | None:
        """Return the number of most likely tokens to report at each position.

        Returns:
            0: report only the generated token. None: report no log-probabilities.
        """
        return self.logprobs

    def sent_characters(self) -> int:
        """Return the total size of all prompts, in characters. A token id counts as one character."""
        return sum(map(len, self.prompts))

    @property
    def prompts(self) -> list[Any]:
        """List of all prompts. Each prompt is a text, or a list of token ids."""
        given = self.prompt
        return given if isinstance(given, list) and isinstance(given[0], str | list) else [given]

    @property
    def sequences(self) -> int:
        """Number of requests for which this request counts in the rate limit: at least one for each prompt."""
        return super().sequences * len(self.prompts)

    def prompt_fields(self) -> dict[str, Any]:
        """Return the field `prompt` of a generation request, with the first prompt only."""
        return {"prompt": self.prompts[0]}

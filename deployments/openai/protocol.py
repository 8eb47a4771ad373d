"""The HTTP bodies, OpenAI's names: what clients send, and its conversion into what the tiers take.

Unknown fields are refused by name, except those that `deployments/http/client_fields.yaml` lists. A field that the
engine cannot honour yet is accepted only with the value that means "off", so that a client which always sends its
defaults still works and no request is half-honoured in silence. Numbers and booleans must be just that: `"5"` is no
number here.
"""

from __future__ import annotations

import collections
import functools
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, StrictBool, StrictFloat, StrictInt, Tag, model_validator

from deployments.chat.tools import Offer
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Natural, Only, Positive, Refused, TokenId, contradiction
from deployments.openai.chat_messages import Message
from deployments.openai.constraints import ResponseFormat
from deployments.openai.sampling import MAX_TOP_LOGPROBS, SamplingBody
from deployments.openai.tool_bodies import (
    MAX_TOOLS,
    AllowedToolsChoice,
    AnyTool,
    NamedTool,
    Tool,
    ToolChoice,
)
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.keys import refuse_mistakes
from grammar_workers.specification import AllOfSpecification, BannedWordsSpecification, GrammarSpecification
from grammar_workers.validation import FailFast

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
MAX_TIMEOUT_S = 24 * 3600
MAX_MESSAGES = 4096
"""Beside the system message, which the other APIs take apart."""
MAX_PROMPT_TOKENS = 1 << 20
MAX_PROMPTS = 16


class StreamOptions(ClientModel):
    """What a stream carries besides text."""

    include_usage: StrictBool = Field(False, description="Send one more chunk with the token counts before the end.")
    include_obfuscation: Annotated[Any, Only(False)] = None


class ChatTemplateArguments(ClientModel):
    """Arguments of the chat template; those for thoughts alone."""

    enable_thinking: StrictBool | None = None
    thinking: StrictBool | None = None


class GenerationBody(SamplingBody):
    """What the two completion endpoints share."""

    ignores: ClassVar[str] = "a request"
    renames: ClassVar[str] = "a request"
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = Field(None, description="What the output must match (OpenAI's spelling).")
    timeout_s: StrictFloat | None = Field(
        None,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="Seconds for the whole answer, waiting and compiling included; after them it ends with status 408,"
        " or an error event where it is streamed already.",
    )

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
        return self.stream_options is not None and self.stream_options.include_usage

    @functools.cached_property
    def specification(self) -> tuple[GrammarSpecification, str] | None:
        """The grammar specification asked for, with the name of the field it came from; None for free text.

        Banned words are part of it: under a constraint they cannot come up, so nothing has to be taken back.
        """
        for name in ("response_format", "structured_outputs"):
            constraint = getattr(self, name)
            if constraint is not None and (specification := constraint.specification()) is not None:
                if self.banned_words is not None:
                    banned = BannedWordsSpecification.model_validate(self.banned_words.model_dump())
                    specification = AllOfSpecification(specifications=[specification, banned])
                return specification, name
        return None

    @property
    def constraint_field(self) -> str:
        """The field of the constraint; for bodies that have one."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    @property
    def constrained(self) -> bool:
        """Whether a grammar applies to the output."""
        return self.specification is not None or self.grammar_key() is not None

    def grammar_key(self) -> str | None:
        """The key of a compiled grammar, where the client names one instead of sending its specification."""
        return None if self.structured_outputs is None else self.structured_outputs.key

    def prompt_fields(self) -> dict[str, Any]:
        """`prompt` or `messages` of a generation request."""
        raise NotImplementedError

    def sent_characters(self) -> int:
        """Of the prompt as it was sent: known before it is put together, which costs more the larger it is."""
        raise NotImplementedError

    def generation_request(self, request_id: str, *, drawn_seed: int) -> dict[str, Any]:
        """The first choice's request as a model replica takes it (`gpu_workers.request`), without its grammar."""
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
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES + 1)
    max_completion_tokens: Positive | None = Field(None, description="The newer name of `max_tokens`.")
    logprobs: StrictBool | None = Field(None, description="Tell each token's log-probability, after the mask.")
    top_logprobs: StrictInt | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="With `logprobs`: so many of the likeliest tokens, too."
    )
    tools: Annotated[list[AnyTool], FailFast(), Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Functions that the model may call."
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="`auto`, the default: calls or text. `required`: calls alone. `none`: text. Or the one function "
        "that must be called, or those that may be.",
    )
    parallel_tool_calls: StrictBool | None = Field(None, description="Allow several calls in one answer; default true.")
    thinking: StrictBool | None = Field(
        None,
        description="Whether a model that can thinks first: a constraint then applies to what follows the thoughts. "
        "Default: what the served model does.",
    )
    reasoning_effort: ReasoningEffort | None = Field(
        None, description="OpenAI's spelling of `thinking`: `none` is false, any other is true."
    )
    thinking_budget: Natural | None = Field(
        None, description="The most tokens of thoughts; what follows is the answer. 0: no thoughts."
    )
    chat_template_kwargs: ChatTemplateArguments | None = Field(None, description="Qwen's spelling of `thinking`.")
    continue_final_message: StrictBool | None = Field(
        None,
        description="The output continues the last message, which is the assistant's; a constraint applies to the text "
        "of both together.",
    )
    add_generation_prompt: StrictBool | None = Field(
        None, description="False with `continue_final_message`, true without it, as where it is absent."
    )
    modalities: Annotated[Any, Only(["text"])] = None
    functions: Annotated[Any, Refused("send `tools`, its newer form")] = None
    function_call: Annotated[Any, Refused("send `tool_choice`, its newer form")] = None
    audio: Annotated[Any, Refused("answers are text")] = None
    moderation: Annotated[Any, Refused("nothing here moderates")] = None
    web_search_options: Annotated[Any, Refused("nothing here searches the web; offer a function in `tools`")] = None

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
            # The answer goes on in a second generation, which knows neither of these of the first.
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
        """Raises for a mistake in the schema of a tool that is strict."""
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
            # Where calls are demanded there is no text that the other constraint could be about.
            if self.grammar_key() is not None and offer.choice == "auto":
                message = "cannot join `tools` as a compiled grammar: send its specification"
                raise contradiction("structured_outputs", message)
            for name in ("beam_search", "banned_words", "continue_final_message"):
                if getattr(self, name):
                    raise contradiction(name, "does not go with `tools`, except with `tool_choice: none`")
        return self

    @property
    def asks_for_thoughts(self) -> bool | None:
        """Whether the client wants the model to think; None: it does not say."""
        if self.continue_final_message:
            return False
        if self.thinking_budget is not None:
            return self.thinking_budget > 0
        return next(iter(self._asked_for_thoughts.values()), None)

    @property
    def thinking_field(self) -> str:
        """The field by which the client asks for thoughts."""
        return next(iter(self._asked_for_thoughts), "thinking_budget")

    @property
    def _asked_for_thoughts(self) -> dict[str, bool]:
        """Return whether the fields that were sent ask for reasoning."""
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
        return super().constrained or self.offer() is not None

    @property
    def speaks_of_tools(self) -> bool:
        """Whether tools are offered, or were called before."""
        return self.offer() is not None or any(message.tool_calls for message in self.messages)

    def offer(self) -> Offer | None:
        """The tools that may be called; None where there are none."""
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
        return self.top_logprobs or 0 if self.logprobs else None

    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompt_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"messages": self.template_messages}
        return fields | ({"continue_final_message": True} if self.continue_final_message else {})

    def sent_characters(self) -> int:
        return sum(message.sent_characters() for message in self.messages)

    @functools.cached_property
    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as chat templates take them. Results have the name of their function where its call is there."""
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
    """Body of `POST /v1/completions`."""

    prompt: Prompt = Field(description="Text or token ids, or a list of those: each has `n` choices, in their order.")
    max_tokens: Positive | None = Field(16, description="The most tokens to generate; 16 as in OpenAI's API.")
    logprobs: StrictInt | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="Tell log-probabilities, and those of so many likeliest tokens."
    )
    echo: Annotated[Any, Only(False)] = None
    best_of: Annotated[Any, Only(1)] = None
    suffix: Annotated[Any, Only("")] = None

    def top_logprobs_wanted(self) -> int | None:
        return self.logprobs

    def sent_characters(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def prompts(self) -> list[Any]:
        """Each of the prompts."""
        given = self.prompt
        return given if isinstance(given, list) and isinstance(given[0], str | list) else [given]

    @property
    def sequences(self) -> int:
        return super().sequences * len(self.prompts)

    def prompt_fields(self) -> dict[str, Any]:
        return {"prompt": self.prompts[0]}

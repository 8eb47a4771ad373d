"""Bodies and responses of `POST /tokenize` and `POST /detokenize`, with vLLM's field names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictBool, model_validator

from deployments.chat.tool_bodies import MAX_TOOLS, Tool, ToolChoice
from deployments.http.body_errors import inner_body
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Only, Refused, TokenId, contradiction
from deployments.openai.chat_messages import Message
from deployments.openai.protocol import (
    MAX_MESSAGES,
    MAX_PROMPT_TOKENS,
    ChatCompletionBody,
    ReasoningEffort,
)
from grammar_workers.validation import FailFast

_CHAT_FIELDS = ("model", "messages", "tools", "tool_choice", "thinking", "reasoning_effort")
_OF_CHATS = (*_CHAT_FIELDS[2:], "add_generation_prompt", "continue_final_message")


class TokenizeBody(ClientModel):
    """Body of `POST /tokenize`: a text (`prompt`) or a conversation (`messages`). Exactly one of them must be given.

    The chat template of the model converts a conversation to text. `tools` and other settings of a conversation are
    allowed only with `messages`.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}]})

    model: str | None = None
    """A name from `/v1/models`. Absent: the served model."""
    prompt: str | None = None
    """Text."""
    messages: Annotated[list[Message], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """A conversation, as in `/v1/chat/completions`. It replaces `prompt`."""
    add_special_tokens: StrictBool | None = None
    """`true`: add the special tokens of the tokenizer. Default: `true` with `prompt`, and `false` with `messages`,
    because the chat template adds special tokens."""
    return_token_strs: StrictBool | None = None
    """`true`: the response also has the text form of each token."""
    add_generation_prompt: StrictBool | None = None
    """With `messages`: `true` (the default) adds the text that the chat template writes before a response."""
    continue_final_message: StrictBool | None = None
    """With `messages`: `true` leaves the last message open. Needs `add_generation_prompt: false`."""
    tools: Annotated[list[Tool], FailFast(), Field(max_length=MAX_TOOLS)] | None = None
    """With `messages`: as in a chat completion."""
    tool_choice: ToolChoice | None = None
    """With `messages`: as in a chat completion."""
    thinking: StrictBool | None = None
    """With `messages`: as in a chat completion."""
    reasoning_effort: ReasoningEffort | None = None
    """With `messages`: as in a chat completion."""
    chat_template: Annotated[Any, Refused("the server uses only the chat template of the model")] = None
    chat_template_kwargs: Annotated[Any, Refused("send `thinking`")] = None
    media_io_kwargs: Annotated[Any, Only({})] = None
    mm_processor_kwargs: Annotated[Any, Only({})] = None

    _chat: ChatCompletionBody | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise contradiction("prompt", "must be given, or `messages` in its place, and not both")
        if self.messages is None:
            for name in _OF_CHATS:
                if getattr(self, name) is not None:
                    raise contradiction(name, "goes with `messages` alone")
            return self
        if self.continue_final_message and self.add_generation_prompt is not False:
            raise contradiction("continue_final_message", "needs `add_generation_prompt: false`")
        given = {name: value for name in _CHAT_FIELDS if (value := getattr(self, name)) is not None}
        self._chat = inner_body(ChatCompletionBody, given, lambda place: place)
        return self

    @property
    def chat(self) -> ChatCompletionBody | None:
        """Chat completion body with the conversation of this body. None: this body has a text instead."""
        return self._chat

    def request(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """Return the request that a model replica gets: fields of `gpu_workers.request.TokenizeRequest` as plain data.

        Args:
            prompt: Fields of the request that the router has made from the conversation, such as `messages` and
                `template_arguments`; not changed. Empty if the body has a text.
        """
        settings = {
            "add_special_tokens": self.messages is None if self.add_special_tokens is None else self.add_special_tokens,
            "add_generation_prompt": self.add_generation_prompt is not False,
            "continue_final_message": bool(self.continue_final_message),
            "return_token_strs": bool(self.return_token_strs),
        }
        prompt = {name: value for name, value in prompt.items() if name != "special_token_text"}
        return {"prompt": self.prompt, "messages": None, **prompt, **settings}


def text_request(text: str) -> dict[str, Any]:
    """Return a request to a model replica to tokenize a text, without special tokens such as a begin token.

    Args:
        text: The text.

    Returns:
        The fields of `gpu_workers.request.TokenizeRequest` as plain data.
    """
    return TokenizeBody.model_construct(prompt=text, add_special_tokens=False).request({})


def conversation_request(prompt: dict[str, Any]) -> dict[str, Any]:
    """Return a request to a model replica to tokenize the prompt of a conversation.

    Args:
        prompt: Fields of the request that the router has made from the conversation, such as `messages` and
            `template_arguments`; not changed.

    Returns:
        The fields of `gpu_workers.request.TokenizeRequest` as plain data.
    """
    return TokenizeBody.model_construct(messages=[]).request(prompt)


class DetokenizeBody(ClientModel):
    """Body of `POST /detokenize`: token ids to convert to text."""

    model: str | None = None
    """A name from `/v1/models`. Absent: the served model."""
    tokens: Annotated[list[TokenId], FailFast(), Field(max_length=MAX_PROMPT_TOKENS)]


class Tokens(BaseModel):
    """Response of `POST /tokenize`: the token ids (`tokens`) and their number (`count`).

    `max_model_len` is the maximum length of prompt and output together, in tokens. `token_strs` has the name of each
    token in the vocabulary. It is null unless the request sets `return_token_strs`.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = Field(None, description="Text form of each token, with `return_token_strs`.")


class Detokenized(BaseModel):
    """Response of `POST /detokenize`. `prompt` is the decoded text."""

    prompt: str

"""The bodies of `POST /tokenize` and `POST /detokenize`, and their answers. vLLM's names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictBool, model_validator

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
from deployments.openai.tool_bodies import MAX_TOOLS, Tool, ToolChoice
from grammar_workers.validation import FailFast

_CHAT_FIELDS = ("model", "messages", "tools", "tool_choice", "thinking", "reasoning_effort")
_OF_CHATS = (*_CHAT_FIELDS[2:], "add_generation_prompt", "continue_final_message")


class TokenizeBody(ClientModel):
    """Body of `POST /tokenize`: a text, or a conversation that the chat template renders."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}]})

    model: str | None = Field(None, description="A name from `/v1/models`; the served model when absent.")
    prompt: str | None = Field(None, description="Text, as for `/v1/completions`.")
    messages: Annotated[list[Message], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES)] | None = Field(
        None, description="A conversation, as for `/v1/chat/completions`; in place of `prompt`."
    )
    add_special_tokens: StrictBool | None = Field(
        None,
        description="Add the tokenizer's own special tokens. Default: with `prompt`, not with `messages`, whose "
        "template writes them.",
    )
    return_token_strs: StrictBool | None = Field(None, description="Tell each token's written form, too.")
    add_generation_prompt: StrictBool | None = Field(
        None, description="With `messages`: what the template puts before an answer; default true."
    )
    continue_final_message: StrictBool | None = Field(
        None, description="With `messages`: leave the last one open; needs `add_generation_prompt: false`."
    )
    tools: Annotated[list[Tool], FailFast(), Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="With `messages`: as in a chat completion."
    )
    tool_choice: ToolChoice | None = Field(None, description="With `messages`: as in a chat completion.")
    thinking: StrictBool | None = Field(None, description="With `messages`: as in a chat completion.")
    reasoning_effort: ReasoningEffort | None = Field(None, description="With `messages`: as in a chat completion.")
    chat_template: Annotated[Any, Refused("templates are programs; the model's own is used")] = None
    chat_template_kwargs: Annotated[Any, Refused("chat completions do not take it either; send `thinking`")] = None
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
        """The chat completion that has this prompt; None for a text."""
        return self._chat

    def request(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """`gpu_workers.request.TokenizeRequest` as plain data; `prompt`: its fields that depend on the model."""
        settings = {
            "add_special_tokens": self.messages is None if self.add_special_tokens is None else self.add_special_tokens,
            "add_generation_prompt": self.add_generation_prompt is not False,
            "continue_final_message": bool(self.continue_final_message),
            "return_token_strs": bool(self.return_token_strs),
        }
        prompt = {name: value for name, value in prompt.items() if name != "special_token_text"}
        return {"prompt": self.prompt, "messages": None, **prompt, **settings}


def text_request(text: str) -> dict[str, Any]:
    """The request for the tokens of a text, and no others."""
    return TokenizeBody.model_construct(prompt=text, add_special_tokens=False).request({})


def conversation_request(prompt: dict[str, Any]) -> dict[str, Any]:
    """The request for the tokens that a chat completion with these prompt fields begins with."""
    return TokenizeBody.model_construct(messages=[]).request(prompt)


class DetokenizeBody(ClientModel):
    """Body of `POST /detokenize`."""

    model: str | None = Field(None, description="A name from `/v1/models`; the served model when absent.")
    tokens: Annotated[list[TokenId], FailFast(), Field(max_length=MAX_PROMPT_TOKENS)]


class Tokens(BaseModel):
    """Answer of `POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = Field(None, description="With `return_token_strs`.")


class Detokenized(BaseModel):
    """Answer of `POST /detokenize`."""

    prompt: str

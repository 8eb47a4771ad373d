"""From a request's prompt or chat messages to token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from gpu_workers.request import GenerationRequest, RequestError, TokenizeRequest


def chat_template(tokenizer: Tokenizer) -> str | None:
    """The template of conversations with tools, as text; None where the model has none."""
    templates = tokenizer.chat_template
    return templates.get("tool_use", templates.get("default")) if isinstance(templates, dict) else templates


def generation_prompt(tokenizer: Tokenizer, **template_arguments: Any) -> str:
    """What the chat template puts between the last message and the answer; "" where it cannot be told."""
    messages = [{"role": "user", "content": "Hello"}]
    if tokenizer.chat_template is None:
        return ""

    def rendered(add: bool) -> str:
        arguments: dict[str, Any] = {"tokenize": False, "add_generation_prompt": add, **template_arguments}
        return str(tokenizer.apply_chat_template(messages, **arguments))

    try:
        without, whole = rendered(False), rendered(True)
    except Exception:  # a template is a program of the model's author and may raise anything
        return ""
    return whole[len(without) :] if whole.startswith(without) else ""


class PromptEncoder:
    """The tokenizer with its chat template. Thread-safe as far as the tokenizer is."""

    def __init__(self, tokenizer: Tokenizer, *, token_limit: int, max_length: int, longest_token: int) -> None:
        self._tokenizer = tokenizer
        self._token_limit = token_limit
        self._max_length = max_length
        # Names are at least as long as what their tokens are written as, special ones included.
        named = [len(name.encode()) for name in tokenizer.get_vocab()]
        self._most_bytes = max_length * max(longest_token, *named, 1)

    def encode(self, request: GenerationRequest) -> list[int]:
        """Token ids of the prompt, at least one and few enough to leave room for output. Raises RequestError."""
        param = "messages" if request.messages is not None else "prompt"
        if request.messages is not None:
            token_ids = render(self._tokenizer, request, check=self._check_bytes)
        elif isinstance(request.prompt, str):
            self._check_bytes(request.prompt)
            token_ids = self._tokenizer(request.prompt)["input_ids"]
        else:
            token_ids = list(request.prompt or ())
        if not token_ids:
            raise RequestError("the prompt has no tokens", code="invalid_prompt", param=param)
        if not all(0 <= token_id < self._token_limit for token_id in (*token_ids, *request.emitted_token_ids)):
            message = f"token ids must be between 0 and {self._token_limit - 1}"
            raise RequestError(message, code="invalid_prompt", param=param)
        if len(token_ids) >= self._max_length:
            raise self._too_long(len(token_ids), param)
        return token_ids

    def _check_bytes(self, text: str) -> None:
        """Raise RequestError for a text that no tokens few enough can spell, which takes long to tokenize."""
        if (size := len(text.encode(errors="replace"))) >= self._most_bytes:
            fewest = size * self._max_length // self._most_bytes
            raise self._too_long(fewest, None, f"; its {size} bytes are at least so many: shorten it")

    def _too_long(self, tokens: int, param: str | None, more: str = "") -> RequestError:
        # Clients recognize this error by these phrases of other servers, and shorten the conversation.
        message = (
            f"prompt is too long: {tokens} tokens > {self._max_length - 1} maximum, "
            f"as this model's maximum context length is {self._max_length} tokens{more}"
        )
        return RequestError(message, code="context_length_exceeded", param=param)


def render(
    tokenizer: Tokenizer,
    request: GenerationRequest | TokenizeRequest,
    *,
    add_special_tokens: bool = False,
    check: Callable[[str], None] = lambda text: None,
) -> list[int]:
    """Token ids of the messages. Templates write special tokens themselves. Raises RequestError, as does `check` of
    the rendered text.
    """
    if tokenizer.chat_template is None:
        raise RequestError("the model has no chat template", code="no_chat_template", param="messages")
    prefix = request.answer_prefix if request.add_generation_prompt else ""
    try:
        conversation: Any = request.messages
        tools: Any = request.tools
        rendered: Any = tokenizer.apply_chat_template(
            conversation,
            tools=tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tokenize=False,
            **request.template_arguments,
        )
    except Exception as error:  # a template is a program of the model's author and may raise anything
        message = f"the chat template refuses these messages: {error}"
        raise RequestError(message, code="invalid_messages", param="messages") from error
    check(rendered)
    return list(tokenizer(rendered + prefix, add_special_tokens=add_special_tokens)["input_ids"])


def tokenize(tokenizer: Tokenizer, request: TokenizeRequest) -> dict[str, Any]:
    """`tokens` of the prompt, however many, and `token_strs`, if they are wanted. Raises RequestError."""
    tokens: list[int]
    if request.messages is None:
        tokens = list(tokenizer(str(request.prompt), add_special_tokens=request.add_special_tokens)["input_ids"])
    else:
        tokens = render(tokenizer, request, add_special_tokens=request.add_special_tokens)
    written = tokenizer.convert_ids_to_tokens(tokens) if request.return_token_strs else None
    return {"tokens": tokens, "token_strs": written}


def detokenize(tokenizer: Tokenizer, tokens: list[int], token_limit: int) -> str:
    """The text of token ids, special tokens by their names. Raises RequestError."""
    if any(token >= token_limit for token in tokens):
        message = f"token ids must be between 0 and {token_limit - 1}"
        raise RequestError(message, code="invalid_token_id", param="tokens")
    return str(tokenizer.decode(tokens))

"""Tokenization of prompts and chat messages, with the model's chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from gpu_workers.request import GenerationRequest, RequestError, TokenizeRequest, wrong_token_id


def chat_template(tokenizer: Tokenizer) -> str | None:
    """Return the source text of the model's chat template. If the model has several, return the one for tools.

    Args:
        tokenizer: Tokenizer of the model.

    Returns:
        The template (Jinja); None if the model has no chat template.
    """
    templates = tokenizer.chat_template
    return templates.get("tool_use", templates.get("default")) if isinstance(templates, dict) else templates


def generation_prompt(tokenizer: Tokenizer, **template_arguments: Any) -> str:
    """Return the text that the chat template adds to open an assistant message.

    Args:
        tokenizer: Tokenizer of the model.
        **template_arguments: Arguments of the chat template.

    Returns:
        The text, which may span several lines. It is empty if the model has no chat template, if the template fails, or
        if the template does not add the text at the end.
    """
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
    """Tokenizes the prompts of requests and checks their length. As thread-safe as the tokenizer.

    Args:
        tokenizer: Tokenizer of the model, with its chat template.
        token_limit: One past the largest token ID.
        max_model_len: Maximum number of tokens of a sequence, prompt and output together.
        longest_token: Length of the longest token, in bytes.
    """

    def __init__(self, tokenizer: Tokenizer, *, token_limit: int, max_model_len: int, longest_token: int) -> None:
        self._tokenizer = tokenizer
        self._token_limit = token_limit
        self._max_model_len = max_model_len
        # The name of a token has at least as many bytes as its text; this holds for special tokens, too.
        named = [len(name.encode()) for name in tokenizer.get_vocab()]
        self._most_bytes = max_model_len * max(longest_token, *named, 1)

    def encode(self, request: GenerationRequest) -> list[int]:
        """Return the token IDs of the prompt of a request.

        Args:
            request: The request, with a prompt (text or token IDs) or chat messages.

        Returns:
            At least one token ID, and fewer than `max_model_len`, so that there is room for an output token.

        Raises:
            RequestError: The prompt has no tokens, or there is an unknown token ID in the prompt or in
                `emitted_token_ids` (code `invalid_prompt`). The prompt is too long (`context_length_exceeded`). The
                model has no chat template (`no_chat_template`), or the template rejects the messages
                (`invalid_messages`).
        """
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
        if (wrong := wrong_token_id((*token_ids, *request.emitted_token_ids), self._token_limit)) is not None:
            raise RequestError(wrong, code="invalid_prompt", param=param)
        if len(token_ids) >= self._max_model_len:
            raise self._too_long(len(token_ids), param)
        return token_ids

    def _check_bytes(self, text: str) -> None:
        """Raise RequestError if `text` needs too many tokens by its length alone, before the slow tokenization."""
        if (size := len(text.encode(errors="replace"))) >= self._most_bytes:
            fewest = size * self._max_model_len // self._most_bytes
            raise self._too_long(fewest, None, f"; a text of {size} bytes has at least {fewest} tokens")

    def _too_long(self, tokens: int, param: str | None, more: str = "") -> RequestError:
        # Clients recognize this error by these phrases of other servers, and shorten the conversation.
        message = (
            f"prompt is too long: {tokens} tokens > {self._max_model_len - 1} maximum, "
            f"as this model's maximum context length is {self._max_model_len} tokens{more}"
        )
        return RequestError(message, code="context_length_exceeded", param=param)


def render(
    tokenizer: Tokenizer,
    request: GenerationRequest | TokenizeRequest,
    *,
    add_special_tokens: bool = False,
    check: Callable[[str], None] = lambda text: None,
) -> list[int]:
    """Render chat messages to text with the chat template, and return the token IDs of the text.

    Args:
        tokenizer: Tokenizer of the model.
        request: The request, with messages. Its `answer_prefix` is appended if the template opens an assistant message.
        add_special_tokens: If true, the tokenizer adds special tokens. Templates usually contain them already.
        check: Called with the rendered text before tokenization. It may raise RequestError.

    Returns:
        The token IDs.

    Raises:
        RequestError: The model has no chat template (code `no_chat_template`), or the template rejects the messages
            (`invalid_messages`).
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
    """Tokenize a prompt or chat messages of any length.

    RequestError is raised if the model has no chat template for the messages (code `no_chat_template`), or if the
    template rejects them (`invalid_messages`).

    Args:
        tokenizer: Tokenizer of the model.
        request: The request, with a prompt or messages.

    Returns:
        A dict with `tokens` (the token IDs) and `token_strs` (the tokens as the tokenizer writes them, such as `Ġthe`;
        None unless the request has `return_token_strs`).
    """
    tokens: list[int]
    if request.messages is None:
        tokens = list(tokenizer(str(request.prompt), add_special_tokens=request.add_special_tokens)["input_ids"])
    else:
        tokens = render(tokenizer, request, add_special_tokens=request.add_special_tokens)
    written = tokenizer.convert_ids_to_tokens(tokens) if request.return_token_strs else None
    return {"tokens": tokens, "token_strs": written}


def detokenize(tokenizer: Tokenizer, tokens: list[int], token_limit: int) -> str:
    """Return the text of token IDs. Special tokens are written as their names.

    Args:
        tokenizer: Tokenizer of the model.
        tokens: The token IDs.
        token_limit: One past the largest token ID.

    Raises:
        RequestError: A token ID is negative, or `token_limit` or above (code `invalid_token_id`).
    """
    if (wrong := wrong_token_id(tokens, token_limit)) is not None:
        raise RequestError(wrong, code="invalid_token_id", param="tokens")
    return str(tokenizer.decode(tokens))

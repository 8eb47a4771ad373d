"""From a request's prompt or chat messages to token ids."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from gpu_workers.request import GenerationRequest, RequestError


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

    def __init__(self, tokenizer: Tokenizer, *, token_limit: int, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._token_limit = token_limit
        self._max_length = max_length

    def encode(self, request: GenerationRequest) -> list[int]:
        """Token ids of the prompt, at least one and few enough to leave room for output. Raises RequestError."""
        param = "messages" if request.messages is not None else "prompt"
        if request.messages is not None:
            token_ids = self._apply_template(request)
        elif isinstance(request.prompt, str):
            token_ids = self._tokenizer(request.prompt)["input_ids"]
        else:
            token_ids = list(request.prompt or ())
        if not token_ids:
            raise RequestError("the prompt has no tokens", code="invalid_prompt", param=param)
        if not all(0 <= token_id < self._token_limit for token_id in (*token_ids, *request.emitted_token_ids)):
            message = f"token ids must be between 0 and {self._token_limit - 1}"
            raise RequestError(message, code="invalid_prompt", param=param)
        if len(token_ids) >= self._max_length:
            message = f"the prompt has {len(token_ids)} tokens; at most {self._max_length - 1} fit with any output"
            raise RequestError(message, code="context_length_exceeded", param=param)
        return token_ids

    def _apply_template(self, request: GenerationRequest) -> list[int]:
        if self._tokenizer.chat_template is None:
            raise RequestError("the model has no chat template", code="no_chat_template", param="messages")
        try:
            conversation: Any = request.messages
            tools: Any = request.tools
            rendered: Any = self._tokenizer.apply_chat_template(
                conversation,
                tools=tools,
                add_generation_prompt=True,
                return_dict=False,
                tokenize=not request.answer_prefix,
                **request.template_arguments,
            )
        except Exception as error:  # a template is a program of the model's author and may raise anything
            message = f"the chat template refuses these messages: {error}"
            raise RequestError(message, code="invalid_messages", param="messages") from error
        if not request.answer_prefix:
            return list(rendered)
        # Templates write special tokens themselves.
        return list(self._tokenizer(rendered + request.answer_prefix, add_special_tokens=False)["input_ids"])

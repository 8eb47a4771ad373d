"""vLLM's HTTP handlers: what is refused is a 400 before a stream begins, not an event of the stream."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from typing import Any

from deployments.vllm.clients import Clients, ahead, asked_for, look_ahead, refusals
from deployments.vllm.wrapping import wraps
from grammar_workers.logs import get_logger

logger = get_logger("vllm.turnstile")

_ENTRYPOINTS = "vllm.entrypoints"
_HANDLERS = (
    ("openai.chat_completion.serving", "OpenAIServingChat", "create_chat_completion"),
    ("openai.completion.serving", "OpenAIServingCompletion", "create_completion"),
    ("openai.responses.serving", "OpenAIServingResponses", "create_responses"),
)
"""Modules, classes and methods that answer with a stream if the request has `stream`."""


@functools.cache
def wrap_handlers(clients: Clients) -> None:
    """Once, in a process that serves. Where vLLM has not one of them, streams are refused as vLLM does it."""
    for module, name, method in _HANDLERS:
        if (handler := _handler(module, name)) is not None:
            _wrap_stream(handler, method)
    if (responses := _handler(*_HANDLERS[-1][:2])) is not None:
        _wrap_turns(responses, clients)
    if (messages := _handler("anthropic.serving", "AnthropicServingMessages")) is not None:
        _wrap_messages(messages)


def _handler(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"{_ENTRYPOINTS}.{module}"), name)
    except (ImportError, AttributeError) as error:
        logger.warning("vLLM has no %s: what it refuses is an event of the stream (%s)", name, error)
        return None


def _wrap_stream(handler: Any, method: str) -> None:
    @wraps(handler, method)
    async def create(original: Any, self: Any, request: Any, *arguments: Any, **keywords: Any) -> Any:
        _refuse_beams(self.engine_client.vllm_config, request)
        token = ahead.set([] if request.stream else None)
        try:
            answer = await original(self, request, *arguments, **keywords)
            if inspect.isasyncgen(answer):
                await _refused_ahead(answer)
        finally:
            ahead.reset(token)
        return answer


async def _refused_ahead(stream: Any) -> None:
    """Waits for what the stream will ask for. Raises what refuses it."""
    try:
        for begun in ahead.get() or ():
            with refusals():
                await asyncio.wrap_future(begun)
    except BaseException:
        await stream.aclose()
        raise


def _refuse_beams(vllm_config: Any, request: Any) -> None:
    """vLLM's beam search over HTTP leaves every constraint out."""
    if not getattr(request, "use_beam_search", False) or not asked_for(vllm_config):
        return
    wanted = getattr(request, "response_format", None)
    demanded = getattr(request, "tool_choice", None) not in (None, "none", "auto")
    if demanded or request.structured_outputs or (wanted is not None and wanted.type != "text"):
        from vllm.exceptions import VLLMValidationError

        message = "use_beam_search: vLLM's server constrains no beams; leave out this field, or the constraint"
        raise VLLMValidationError(message, parameter="use_beam_search")


def _wrap_turns(handler: Any, clients: Clients) -> None:
    """A response's turns call the engine when the stream has begun."""

    @wraps(handler, "_generate_with_builtin_tools")
    def generate(original: Any, self: Any, *arguments: Any, **keywords: Any) -> Any:
        look_ahead(clients, self.engine_client.vllm_config, keywords.get("sampling_params"))
        return original(self, *arguments, **keywords)


def _wrap_messages(handler: Any) -> None:
    """vLLM's route logs a traceback for whatever this raises, a client's own fault included."""

    @wraps(handler, "create_messages")
    async def create_messages(original: Any, self: Any, *arguments: Any, **keywords: Any) -> Any:
        from vllm.exceptions import GracefulHTTPError, VLLMClientError

        try:
            return await original(self, *arguments, **keywords)
        except (VLLMClientError, GracefulHTTPError) as error:
            return self.create_error_response(error)

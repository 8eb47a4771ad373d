"""Wrappers of vLLM's HTTP handlers, so that a streaming request gets HTTP 400 if its constraint is rejected.

Without the wrappers, vLLM begins the stream with status 200, and reports the rejection as an event of the stream.
"""

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
# Modules, classes and methods of the handlers that respond with a stream if the request has `stream`.
_HANDLERS = (
    ("openai.chat_completion.serving", "OpenAIServingChat", "create_chat_completion"),
    ("openai.completion.serving", "OpenAIServingCompletion", "create_completion"),
    ("openai.responses.serving", "OpenAIServingResponses", "create_responses"),
)
# Module and function that compile the structural tags of requests with XGrammar, to check them.
_PROTOCOL, _TAG_CHECK = "generate.base.protocol", "validate_structural_tag_payload"


@functools.cache
def wrap_handlers(clients: Clients) -> None:
    """Wrap vLLM's HTTP handlers of chat completions, completions, responses and messages in this process, in place.

    A streaming handler then begins its stream only after the constraint is compiled. Structural tags are no longer
    checked with XGrammar. If this vLLM lacks a handler, a warning is logged, and rejections in that handler remain
    events of the stream. A second call has no effect.

    Args:
        clients: Object that compiles the constraints of this process.
    """
    for module, name, method in _HANDLERS:
        if (handler := _handler(module, name, "rejections arrive as events of the stream")) is not None:
            _wrap_stream(handler, method)
            if method == "create_responses":
                _wrap_turns(handler, clients)
    if (messages := _handler("anthropic.serving", "AnthropicServingMessages", "tracebacks are logged")) is not None:
        _wrap_messages(messages)
    if _handler(_PROTOCOL, _TAG_CHECK, "XGrammar checks structural tags, too") is not None:
        _skip_tag_check(importlib.import_module(f"{_ENTRYPOINTS}.{_PROTOCOL}"))


def _handler(module: str, name: str, otherwise: str) -> Any:
    """Return a class or function of vLLM. If it is missing, log what happens without it, and return None."""
    try:
        return getattr(importlib.import_module(f"{_ENTRYPOINTS}.{module}"), name)
    except (ImportError, AttributeError) as error:
        logger.warning("vLLM has no such handler, %s: handler=%s error=%s", otherwise, name, error)
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
    """Wait for the admissions that the stream depends on. Raises the rejection and closes the stream."""
    try:
        for begun in ahead.get() or ():
            with refusals():
                await asyncio.wrap_future(begun)
    except BaseException:
        await stream.aclose()
        raise


def _refuse_beams(vllm_config: Any, request: Any) -> None:
    """Reject a constraint together with a beam search: vLLM's beam search over HTTP ignores constraints."""
    if not getattr(request, "use_beam_search", False) or not asked_for(vllm_config):
        return
    wanted = getattr(request, "response_format", None)
    demanded = getattr(request, "tool_choice", None) not in (None, "none", "auto")
    if demanded or request.structured_outputs or (wanted is not None and wanted.type != "text"):
        from vllm.exceptions import VLLMValidationError

        message = "use_beam_search: vLLM's server constrains no beams; leave out this field, or the constraint"
        raise VLLMValidationError(message, parameter="use_beam_search")


def _wrap_turns(handler: Any, clients: Clients) -> None:
    """Begin the admission early: the turns of a response call the engine only after the stream has begun."""

    @wraps(handler, "_generate_with_builtin_tools")
    def generate(original: Any, self: Any, *arguments: Any, **keywords: Any) -> Any:
        look_ahead(clients, self.engine_client.vllm_config, keywords.get("sampling_params"))
        return original(self, *arguments, **keywords)


def _skip_tag_check(protocol: Any) -> None:
    """Leave the check of structural tags to the admission.

    vLLM's own check blocks the event loop, for seconds if a schema is large. It also rejects tags that only Turnstile
    supports, without a reason.
    """

    @wraps(protocol, _TAG_CHECK)
    def check(_original: Any, _payload: Any, *, parameter: str) -> None:
        del parameter


def _wrap_messages(handler: Any) -> None:
    """Return rejections as error responses, because vLLM's route logs a traceback for every exception."""

    @wraps(handler, "create_messages")
    async def create_messages(original: Any, self: Any, *arguments: Any, **keywords: Any) -> Any:
        from vllm.exceptions import GracefulHTTPError, VLLMClientError

        try:
            return await original(self, *arguments, **keywords)
        except (VLLMClientError, GracefulHTTPError) as error:
            return self.create_error_response(error)

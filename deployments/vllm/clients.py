"""Compilation of the constraints of requests to the vLLM engines of this process, before the requests enter vLLM.

To *admit* a request means to compile its constraint, and to put a *reference* in place of the constraint. A reference
is a text with the key of the compiled grammar. Requests to `AsyncLLM` are admitted without blocking its event loop. All
other requests are admitted in `InputProcessor.process_inputs`, which blocks. The parameters of the caller are not
changed, because vLLM gets a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import weakref
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from deployments.vllm.log import log_as_vllm
from deployments.vllm.settings import BACKEND, PluginSettings
from deployments.vllm.speculation import forced_drafts
from deployments.vllm.wrapping import wraps
from gpu_workers.request import RequestError
from grammar_workers.errors import GrammarError
from grammar_workers.logs import get_logger

if TYPE_CHECKING:
    from deployments.vllm.admission import Admission
    from gpu_workers.vllm.backend import MaskBackend

logger = get_logger("vllm.turnstile")

_MOST_BEAM_GRAMMARS = 64

# Admissions that a streaming handler waits for before its stream begins. None outside of a streaming handler.
ahead: ContextVar[list[Future[str]] | None] = ContextVar("ahead", default=None)

# `max_tokens` of the beam search that runs. vLLM requests the grammars of its beams without it.
_beam_tokens: ContextVar[int | None] = ContextVar("beam_tokens", default=None)


def asked_for(vllm_config: Any) -> bool:
    """Return whether Turnstile computes the masks of a vLLM engine.

    The result is True if the structured outputs backend of the engine is `outlines`, because Turnstile replaces this
    backend.

    Args:
        vllm_config: vLLM's `VllmConfig` of the engine.
    """
    return bool(vllm_config.structured_outputs_config.backend == BACKEND)


class Clients:
    """Compiles the constraints of requests to all vLLM engines of this process that use Turnstile's masks.

    In the request, a *reference* (text with the key of the compiled grammar) takes the place of the constraint. Engines
    with equal tokenizers share one `Admission`, the object that compiles and returns references.

    Args:
        settings: Settings of the plugin, from environment variables.
    """

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._admissions: dict[tuple[str, bool], Admission] = {}
        self._admitted: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def start(self, vllm_config: Any) -> Admission:
        """Start the compilers for the model of an engine. The method returns before they are warm.

        Before that, the method compiles the kernels (numba functions) that the kernel cache lacks. ValueError is raised
        if vLLM's configuration does not allow the setting `TURNSTILE_FORCED_DRAFTS`.

        Args:
            vllm_config: vLLM's `VllmConfig` of the engine. If an earlier engine has an equal tokenizer, the engines
                share the compilers.

        Returns:
            The object that compiles constraints for the engine. Its method `wait_ready` waits for the compilers.
        """
        from deployments.vllm.admission import Admission
        from grammar_workers.kernel_progress import compile_logged

        log_as_vllm()
        forced_drafts(
            vllm_config, self._settings
        )  # an error here reaches the user, one in the engine core only its log
        # Without this, compile processes and the engine core compile the kernels at the same time, without a message.
        compile_logged(logger.info)
        tokenizer, trusted = key = _tokenizer(vllm_config)
        if key not in self._admissions:
            settings = self._settings.model_copy(update={"trust_remote_code": trusted})
            self._admissions[key] = Admission(tokenizer, settings)
        return self._admissions[key]

    def begin(self, vllm_config: Any, params: Any) -> Future[str] | None:
        """Start to compile and check the constraint of a request, without waiting.

        Args:
            vllm_config: vLLM's `VllmConfig` of the engine.
            params: vLLM's `SamplingParams` or `PoolingParams` of the request; not changed.

        Returns:
            A future of the reference (text with the key of the compiled grammar), as from `Admission.submit`. None if
            nothing must be compiled: the request has no constraint, the constraint is a reference that this object has
            created, or another backend computes the masks.
        """
        constraint = getattr(params, "structured_outputs", None)
        if constraint is None or not asked_for(vllm_config) or constraint.all_constraints_none():
            return None
        if self.is_admitted(constraint):
            return None
        return self._admission(vllm_config).submit(constraint, params.min_tokens, params.max_tokens)

    async def admitted(self, vllm_config: Any, params: Any) -> Any:
        """Compile the constraint of a request, and return parameters with a reference in place of the constraint.

        The event loop is not blocked. VLLMClientError (4xx) is raised if the constraint is rejected. An error with
        status 503 is raised if no compiler is available.

        Args:
            vllm_config: vLLM's `VllmConfig` of the engine.
            params: vLLM's parameters of the request; not changed.

        Returns:
            A copy of `params` whose constraint is the reference (text with the key of the compiled grammar). If nothing
            needs compilation (see `begin`), `params` itself.
        """
        begun = self.begin(vllm_config, params)
        if begun is None:
            return params
        with refusals():
            return self._refer(params, await asyncio.wrap_future(begun))

    def admitted_now(self, vllm_config: Any, params: Any) -> Any:
        """Compile the constraint of a request, and return parameters with a reference in place of the constraint.

        The method blocks until the constraint is compiled. VLLMClientError (4xx) is raised if the constraint is
        rejected. An error with status 503 is raised if no compiler is available.

        Args:
            vllm_config: vLLM's `VllmConfig` of the engine.
            params: vLLM's parameters of the request; not changed.

        Returns:
            A copy of `params` whose constraint is the reference (text with the key of the compiled grammar). If nothing
            needs compilation (see `begin`), `params` itself.
        """
        begun = self.begin(vllm_config, params)
        if begun is None:
            return params
        with refusals():
            return self._refer(params, begun.result())

    def is_admitted(self, constraint: Any) -> bool:
        """Return whether a constraint is a reference (to a compiled grammar) that this object has created.

        Args:
            constraint: vLLM's `StructuredOutputsParams`. Objects are compared by identity, so the result for a copy is
                False.
        """
        return self._admitted.get(id(constraint)) is constraint

    def beam_backend(self, vllm_config: Any, tokens: int) -> MaskBackend:
        """Return the mask backend for vLLM's beam search (`LLM.beam_search`).

        The beam search passes the constraint itself to the backend, for each beam at each step. Other requests pass a
        reference to a compiled grammar.

        Args:
            vllm_config: vLLM's `VllmConfig` of the engine.
            tokens: Width V of the logits.

        Returns:
            A backend that compiles constraints. It caches the references to the compiled grammars of 64 constraints.
        """
        from gpu_workers.vllm.backend import GrammarLoader, MaskBackend

        admission, max_tokens = self._admission(vllm_config), _beam_tokens.get()

        @functools.lru_cache(_MOST_BEAM_GRAMMARS)
        def refer(request_type: Any, text: str) -> str:
            with refusals():
                return admission.submit(_constraint(request_type.name, text), 0, max_tokens).result()

        return MaskBackend(
            admission.vocabulary, GrammarLoader(admission.vocabulary, self._settings.store), tokens, refer
        )

    def _admission(self, vllm_config: Any) -> Admission:
        return self._admissions[_tokenizer(vllm_config)]

    def _refer(self, params: Any, reference: str) -> Any:
        """Return a copy of `params` with `reference` in place of its constraint."""
        from vllm.sampling_params import StructuredOutputsParams

        referring = StructuredOutputsParams(grammar=reference)
        referring._backend = params.structured_outputs._backend
        self._admitted[id(referring)] = referring
        changed = copy.copy(params)
        changed.structured_outputs = referring
        return changed


def _tokenizer(vllm_config: Any) -> tuple[str, bool]:
    """Return the key of a vocabulary: the tokenizer, and whether it may run code of the model."""
    return str(vllm_config.model_config.tokenizer), bool(vllm_config.model_config.trust_remote_code)


def _constraint(kind: str, text: str) -> Any:
    """Return the `StructuredOutputsParams` that stand behind vLLM's key of a constraint."""
    import json

    from vllm.sampling_params import StructuredOutputsParams

    value = {"JSON_OBJECT": lambda: True, "CHOICE": lambda: json.loads(text)}.get(kind, lambda: text)()
    return StructuredOutputsParams(**{kind.lower(): value})


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Return a context that converts Turnstile's errors about a constraint to vLLM's errors with an HTTP status.

    A CompilerBusyError becomes an error with status 503.

    Raises:
        VLLMNotFoundError: 404, for a RequestError with this status (unknown grammar key).
        VLLMValidationError: 400, for every other RequestError or GrammarError. The message starts with the error code.
    """
    from deployments.vllm.compilers import CompilerBusyError

    try:
        yield
    except CompilerBusyError as error:
        raise _unavailable_error()(str(error)) from error
    except (RequestError, GrammarError) as error:
        from vllm.exceptions import VLLMNotFoundError, VLLMValidationError

        if isinstance(error, RequestError) and error.status == HTTPStatus.NOT_FOUND:
            raise VLLMNotFoundError(f"{error.code}: {error}") from error
        raise VLLMValidationError(f"{error.code}: {error}", parameter="structured_outputs") from error


@functools.cache
def _unavailable_error() -> type[Exception]:
    from vllm.exceptions import GracefulHTTPError

    class UnavailableError(GracefulHTTPError):
        """Error with the status under vLLM's name, and under the name that Ray Serve LLM reads."""

        def __init__(self, message: str) -> None:
            super().__init__(message, HTTPStatus.SERVICE_UNAVAILABLE)
            self.status_code = HTTPStatus.SERVICE_UNAVAILABLE

    return UnavailableError


def wrap_clients(clients: Clients) -> None:
    """Change vLLM's classes in this process, so that the constraint of each request is compiled first.

    The engine client (`AsyncLLM`), its input processor, and the validation function of outlines are wrapped in place.

    Args:
        clients: Object that compiles the constraints of all engines of this process.
    """
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.structured_output import backend_outlines

    _wrap_process_inputs(InputProcessor, clients)
    _wrap_add_request(AsyncLLM, clients)

    @wraps(AsyncLLM, "generate")
    def generate_ahead(
        original: Any, self: Any, prompt: Any, sampling_params: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        look_ahead(clients, self.vllm_config, sampling_params)
        return original(self, prompt, sampling_params, *arguments, **keywords)

    @wraps(backend_outlines, "validate_structured_output_request_outlines")
    def validate_other(original: Any, params: Any) -> None:
        if params.structured_outputs is None or not clients.is_admitted(params.structured_outputs):
            original(params)


def wrap_beam_search() -> None:
    """Wrap vLLM's `LLM.beam_search`, so that `Clients.beam_backend` can read `max_tokens` of the current search.

    vLLM's class is changed in place. A second call has no effect.
    """
    from vllm import LLM

    @wraps(LLM, "beam_search")
    def beam_search(original: Any, self: Any, prompts: Any, params: Any, *arguments: Any, **keywords: Any) -> Any:
        before = _beam_tokens.set(params.max_tokens)
        try:
            return original(self, prompts, params, *arguments, **keywords)
        finally:
            _beam_tokens.reset(before)


def look_ahead(clients: Clients, vllm_config: Any, params: Any) -> None:
    """Start to compile the constraint of a request before its HTTP stream begins, so that a rejection can be a 400.

    The future of the compilation is appended to the list in the context variable `ahead`. The HTTP handler waits for
    all futures in this list before it begins the stream. When the request reaches the engine later, the compiled
    grammar is in the store. Outside a streaming handler (`ahead` is None), the function does nothing.

    Args:
        clients: Object that compiles the constraints of this process.
        vllm_config: vLLM's `VllmConfig` of the engine.
        params: vLLM's parameters of the request; not changed.
    """
    if (waiting := ahead.get()) is not None and (begun := clients.begin(vllm_config, params)) is not None:
        waiting.append(begun)


def _wrap_process_inputs(processor: Any, clients: Clients) -> None:
    @wraps(processor, "process_inputs")
    def process_inputs(
        original: Any, self: Any, request_id: str, prompt: Any, params: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        if keywords.get("resumable"):
            _refuse_streamed_input(self.vllm_config, params)
        else:
            params = clients.admitted_now(self.vllm_config, params)
        return original(self, request_id, prompt, params, *arguments, **keywords)


def _wrap_add_request(engine: Any, clients: Clients) -> None:
    @wraps(engine, "add_request")
    async def add_request(
        original: Any, self: Any, request_id: str, prompt: Any, params: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        if isinstance(prompt, AsyncGenerator):
            _refuse_streamed_input(self.vllm_config, params)
        admitted = await clients.admitted(self.vllm_config, params)
        if admitted is not params and _thinks_by_itself(self.vllm_config, keywords):
            keywords["reasoning_ended"] = True
        return await original(self, request_id, prompt, admitted, *arguments, **keywords)


def _refuse_streamed_input(vllm_config: Any, params: Any) -> None:
    if asked_for(vllm_config) and getattr(params, "structured_outputs", None) is not None:
        from vllm.exceptions import VLLMValidationError

        message = "structured_outputs: Turnstile constrains no request whose input is streamed; send the input at once"
        raise VLLMValidationError(message, parameter="structured_outputs")


def _thinks_by_itself(vllm_config: Any, keywords: dict[str, Any]) -> bool:
    """Return whether vLLM would wait for the end of reasoning outside of chats (vLLM issue 57726).

    vLLM's chat handlers always pass an argument about reasoning if there is a reasoning parser.
    """
    if not vllm_config.structured_outputs_config.reasoning_parser:
        return False
    return keywords.get("reasoning_ended") is None and keywords.get("reasoning_parser_kwargs") is None

"""Requests on their way into an engine of this process: a grammar becomes a reference before vLLM looks at it.

Every way leads through `InputProcessor.process_inputs`, so a request is admitted there at the latest, synchronously.
`AsyncLLM` admits before that, without keeping its event loop. The caller's parameters are never changed: vLLM gets a
copy. What compiles is imported where it is used (see `installation`).
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

ahead: ContextVar[list[Future[str]] | None] = ContextVar("ahead", default=None)
"""Admissions begun by a handler that answers with a stream, which it waits for before the stream begins."""

_beam_tokens: ContextVar[int | None] = ContextVar("beam_tokens", default=None)
"""`max_tokens` of the beam search that runs: vLLM asks for the grammars of its beams without it."""


def asked_for(vllm_config: Any) -> bool:
    """Return whether this engine was started with our masks: without the flag nothing of vLLM changes."""
    return bool(vllm_config.structured_outputs_config.backend == BACKEND)


class Clients:
    """The engines of this process that have our masks, and who compiles for each tokenizer."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._admissions: dict[tuple[str, bool], Admission] = {}
        self._admitted: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def start(self, vllm_config: Any) -> None:
        """Starts compilers for the model; `wait_ready` ends when they are warm. Raises ValueError."""
        from deployments.kernel_progress import compile_logged
        from deployments.vllm.admission import Admission

        log_as_vllm()
        forced_drafts(vllm_config, self._settings)  # here the user reads it, in the engine core only its log
        # Compile processes and the engine core would do it by themselves, at the same time and without a word.
        compile_logged(logger)
        tokenizer, trusted = key = _tokenizer(vllm_config)
        if key not in self._admissions:
            settings = self._settings.model_copy(update={"trust_remote_code": trusted})
            self._admissions[key] = Admission(tokenizer, settings)

    def wait_ready(self, vllm_config: Any) -> None:
        self._admission(vllm_config).wait_ready()

    def begin(self, vllm_config: Any, params: Any) -> Future[str] | None:
        """Begins to compile what `params` ask for; None: nothing, or not from us, or it has been done."""
        constraint = getattr(params, "structured_outputs", None)
        if constraint is None or not asked_for(vllm_config) or constraint.all_constraints_none():
            return None
        if self.is_admitted(constraint):
            return None
        return self._admission(vllm_config).submit(constraint, params.min_tokens, params.max_tokens)

    async def admitted(self, vllm_config: Any, params: Any) -> Any:
        """`params` as the engine takes them. Raises VLLMClientError, a 4xx, and a 503."""
        begun = self.begin(vllm_config, params)
        if begun is None:
            return params
        with refusals():
            return self._refer(params, await asyncio.wrap_future(begun))

    def admitted_now(self, vllm_config: Any, params: Any) -> Any:
        """Admit a request, for callers that wait."""
        begun = self.begin(vllm_config, params)
        if begun is None:
            return params
        with refusals():
            return self._refer(params, begun.result())

    def is_admitted(self, constraint: Any) -> bool:
        return self._admitted.get(id(constraint)) is constraint

    def beam_backend(self, vllm_config: Any, tokens: int) -> MaskBackend:
        """For vLLM's beam search, which asks for the grammar of each beam at each step, by the constraint itself."""
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
        """A copy of `params` with `reference` for its constraint."""
        from vllm.sampling_params import StructuredOutputsParams

        referring = StructuredOutputsParams(grammar=reference)
        referring._backend = params.structured_outputs._backend
        self._admitted[id(referring)] = referring
        changed = copy.copy(params)
        changed.structured_outputs = referring
        return changed


def _tokenizer(vllm_config: Any) -> tuple[str, bool]:
    """Key of a vocabulary: the tokenizer, and whether it may be the model's own code."""
    return str(vllm_config.model_config.tokenizer), bool(vllm_config.model_config.trust_remote_code)


def _constraint(kind: str, text: str) -> Any:
    """`StructuredOutputsParams` behind vLLM's key of a constraint."""
    import json

    from vllm.sampling_params import StructuredOutputsParams

    value = {"JSON_OBJECT": lambda: True, "CHOICE": lambda: json.loads(text)}.get(kind, lambda: text)()
    return StructuredOutputsParams(**{kind.lower(): value})


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """A grammar's refusal becomes the client's 400, with its code and place; nobody who compiles, a 503."""
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
        """The status under vLLM's name, and under the one that Ray Serve LLM asks for."""

        def __init__(self, message: str) -> None:
            super().__init__(message, HTTPStatus.SERVICE_UNAVAILABLE)
            self.status_code = HTTPStatus.SERVICE_UNAVAILABLE

    return UnavailableError


def wrap_clients(clients: Clients) -> None:
    """vLLM's engine clients, its processor of inputs, and the check of outlines that this calls."""
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
    """Keep `max_tokens` of a beam search for `Clients.beam_backend`."""
    from vllm import LLM

    @wraps(LLM, "beam_search")
    def beam_search(original: Any, self: Any, prompts: Any, params: Any, *arguments: Any, **keywords: Any) -> Any:
        before = _beam_tokens.set(params.max_tokens)
        try:
            return original(self, prompts, params, *arguments, **keywords)
        finally:
            _beam_tokens.reset(before)


def look_ahead(clients: Clients, vllm_config: Any, params: Any) -> None:
    """Begins an admission that a handler with a stream waits for; who waits for it later finds it done."""
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

    Its handlers of chats say something about thoughts wherever there is a reasoning parser.
    """
    if not vllm_config.structured_outputs_config.reasoning_parser:
        return False
    return keywords.get("reasoning_ended") is None and keywords.get("reasoning_parser_kwargs") is None

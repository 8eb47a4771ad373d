"""Puts Turnstile in the place of outlines, in memory.

    TURNSTILE_VLLM=1 vllm serve MODEL --structured-outputs-config '{"backend": "outlines"}'

vLLM has no registry of backends (RFC #50966), but imports the class and the validation function of outlines by name
when it needs them. More places are wrapped: the engine client, so that a grammar is compiled, or refused with 400,
before its request enters the engine; the engine's manager, so that everything is warm before the first request; and the
choice of the registry that `/metrics` shows (`metrics`).

vLLM loads this module in each of its processes, workers included. What makes masks or compiles (numba, Ray) is imported
where it is used, because a worker needs none of it, and without Triton a vLLM 0.32 does not start beside llvmlite.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from deployments.version import version
from deployments.vllm import metrics
from deployments.vllm.interface import Methods, UnknownInterfaceError, check_methods
from deployments.vllm.settings import BACKEND, PluginSettings, read_settings
from deployments.vllm.speculation import forced_drafts, propose_forced_tokens
from gpu_workers.request import RequestError
from grammar_workers.errors import GrammarError

if TYPE_CHECKING:
    from deployments.vllm.admission import Admission
    from gpu_workers.vllm.backend import MaskBackend

logger = logging.getLogger("vllm.turnstile")

_METHODS: Methods = {
    "StructuredOutputGrammar": {
        "accept_tokens": ("self", "request_id", "tokens"),
        "validate_tokens": ("self", "tokens"),
        "rollback": ("self", "num_tokens"),
        "fill_bitmask": ("self", "bitmask", "batch_index"),
        "is_terminated": ("self",),
        "reset": ("self",),
    },
    "StructuredOutputBackend": {
        "compile_grammar": ("self", "request_type", "grammar_spec", "stop_token_ids"),
        "allocate_token_bitmask": ("self", "max_num_seqs"),
        "destroy": ("self",),
    },
}


def install() -> None:
    """In each process of vLLM, once. Raises UnknownInterfaceError, ValueError for a wrong setting."""
    import vllm
    from vllm.v1.structured_output import StructuredOutputManager, backend_outlines, backend_types

    check_interface(backend_types, vllm.__version__)
    if is_installed():
        return
    settings = read_settings()
    backend_outlines.OutlinesBackend = functools.partial(_backend, settings)
    metrics.open_folder()
    clients = _Clients(settings)
    backend_outlines.validate_structured_output_request_outlines = clients.validate
    _wrap_manager(StructuredOutputManager, settings)
    _wrap_client(clients)
    logger.info(
        "Turnstile %s makes the masks of vLLM %s wherever its structured outputs backend is outlines",
        version(),
        vllm.__version__,
    )


def is_installed() -> bool:
    """Whether this process of vLLM has our masks."""
    from vllm.v1.structured_output import backend_outlines

    return isinstance(backend_outlines.OutlinesBackend, functools.partial)


def check_interface(backend_types: Any, release: str) -> None:
    """Raises UnknownInterfaceError naming what vLLM's module of base classes has that we do not know, or has not."""
    for name, methods in _METHODS.items():
        found = getattr(backend_types, name, None)
        abstract: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
        if abstract != methods.keys():
            different = ", ".join(sorted(abstract ^ methods.keys()))
            raise UnknownInterfaceError(f"vLLM {release} is not supported: {name} differs in {different}")
    check_methods(backend_types, _METHODS, f"vLLM {release}")


def _backend(settings: PluginSettings, vllm_config: Any, *, tokenizer: Any, vocab_size: int) -> MaskBackend:
    """In place of `OutlinesBackend(...)`."""
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

    from deployments.kernel_progress import compile_logged
    from gpu_workers.vllm.backend import GrammarLoader, MaskBackend
    from gpu_workers.vllm.grammar import RequestGrammar
    from grammar_workers.vocabulary.vocabulary import load_vocabulary

    StructuredOutputGrammar.register(RequestGrammar)
    compile_logged(logger)  # an engine core on another node than the API process
    trusted = vllm_config.model_config.trust_remote_code
    vocabulary = load_vocabulary(_model(vllm_config), trust_remote_code=trusted)
    if forced_drafts(vllm_config, settings):
        from vllm.v1.core.sched.scheduler import Scheduler

        propose_forced_tokens(Scheduler, settings)
    return MaskBackend(vocabulary, GrammarLoader(vocabulary, settings.store), vocab_size)


def _model(vllm_config: Any) -> str:
    return str(vllm_config.model_config.tokenizer)


def _asked_for(vllm_config: Any) -> bool:
    return vllm_config.structured_outputs_config.backend == BACKEND


def _wrap_manager(manager: Any, settings: PluginSettings) -> None:
    """The backend is there, warm, when the manager is: vLLM would make it at the first structured request.

    `min_tokens` is the grammar's: vLLM's processor, in the worker, counts no drafts and forbids end tokens behind them.
    In the API process it stays, where stop strings wait for it.
    """
    original, original_grammar = manager.__init__, manager.grammar_init

    @functools.wraps(original)
    def start(self: Any, vllm_config: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, vllm_config, *arguments, **keywords)
        if _asked_for(vllm_config) and not vllm_config.model_config.skip_tokenizer_init:
            tokens = vllm_config.model_config.get_vocab_size()
            self.backend = _backend(settings, vllm_config, tokenizer=self.tokenizer, vocab_size=tokens)

    @functools.wraps(original_grammar)
    def begin_grammar(self: Any, request: Any) -> None:
        if _asked_for(self.vllm_config) and request.structured_output_request is not None:
            request.sampling_params.min_tokens = 0
        original_grammar(self, request)

    manager.__init__, manager.grammar_init = start, begin_grammar


class _Clients:
    """Requests on their way into the engine, in the process that takes them in."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._admission: Admission | None = None

    def start(self, vllm_config: Any) -> None:
        """Starts compilers for the model; `wait_ready` ends when they are warm. Raises ValueError."""
        from deployments.kernel_progress import compile_logged
        from deployments.vllm.admission import Admission

        forced_drafts(vllm_config, self._settings)  # here the user reads it, in the engine core only its log
        # Compile processes and the engine core would do it by themselves, at the same time and without a word.
        compile_logged(logger)
        if self._admission is None:
            trusted = {"trust_remote_code": vllm_config.model_config.trust_remote_code}
            self._admission = Admission(_model(vllm_config), self._settings.model_copy(update=trusted))

    def wait_ready(self) -> None:
        assert self._admission is not None
        self._admission.wait_ready()

    def validate(self, params: Any) -> None:
        """In place of outlines' function: called synchronously, in a coroutine after `prepare` has been."""
        from deployments.vllm.requests import names_artifact

        if params.structured_outputs is None:
            return
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            if names_artifact(params.structured_outputs):
                return
            raise AssertionError(
                "a structured request took a way into the engine that Turnstile's plugin does not know"
            )
        with _refusals():
            self._refer(params, self._begin(params).result())

    async def prepare(self, params: Any) -> None:
        """Compiles what `params` ask for and refers to it. Raises VLLMClientError, a 4xx, and a 503."""
        constraint = getattr(params, "structured_outputs", None)
        if constraint is None or constraint.all_constraints_none():
            return
        with _refusals():
            self._refer(params, await asyncio.wrap_future(self._begin(params)))

    def _begin(self, params: Any) -> Future[str]:
        assert self._admission is not None
        return self._admission.submit(params.structured_outputs, params.min_tokens, params.max_tokens)

    @staticmethod
    def _refer(params: Any, reference: str) -> None:
        from vllm.sampling_params import StructuredOutputsParams

        referring = StructuredOutputsParams(grammar=reference)
        referring._backend = params.structured_outputs._backend
        params.structured_outputs = referring


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """A grammar's refusal becomes the client's 400, with its code and place; nobody who compiles, a 503."""
    from deployments.vllm.compilers import CompilerBusyError

    try:
        yield
    except CompilerBusyError as error:
        raise _unavailable_error()(str(error)) from error
    except RequestError as error:
        from vllm.exceptions import VLLMNotFoundError, VLLMValidationError

        if error.status == HTTPStatus.NOT_FOUND:
            raise VLLMNotFoundError(f"{error.code}: {error}") from error
        raise VLLMValidationError(f"{error.code}: {error}", parameter="structured_outputs") from error
    except GrammarError as error:
        from vllm.exceptions import VLLMValidationError

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


def _wrap_client(clients: _Clients) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.llm_engine import LLMEngine

    for engine in (AsyncLLM, LLMEngine):
        _wrap_start(engine, clients)
    original = AsyncLLM.add_request

    @functools.wraps(original)
    async def add_request(
        self: Any, request_id: str, prompt: Any, params: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        if _asked_for(self.vllm_config):
            await clients.prepare(params)
        return await original(self, request_id, prompt, params, *arguments, **keywords)

    AsyncLLM.add_request = add_request


def _warn(vllm_config: Any) -> None:
    """The variable alone changes nothing, which nobody would see in the answers."""
    backend = vllm_config.structured_outputs_config.backend
    flag = f"--structured-outputs-config '{json.dumps({'backend': BACKEND})}'"
    logger.warning(
        "TURNSTILE_VLLM is set, but Turnstile makes no masks here: vLLM's structured outputs backend is %s. "
        "To have Turnstile's, add %s",
        backend,
        flag,
    )


def _wrap_start(engine: Any, clients: _Clients) -> None:
    """Compilers start before the model is loaded, and are warm before the engine is ready."""
    original = engine.__init__

    @functools.wraps(original)
    def start(self: Any, vllm_config: Any, *arguments: Any, **keywords: Any) -> None:
        if not _asked_for(vllm_config):
            _warn(vllm_config)
            original(self, vllm_config, *arguments, **keywords)
            return
        clients.start(vllm_config)
        metrics.export()
        original(self, vllm_config, *arguments, **keywords)
        clients.wait_ready()

    engine.__init__ = start

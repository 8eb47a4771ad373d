"""Installation of Turnstile in place of outlines, by changes to vLLM's modules in memory.

    TURNSTILE_VLLM=1 vllm serve MODEL --structured-outputs-config '{"backend": "outlines"}'

vLLM has no registry of structured outputs backends (RFC #50966). But vLLM imports the backend class and the validation
function of outlines by name when it needs them. Therefore, Turnstile replaces both. It also wraps other parts of vLLM:

- The engine client compiles the constraint of a request before the request enters the engine, or rejects it with 400.
- The HTTP handlers begin a stream only after the constraint is compiled (module `handlers`).
- The structured output manager loads the vocabulary before the first request.
- The function that selects the registry of `/metrics` adds the metrics of masks (module `metrics`).
"""

from __future__ import annotations

import functools
import json
from typing import Any

from deployments.version import version
from deployments.vllm import metrics
from deployments.vllm.clients import Clients, asked_for, wrap_beam_search, wrap_clients
from deployments.vllm.handlers import wrap_handlers
from deployments.vllm.interface import SUPPORTED_VLLM, Methods, UnknownInterfaceError, check_methods
from deployments.vllm.log import log_as_vllm
from deployments.vllm.settings import BACKEND, PluginSettings, read_settings
from deployments.vllm.speculation import forced_drafts, propose_forced_tokens
from deployments.vllm.wrapping import wraps
from gpu_workers.vllm.backend import GrammarLoader, MaskBackend
from gpu_workers.vllm.grammar import RequestGrammar
from gpu_workers.vllm.timings import share_timings
from grammar_workers.kernel_progress import compile_logged
from grammar_workers.logs import get_logger
from grammar_workers.vocabulary.vocabulary import load_vocabulary

logger = get_logger("vllm.turnstile")

# vLLM's name for the use of an engine by its server.
_SERVER = "OPENAI_API_SERVER"

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
    """Replace vLLM's structured outputs backend `outlines` with Turnstile in this process, by changing vLLM's modules.

    UnknownInterfaceError is raised if this version of vLLM is not supported. ValueError is raised if an environment
    variable of the plugin is invalid. A second call has no effect.
    """
    import vllm
    from vllm.v1.structured_output import StructuredOutputManager, backend_outlines, backend_types

    check_interface(backend_types, vllm.__version__)
    if is_installed():
        return
    settings = read_settings()
    backend_types.StructuredOutputGrammar.register(RequestGrammar)
    share_timings()
    clients = Clients(settings)
    backend_outlines.OutlinesBackend = functools.partial(_beam_backend, clients, backend_outlines.OutlinesBackend)
    _wrap_manager(StructuredOutputManager, settings)
    wrap_clients(clients)
    _wrap_starts(clients)
    logger.info(
        "Turnstile %s makes the masks of vLLM %s wherever its structured outputs backend is outlines",
        version(),
        vllm.__version__,
    )


def is_installed() -> bool:
    """Return whether `install` has replaced vLLM's backend `outlines` with Turnstile in this process."""
    from vllm.v1.structured_output import backend_outlines

    return isinstance(backend_outlines.OutlinesBackend, functools.partial)


def check_interface(backend_types: Any, release: str) -> None:
    """Check that vLLM's base classes have exactly the abstract methods that Turnstile implements.

    Args:
        backend_types: vLLM's module `vllm.v1.structured_output.backend_types`, with the base classes of backends and
            grammars.
        release: Version of vLLM, for the error message.

    Raises:
        UnknownInterfaceError: A class has other abstract methods or parameters. The message names the methods.
    """
    engine = f"vLLM {release} (Turnstile supports {SUPPORTED_VLLM})"
    for name, methods in _METHODS.items():
        found = getattr(backend_types, name, None)
        abstract: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
        if abstract != methods.keys():
            different = ", ".join(sorted(abstract ^ methods.keys()))
            raise UnknownInterfaceError(f"{engine} is not supported: {name} differs in {different}")
    check_methods(backend_types, _METHODS, engine)


def _backend(settings: PluginSettings, vllm_config: Any) -> MaskBackend:
    """Return the backend of an engine core."""
    compile_logged(logger.info)  # an engine core on another node than the API process
    model = vllm_config.model_config
    vocabulary = load_vocabulary(str(model.tokenizer), trust_remote_code=model.trust_remote_code)
    if forced_drafts(vllm_config, settings):
        from vllm.v1.core.sched.scheduler import Scheduler

        propose_forced_tokens(Scheduler, settings)
    return MaskBackend(vocabulary, GrammarLoader(vocabulary, settings.store), model.get_vocab_size())


def _beam_backend(clients: Clients, outlines: Any, vllm_config: Any, *, tokenizer: Any, vocab_size: int) -> Any:
    """Return the backend for a beam search. vLLM calls this function in place of the class of outlines.

    An engine without Turnstile's masks gets outlines, which the backend `auto` may select.
    """
    if not asked_for(vllm_config):
        return outlines(vllm_config, tokenizer=tokenizer, vocab_size=vocab_size)
    return clients.beam_backend(vllm_config, vocab_size)


def _wrap_manager(manager: Any, settings: PluginSettings) -> None:
    """Create the backend, warm, together with vLLM's manager. vLLM would create it at the first structured request.

    The grammar enforces `min_tokens` in the engine core. vLLM's processor, in the worker, does not count drafts, and
    would mask end tokens after them. In the API process `min_tokens` is kept, because stop strings depend on it.
    """

    @wraps(manager, "__init__")
    def start(original: Any, self: Any, vllm_config: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, vllm_config, *arguments, **keywords)
        if asked_for(vllm_config) and not vllm_config.model_config.skip_tokenizer_init:
            log_as_vllm()
            self.backend = _backend(settings, vllm_config)

    @wraps(manager, "grammar_init")
    def begin_grammar(original: Any, self: Any, request: Any) -> None:
        if asked_for(self.vllm_config) and request.structured_output_request is not None:
            request.sampling_params.min_tokens = 0
        original(self, request)


def _warn(vllm_config: Any) -> None:
    """Warn that the variable alone changes nothing, because responses do not show that."""
    backend = vllm_config.structured_outputs_config.backend
    flag = f"--structured-outputs-config '{json.dumps({'backend': BACKEND})}'"
    logger.warning(
        "TURNSTILE_VLLM is set, but Turnstile makes no masks here: vLLM's structured outputs backend is %s. "
        "To have Turnstile's, add %s",
        backend,
        flag,
    )


def _wrap_starts(clients: Clients) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.llm_engine import LLMEngine

    for engine in (AsyncLLM, LLMEngine):
        _wrap_start(engine, clients)

    @wraps(EngineArgs, "create_engine_config")
    def create_engine_config(
        original: Any, self: Any, usage_context: Any = None, *arguments: Any, **keywords: Any
    ) -> Any:
        vllm_config = original(self, usage_context, *arguments, **keywords)
        _refuse_rust(vllm_config, usage_context)
        return vllm_config


def _refuse_rust(vllm_config: Any, usage_context: Any) -> None:
    """Raise ValueError for a server whose requests enter the engine core without passing through Python."""
    from vllm import envs

    if envs.VLLM_USE_RUST_FRONTEND and asked_for(vllm_config) and getattr(usage_context, "name", "") == _SERVER:
        raise ValueError("Turnstile's masks need vLLM's Python front end: unset VLLM_USE_RUST_FRONTEND")


def _wrap_start(engine: Any, clients: Clients) -> None:
    """Start compilers before the model is loaded, and wait until they are warm before the engine is ready."""

    @wraps(engine, "__init__")
    def start(original: Any, self: Any, vllm_config: Any, *arguments: Any, **keywords: Any) -> None:
        if not asked_for(vllm_config):
            _warn(vllm_config)
            original(self, vllm_config, *arguments, **keywords)
            return
        admission = clients.start(vllm_config)
        metrics.export()
        if hasattr(self, "generate"):  # the client of a server
            wrap_handlers(clients)
        else:
            wrap_beam_search()
        original(self, vllm_config, *arguments, **keywords)
        admission.wait_ready()

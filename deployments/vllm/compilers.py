"""Grammar compilers for vLLM's API process: own compile processes, a Turnstile server, or a Ray Serve deployment.

Each compiler puts artifacts (compiled grammars) into the store. vLLM's EngineCore loads the artifacts from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

import httpx
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, RayServeException

from deployments.routing.retries import REPLICA_LOST, Retries
from deployments.routing.tiers import COMPILER
from deployments.vllm.requests import EXTENSION
from deployments.vllm.settings import PluginSettings
from grammar_workers.artifacts.artifact import is_key
from grammar_workers.artifacts.store import open_store
from grammar_workers.errors import GrammarError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.keys import grammar_key
from grammar_workers.options import GrammarOptions
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.job import job
from grammar_workers.service.pool import LOAD_COMPILER, CompilePool
from grammar_workers.service.service import CompileService, Observer
from grammar_workers.specification import GrammarSpecification
from grammar_workers.vocabulary.vocabulary import load_vocabulary

_REQUEST_TIMEOUT_S = 150.0
_CONNECT_TIMEOUT_S = 5.0
# Seconds for a deployment that starts together with vLLM. It loads the vocabulary, and may have to wait for a node.
_START_TIMEOUT_S = 300.0
# Grammar options that a body of `/v1/grammars` may have.
_OPTIONS_OF_REQUESTS = ("on_unsupported",)


class CompilerBusyError(RuntimeError):
    """No grammar compiler is available now: its queue is full, or it does not respond. A later attempt may succeed."""


class Compiler(Protocol):
    """Interface of a grammar compiler, which compiles specifications (constraints) and stores the results.

    The methods run on an event loop that is used for compilations only.
    """

    async def wait_ready(self) -> None:
        """Wait until the compiler is ready. Call this method before `compile`."""

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        """Compile a specification, and put the artifact (compiled grammar) into the store.

        GrammarError is raised if the specification is rejected, and CompilerBusyError if no compiler is available.

        Args:
            specification: Specification to compile.
            options: Fields of `GrammarOptions`, by name, that replace the compiler's default options for this grammar.

        Returns:
            The grammar key under which the store has the artifact.
        """


class Spacing:
    """Computes short delays for requests whose grammars become ready at about the same time.

    Without delays, the prompts of all these requests would enter one step of the engine, and this step would delay
    every running stream. With the delays, the interval between two requests at the engine is at least half of the
    interval between their arrivals.
    """

    def __init__(self) -> None:
        self._came = self._left = 0.0

    def delay(self, came: float, ready: float) -> float:
        """Return the delay of the next request after its grammar is ready, in seconds (0 or more).

        Call this method once for each request, in the order in which their grammars become ready.

        Args:
            came: Time at which the request arrived, in seconds of `time.monotonic`.
            ready: Time at which the grammar of the request became ready, in seconds of `time.monotonic`.
        """
        self._left = max(ready, self._left + max(0.0, came - self._came) / 2)
        self._came = max(came, self._came)
        return self._left - ready


class OwnCompiler:
    """Grammar compiler that uses child processes of vLLM's API process. The constructor starts the processes.

    Args:
        model: Folder or Hugging Face ID of the model or of its tokenizer.
        settings: Settings of the plugin: number of processes, limits on time, grammar options and store.
    """

    def __init__(self, model: str, settings: PluginSettings) -> None:
        self._options = settings.grammar_options
        self._settings = settings
        self._spacing = Spacing()
        self._pool = CompilePool(
            LOAD_COMPILER,
            {"model": model, "trust_remote_code": settings.trust_remote_code},
            processes=settings.compile_processes,
            timeout_s=settings.compile_timeout_s,
            cpu_s=settings.compile_cpu_s,
            # vLLM's processes have no nice value, and on a CPU they wait for each other in busy loops.
            idle=False,
        )

    async def wait_ready(self) -> None:
        """Wait until the child processes are warm, and open the store of grammars. Call this before `compile`."""
        self._fingerprint = await asyncio.to_thread(self._pool.wait_ready)
        store = open_store(self._settings.store, self._fingerprint)
        # vLLM has metrics of its own.
        self._service = CompileService(self._pool, store, Observer())

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        """Compile a specification in a child process, unless the store already has the artifact (compiled grammar).

        GrammarError is raised if the specification is rejected.

        Args:
            specification: Specification to compile.
            options: Fields of `GrammarOptions`, by name, that replace the plugin's options for this grammar.

        Returns:
            The grammar key under which the store has the artifact.

        Raises:
            CompilerBusyError: Too many compilations wait.
        """
        came = time.monotonic()
        # Large schemas take milliseconds to normalize.
        all_options = self._options.model_copy(update=dict(options))
        key = grammar_key(specification, self._fingerprint, all_options)
        asked = job(specification.model_dump(by_alias=True), all_options.model_dump())
        try:
            found = await self._service.artifact(key, asked, "")
        except QueueFullError as error:
            raise CompilerBusyError("too many grammars wait to be compiled") from error
        if found is not None and found.source == "compiled":
            await asyncio.sleep(self._spacing.delay(came, time.monotonic()))
        return key


class RemoteCompiler:
    """Grammar compiler that sends specifications to a Turnstile server by HTTP.

    The server must serve a model with the vocabulary of this engine, and must use the same store of compiled grammars.

    Args:
        settings: Settings of the plugin. `url` must be set. `api_key` is sent as a bearer token. None: no token is
            sent.
    """

    def __init__(self, settings: PluginSettings) -> None:
        headers = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
        assert settings.url is not None
        self._url = settings.url.rstrip("/") + "/v1/grammars"
        timeout = httpx.Timeout(_REQUEST_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout)

    async def wait_ready(self) -> None:
        """Return at once. The first `compile` connects to the server."""

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        """Compile a specification on the server, with `POST /v1/grammars`.

        Args:
            specification: Specification to compile.
            options: Fields of `GrammarOptions`, by name, for this grammar. Only `on_unsupported` is allowed.

        Returns:
            The grammar key under which the store has the artifact (compiled grammar).

        Raises:
            UnsupportedFeatureError: `options` has another option. The server sets other options for all requests.
            LimitExceededError: The server has responded that the specification is too large (413).
            CompilerBusyError: The server does not respond, or responds with another error than 400 and 413.
            GrammarError.from_dict: `GrammarError`: the server has rejected the specification (400).
        """
        asked = {name: value for name, value in options.items() if name in _OPTIONS_OF_REQUESTS}
        for name in options.keys() - asked.keys():
            message = f"{name}: the Turnstile server that compiles here has this option for all requests alike"
            raise UnsupportedFeatureError(message, pointer=f"/json/{EXTENSION}/{name}")
        sent = {"specification": specification.model_dump(by_alias=True), "wait": True, **asked}
        try:
            answer = await self._client.post(self._url, json=sent)
            body = answer.json()
        except (httpx.HTTPError, ValueError) as failure:
            raise CompilerBusyError(f"{self._url} did not answer: {failure!r}") from failure
        if not isinstance(body, dict):
            body = {}
        if answer.is_success and is_key(str(body.get("key"))):
            return str(body["key"])
        error = body.get("error")
        message = str(error.get("message")) if isinstance(error, dict) else answer.reason_phrase
        if answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            raise LimitExceededError(message)
        if answer.status_code == httpx.codes.BAD_REQUEST and isinstance(error, dict):
            raise GrammarError.from_dict({**error, "code": error.get("code"), "message": message})
        raise CompilerBusyError(f"{self._url} answered {answer.status_code}: {message}")


class HandleCompiler:
    """Grammar compiler that calls a deployment `GrammarCompiler` of this Ray cluster with a Ray Serve handle.

    Args:
        model: Folder or Hugging Face ID of the model or of its tokenizer.
        settings: Settings of the plugin. `compiler_deployment` (name of the deployment) must be set. `compiler_app` is
            the Ray Serve application of the deployment; None: the application of this replica.
    """

    def __init__(self, model: str, settings: PluginSettings) -> None:
        self._model = model
        self._settings = settings
        self._name = f"the deployment {settings.compiler_deployment}"
        self._retries = Retries()

    async def wait_ready(self) -> None:
        """Wait until the deployment responds, and check its vocabulary. Call this method before `compile`.

        CompilerBusyError is raised if the deployment does not respond within 5 minutes.

        Raises:
            ValueError: The deployment compiles for another vocabulary than the model's.
        """
        info = await self._info()
        self._fingerprint = info["vocabulary_fingerprint"]
        self._options = GrammarOptions.model_validate(info["options"])
        vocabulary = await asyncio.to_thread(
            load_vocabulary, self._model, trust_remote_code=self._settings.trust_remote_code
        )
        if vocabulary.fingerprint != self._fingerprint:
            raise ValueError(f"{self._name} compiles for another vocabulary than that of {self._model}")
        self._store = open_store(self._settings.store, self._fingerprint)

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        """Compile a specification in the deployment, unless the store already has the artifact (compiled grammar).

        If the deployment has put the artifact into files of another node, the method copies the artifact into the store
        of this node. CompilerBusyError is raised if the deployment is full or does not respond.

        Args:
            specification: Specification to compile.
            options: Fields of `GrammarOptions`, by name, that replace the deployment's options for this grammar.

        Returns:
            The grammar key under which the store has the artifact.

        Raises:
            GrammarError.from_dict: `GrammarError`: the deployment has rejected the specification.
        """
        key = grammar_key(specification, self._fingerprint, self._options.model_copy(update=dict(options)))
        if await self._is_stored(key):
            return key
        plain = job(specification.model_dump(by_alias=True), options)
        answer = await self._answer("compile", key, plain)
        if answer["status"] == "refused":
            raise GrammarError.from_dict(answer["error"])
        if not await self._is_stored(key):
            # A file store belongs to one node, and the compiler may run on another node.
            data = await self._answer("get", key, plain)
            await asyncio.to_thread(self._store.put, key, data)
        return key

    async def _info(self) -> dict[str, Any]:
        assert self._settings.compiler_deployment is not None
        failure: Exception | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                while True:
                    try:
                        self._handle = serve.get_deployment_handle(
                            self._settings.compiler_deployment, self._settings.compiler_app
                        )
                        info: dict[str, Any] = await self._handle.info.remote()
                        return info
                    except (RayServeException, RayActorError) as error:
                        failure = error
                        await asyncio.sleep(1.0)
        raise CompilerBusyError(f"{self._name} did not answer within {_START_TIMEOUT_S:.0f} s") from failure

    async def _is_stored(self, key: str) -> bool:
        return await asyncio.to_thread(self._store.get, key) is not None

    async def _answer(self, method: str, key: str, specification: dict[str, Any]) -> Any:
        """Return the response of the replica whose caches have `key`. Raises CompilerBusyError."""
        call = getattr(self._handle.options(session_id=key), method)
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                return await self._retries.answer(COMPILER, lambda: call.remote(key, specification, ""))
        except BackPressureError as error:
            raise CompilerBusyError("too many grammars wait to be compiled") from error
        except (TimeoutError, RayServeException, *REPLICA_LOST) as error:
            raise CompilerBusyError(f"{self._name} did not answer: {error!r}") from error


class NoCompiler:
    """Compiler that rejects every specification, for engines that accept only grammars compiled in advance."""

    async def wait_ready(self) -> None:
        """Return at once, because nothing is compiled."""

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        """Raise UnsupportedFeatureError, because this engine accepts only keys of compiled grammars."""
        raise UnsupportedFeatureError("this engine takes grammars that were compiled before, by their key")


def compiler_for(model: str, settings: PluginSettings) -> Compiler:
    """Create the grammar compiler that the settings of the plugin select.

    Args:
        model: Folder or Hugging Face ID of the model or of its tokenizer.
        settings: Settings of the plugin. If `url` is set, the result is a `RemoteCompiler`. Otherwise, if
            `compiler_deployment` is set, it is a `HandleCompiler`. Otherwise it is an `OwnCompiler`, or a `NoCompiler`
            if `compile_processes` is 0.

    Returns:
        The compiler. Await its method `wait_ready` before `compile`.
    """
    if settings.url is not None:
        return RemoteCompiler(settings)
    if settings.compiler_deployment is not None:
        return HandleCompiler(model, settings)
    return OwnCompiler(model, settings) if settings.compile_processes else NoCompiler()

"""Who compiles for vLLM's API process: its own processes, a Turnstile server, a deployment of the same Ray cluster.

All put artifacts into the store that the EngineCore reads.
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
from grammar_workers.service.pool import CompilePool
from grammar_workers.service.service import CompileService
from grammar_workers.specification import GrammarSpecification
from grammar_workers.vocabulary.vocabulary import load_vocabulary

_REQUEST_TIMEOUT_S = 150.0
_CONNECT_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 300.0
"""A deployment that starts beside ours loads the vocabulary first, and may have to wait for a node."""
_OPTIONS_OF_REQUESTS = ("on_unsupported",)
"""Those that a body of `/v1/grammars` has."""
_LOAD_COMPILER = "grammar_workers.service.worker:load_compiler_with_options"


class CompilerBusyError(RuntimeError):
    """Nobody could compile now; another time they might."""


class Compiler(Protocol):
    """Compiles specifications into the store; both run on a loop that serves nothing but compilations."""

    async def wait_ready(self) -> None:
        """Until the first request would not have to wait for anything but its own compilation."""

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        """The key under which the artifact is in the store now. Raises GrammarError, CompilerBusyError.

        `options`: fields of `GrammarOptions` in which this grammar differs from the others.
        """


class _NoMetrics:
    """Nobody looks at figures of compilations here: vLLM's metrics are its own."""

    def compiled(self, queue_seconds: float, compile_seconds: float, artifact_bytes: int, states: int) -> None: ...

    def refused(self, code: str) -> None: ...

    def waited(self) -> None: ...


class Spacing:
    """When those may leave who came one by one and became ready together: half as far apart as they came, or farther.

    Compile processes get the CPU that vLLM leaves, so several compilations may end in a row. Their prompts would enter
    one step of the engine, which every stream waits for. Who came together leaves together. Nobody waits longer than
    half as long as somebody before was held up, and a queue dissolves as fast as it grew.
    """

    def __init__(self) -> None:
        self._came = self._left = 0.0

    def delay(self, came: float, ready: float) -> float:
        """Seconds that the next has to wait, who came and is ready at these times by one clock (s, positive)."""
        self._left = max(ready, self._left + max(0.0, came - self._came) / 2)
        self._came = max(came, self._came)
        return self._left - ready


class OwnCompiler:
    """Compile processes of this process, with the budgets of Turnstile's grammar tier."""

    def __init__(self, model: str, settings: PluginSettings) -> None:
        self._options = settings.grammar_options
        self._settings = settings
        self._spacing = Spacing()
        self._pool = CompilePool(
            _LOAD_COMPILER,
            {"model": model, "trust_remote_code": settings.trust_remote_code},
            processes=settings.compile_processes,
            timeout_s=settings.compile_timeout_s,
            cpu_s=settings.compile_cpu_s,
            # vLLM's processes have no nice value, and on a CPU they wait for each other in a loop that fills a core.
            idle=False,
        )

    async def wait_ready(self) -> None:
        self._fingerprint = await asyncio.to_thread(self._pool.wait_ready)
        store = open_store(self._settings.store, self._fingerprint)
        self._service = CompileService(self._pool, store, self._settings.compile_timeout_s, _NoMetrics())

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        came = time.monotonic()
        # Large schemas take milliseconds to normalise.
        all_options = self._options.model_copy(update=dict(options))
        key = grammar_key(specification, self._fingerprint, all_options)
        job = {"specification": specification.model_dump(by_alias=True), "options": all_options.model_dump()}
        try:
            found = await self._service.artifact(key, job, "")
        except QueueFullError as error:
            raise CompilerBusyError("too many grammars wait to be compiled") from error
        if found is not None and found.source == "compiled":
            await asyncio.sleep(self._spacing.delay(came, time.monotonic()))
        return key


class RemoteCompiler:
    """A Turnstile server with the same model, vocabulary and store."""

    def __init__(self, settings: PluginSettings) -> None:
        headers = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
        assert settings.url is not None
        self._url = settings.url.rstrip("/") + "/v1/grammars"
        timeout = httpx.Timeout(_REQUEST_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout)

    async def wait_ready(self) -> None: ...

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
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
    """A `GrammarCompiler` of this Ray cluster by its Serve handle, in this replica's application if none is named."""

    def __init__(self, model: str, settings: PluginSettings) -> None:
        self._model = model
        self._settings = settings
        self._name = f"the deployment {settings.compiler_deployment}"
        self._retries = Retries()

    async def wait_ready(self) -> None:
        """Raises CompilerBusyError where it does not answer, ValueError where it compiles for another vocabulary."""
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
        key = grammar_key(specification, self._fingerprint, self._options.model_copy(update=dict(options)))
        if await self._is_stored(key):
            return key
        plain = job(specification.model_dump(by_alias=True), options)
        answer = await self._answer("compile", key, plain)
        if answer["status"] == "refused":
            raise GrammarError.from_dict(answer["error"])
        if not await self._is_stored(key):
            # Stores of files are those of a node, and the compiler's node may be another one.
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
        """Of the replica whose caches know `key`. Raises CompilerBusyError."""
        call = getattr(self._handle.options(session_id=key), method)
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                return await self._retries.answer(COMPILER, lambda: call.remote(key, specification, ""))
        except BackPressureError as error:
            raise CompilerBusyError("too many grammars wait to be compiled") from error
        except (TimeoutError, RayServeException, *REPLICA_LOST) as error:
            raise CompilerBusyError(f"{self._name} did not answer: {error!r}") from error


class NoCompiler:
    """For who compiles before: a request that brings no `turnstile:KEY` is refused."""

    async def wait_ready(self) -> None: ...

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        raise UnsupportedFeatureError("this engine takes grammars that were compiled before, by their key")


def compiler_for(model: str, settings: PluginSettings) -> Compiler:
    """The compiler that `settings` ask for."""
    if settings.url is not None:
        return RemoteCompiler(settings)
    if settings.compiler_deployment is not None:
        return HandleCompiler(model, settings)
    return OwnCompiler(model, settings) if settings.compile_processes else NoCompiler()

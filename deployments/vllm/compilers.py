"""Who compiles for vLLM's API process: its own processes, or a Turnstile server; both put artifacts into the store."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, Protocol

import httpx

from deployments.vllm.settings import PluginSettings
from grammar_workers.artifacts.store import open_store
from grammar_workers.errors import GrammarError, UnsupportedFeatureError
from grammar_workers.keys import grammar_key
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.pool import LOAD_COMPILER, CompilePool
from grammar_workers.service.service import CompileService
from grammar_workers.specification import GrammarSpecification

_REQUEST_TIMEOUT_S = 150.0


class CompilerBusyError(RuntimeError):
    """Nobody could compile now; another time they might."""


class Compiler(Protocol):
    """Compiles specifications into the store; `compile` runs on the loop of `CompilerThread`."""

    def wait_ready(self) -> None:
        """Until the first request would not have to wait for anything but its own compilation."""

    async def compile(self, specification: GrammarSpecification) -> str:
        """The key under which the artifact is in the store now. Raises GrammarError, CompilerBusyError."""


class _NoMetrics:
    """Nobody looks at figures of compilations here: vLLM's metrics are its own."""

    def compiled(self, queue_seconds: float, compile_seconds: float, artifact_bytes: int, states: int) -> None: ...

    def refused(self, code: str) -> None: ...

    def waited(self) -> None: ...


class OwnCompiler:
    """Compile processes of this process, with the budgets of Turnstile's grammar tier."""

    def __init__(self, model: str, settings: PluginSettings) -> None:
        self._options = settings.grammar_options
        self._settings = settings
        self._pool = CompilePool(
            LOAD_COMPILER,
            {"model": model, "options": self._options.model_dump()},
            processes=settings.compile_processes,
            timeout_s=settings.compile_timeout_s,
        )

    def wait_ready(self) -> None:
        self._fingerprint = self._pool.wait_ready()
        store = open_store(self._settings.store, self._fingerprint)
        self._service = CompileService(self._pool, store, self._settings.compile_timeout_s, _NoMetrics())

    async def compile(self, specification: GrammarSpecification) -> str:
        # Large schemas take milliseconds to normalise; this loop serves nothing but compilations.
        key = grammar_key(specification, self._fingerprint, self._options)
        try:
            await self._service.artifact(key, specification.model_dump(by_alias=True), "")
        except QueueFullError as error:
            raise CompilerBusyError("too many grammars wait to be compiled") from error
        return key


class RemoteCompiler:
    """A Turnstile server with the same model, vocabulary and store."""

    def __init__(self, settings: PluginSettings) -> None:
        headers = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
        assert settings.url is not None
        self._url = settings.url.rstrip("/") + "/v1/grammars"
        self._client = httpx.AsyncClient(headers=headers, timeout=_REQUEST_TIMEOUT_S)

    def wait_ready(self) -> None: ...

    async def compile(self, specification: GrammarSpecification) -> str:
        try:
            answer = await self._client.post(
                self._url, json={"specification": specification.model_dump(by_alias=True), "wait": True}
            )
            body: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as failure:
            raise CompilerBusyError(f"{self._url} did not answer: {failure!r}") from failure
        if answer.is_success and body["status"] == "ready":
            return str(body["key"])
        error = body.get("error") or {}
        if answer.status_code == httpx.codes.BAD_REQUEST:
            raise GrammarError.from_dict(
                {"code": error.get("code"), "message": error.get("message"), "pointer": error.get("pointer")}
            )
        raise CompilerBusyError(f"{self._url} answered {answer.status_code}: {error.get('message')}")


class NoCompiler:
    """For who compiles before: a request that brings no `turnstile:KEY` is refused."""

    def wait_ready(self) -> None: ...

    async def compile(self, specification: GrammarSpecification) -> str:
        raise UnsupportedFeatureError("this engine takes grammars that were compiled before, by their key")


class CompilerThread:
    """A compiler on an event loop of its own: vLLM's loop streams tokens meanwhile."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="turnstile-compiler", daemon=True).start()

    def wait_ready(self) -> None:
        self._compiler.wait_ready()

    def compile(self, specification: GrammarSpecification) -> Future[str]:
        return asyncio.run_coroutine_threadsafe(self._compiler.compile(specification), self._loop)


def compiler_for(model: str, settings: PluginSettings) -> CompilerThread:
    """The compiler that `settings` ask for."""
    if settings.url is not None:
        return CompilerThread(RemoteCompiler(settings))
    return CompilerThread(OwnCompiler(model, settings) if settings.compile_processes else NoCompiler())

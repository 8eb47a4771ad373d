"""Who compiles for vLLM's API process: its own processes, or a Turnstile server; both put artifacts into the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import httpx

from deployments.vllm.requests import EXTENSION
from deployments.vllm.settings import PluginSettings
from grammar_workers.artifacts.artifact import is_key
from grammar_workers.artifacts.store import open_store
from grammar_workers.errors import GrammarError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.keys import grammar_key
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.pool import CompilePool
from grammar_workers.service.service import CompileService
from grammar_workers.specification import GrammarSpecification

_REQUEST_TIMEOUT_S = 150.0
_CONNECT_TIMEOUT_S = 5.0
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


class OwnCompiler:
    """Compile processes of this process, with the budgets of Turnstile's grammar tier."""

    def __init__(self, model: str, settings: PluginSettings) -> None:
        self._options = settings.grammar_options
        self._settings = settings
        self._pool = CompilePool(
            _LOAD_COMPILER,
            {"model": model},
            processes=settings.compile_processes,
            timeout_s=settings.compile_timeout_s,
        )

    async def wait_ready(self) -> None:
        self._fingerprint = await asyncio.to_thread(self._pool.wait_ready)
        store = open_store(self._settings.store, self._fingerprint)
        self._service = CompileService(self._pool, store, self._settings.compile_timeout_s, _NoMetrics())

    async def compile(self, specification: GrammarSpecification, options: Mapping[str, Any]) -> str:
        # Large schemas take milliseconds to normalise.
        all_options = self._options.model_copy(update=dict(options))
        key = grammar_key(specification, self._fingerprint, all_options)
        job = {"specification": specification.model_dump(by_alias=True), "options": all_options.model_dump()}
        try:
            await self._service.artifact(key, job, "")
        except QueueFullError as error:
            raise CompilerBusyError("too many grammars wait to be compiled") from error
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
        refuse_options(options, "the Turnstile server that compiles here")
        try:
            answer = await self._client.post(
                self._url, json={"specification": specification.model_dump(by_alias=True), "wait": True}
            )
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


def refuse_options(options: Mapping[str, Any], who: str) -> None:
    """Raises UnsupportedFeatureError for options of a request that `who` cannot be told."""
    for name in options:
        raise UnsupportedFeatureError(
            f"{name}: {who} knows no options of single requests", pointer=f"/json/{EXTENSION}/{name}"
        )


def compiler_for(model: str, settings: PluginSettings) -> Compiler:
    """The compiler that `settings` ask for."""
    return OwnCompiler(model, settings) if settings.url is None else RemoteCompiler(settings)

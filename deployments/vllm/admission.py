"""What a request asks for -> the reference that the engine gets in its place, or a refusal before that."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import Future
from typing import Any

from deployments.vllm.compilers import Compiler, compiler_for
from deployments.vllm.requests import GrammarRequest, read_request
from deployments.vllm.settings import PluginSettings
from gpu_workers.guided.grammar_source import GrammarSource
from gpu_workers.request import GrammarReference, RequestError
from gpu_workers.vllm.backend import stored_grammars
from gpu_workers.vllm.grammar import RequestGrammar
from gpu_workers.vllm.loop_thread import LoopThread
from gpu_workers.vllm.reference import Reference
from grammar_workers.errors import GrammarError, InvalidSpecificationError
from grammar_workers.logs import get_logger
from grammar_workers.vocabulary.vocabulary import load_vocabulary

logger = get_logger(__name__)

_CACHE_MB = 128


class Admission:
    """Compiles and checks on an event loop of its own: vLLM's loop streams tokens meanwhile."""

    def __init__(self, model: str, settings: PluginSettings) -> None:
        self._model = model
        self._settings = settings
        self._compiler: Compiler = compiler_for(model, settings)
        self._thread = LoopThread("turnstile-admission")
        self._source: GrammarSource | None = None

    def wait_ready(self) -> None:
        """Until the first request would not have to wait for anything but its own compilation."""
        self.vocabulary = load_vocabulary(self._model, trust_remote_code=self._settings.trust_remote_code)
        self._source = stored_grammars(self.vocabulary, self._settings.store, _CACHE_MB)
        self._thread.submit(self._compiler.wait_ready()).result()

    def submit(self, constraint: Any, min_tokens: int, max_tokens: int | None) -> Future[str]:
        """The text of the reference. `constraint`: `StructuredOutputsParams`; both numbers are the request's own.

        Raises GrammarError, RequestError and CompilerBusyError.
        """
        return self._thread.submit(self._admit(constraint, min_tokens, max_tokens))

    async def _admit(self, constraint: Any, min_tokens: int, max_tokens: int | None) -> str:
        request = read_request(constraint)
        reference = request.reference
        if reference is None:
            reference = Reference(await self._compile(request))
            if self._reports(request):
                await self._log_unenforced(reference.key, request)
        if reference.finish_within_budget or request.finish_within_budget or self._settings.finish_within_budget:
            reference = _within_budget(reference, max_tokens)
        reference = dataclasses.replace(reference, min_tokens=max(reference.min_tokens, min_tokens))
        if request.reference is not None or reference.max_tokens is not None:
            await self._check(reference)
        return str(reference)

    async def _compile(self, request: GrammarRequest) -> str:
        assert request.specification is not None
        try:
            return await self._compiler.compile(request.specification, request.options)
        except GrammarError as error:
            raise request.placed(error) from error

    def _reports(self, request: GrammarRequest) -> bool:
        return request.options.get("on_unsupported", self._settings.grammar_options.on_unsupported) == "report"

    async def _log_unenforced(self, key: str, request: GrammarRequest) -> None:
        """vLLM's answers have no place for what is not enforced; its log has."""
        assert self._source is not None
        fsm = await self._source.fetch(GrammarReference(key=key))
        for keyword in fsm.unenforced:
            pointer = request.place(keyword["pointer"])
            logger.warning("grammar %s does not enforce %s: %s", key, pointer, keyword["reason"])

    async def _check(self, reference: Reference) -> None:
        """Makes the grammar once as the engine core will, whose refusals do not reach the client."""
        assert self._source is not None
        fsm = await self._source.fetch(GrammarReference(key=reference.key))
        if reference.emitted_token_ids or reference.max_tokens is not None:
            try:
                await asyncio.to_thread(RequestGrammar.referred, reference, fsm, ())
            except ValueError as error:
                raise InvalidSpecificationError(str(error), pointer="/grammar") from error


def _within_budget(reference: Reference, max_tokens: int | None) -> Reference:
    """vLLM ends an output with an end token, which counts: it gets the last of the tokens.

    `max_tokens`: as vLLM counts, without the emitted tokens, which are prompt to it.
    """
    if reference.max_tokens is not None:
        return dataclasses.replace(reference, finish_within_budget=False)
    if max_tokens is None:
        raise RequestError("finish_within_budget needs max_tokens", code="invalid_request", param="max_tokens")
    most = len(reference.emitted_token_ids) + max_tokens - 1
    return dataclasses.replace(reference, finish_within_budget=False, max_tokens=most)

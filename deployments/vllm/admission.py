"""Admission of constraints in vLLM's API process, before requests enter the engine.

To *admit* a constraint means to compile it, and to return a *reference*. A reference is a text with the key of the
compiled grammar, `turnstile:KEY`. The reference takes the place of the constraint in the request.
"""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import Future
from typing import Any

from deployments.vllm.compilers import Compiler, compiler_for
from deployments.vllm.requests import GrammarRequest, read_request
from deployments.vllm.settings import PluginSettings
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
    """Compiles and checks the constraints of requests to vLLM, on a separate thread with an event loop of its own.

    The separate thread is necessary because vLLM's event loop streams tokens and must not be blocked.

    Args:
        model: Folder or Hugging Face ID of the model or of its tokenizer.
        settings: Settings of the plugin: store, compiler and limits.

    Attributes:
        vocabulary: Vocabulary of the model. `wait_ready` sets this attribute.
    """

    def __init__(self, model: str, settings: PluginSettings) -> None:
        self._model = model
        self._settings = settings
        self._compiler: Compiler = compiler_for(model, settings)
        self._thread = LoopThread("turnstile-admission")

    def wait_ready(self) -> None:
        """Load the vocabulary, and block until the compilers are warm. Call this method before `submit`.

        An error is raised if the compilers do not start. It is `CompilerBusyError` if they do not respond.
        """
        self.vocabulary = load_vocabulary(self._model, trust_remote_code=self._settings.trust_remote_code)
        self._source = stored_grammars(self.vocabulary, self._settings.store, _CACHE_MB)
        self._thread.submit(self._compiler.wait_ready()).result()

    def submit(self, constraint: Any, min_tokens: int, max_tokens: int | None) -> Future[str]:
        """Start to compile and check the constraint of a request, without waiting. Any thread may call this method.

        Args:
            constraint: vLLM's `StructuredOutputsParams`; not changed.
            min_tokens: Minimum number of output tokens of the request.
            max_tokens: Maximum number of output tokens of the request. None: no maximum.

        Returns:
            A future. Its result is the reference: a text with the key of the compiled grammar, `turnstile:KEY` (and
            settings, if there are any). Its exception is GrammarError or RequestError if the constraint is rejected,
            and CompilerBusyError if no compiler is available.
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
        """Log the keywords that are not enforced, because vLLM's responses have no field for them."""
        fsm = await self._source.fetch(GrammarReference(key=key))
        for keyword in fsm.unenforced:
            pointer = request.place(keyword["pointer"])
            logger.warning("keyword not enforced: key=%s pointer=%s reason=%s", key, pointer, keyword["reason"])

    async def _check(self, reference: Reference) -> None:
        """Create the grammar once as the engine core does, whose errors do not reach the client."""
        fsm = await self._source.fetch(GrammarReference(key=reference.key))
        if reference.emitted_token_ids or reference.max_tokens is not None:
            try:
                await asyncio.to_thread(RequestGrammar.referred, reference, fsm, ())
            except ValueError as error:
                raise InvalidSpecificationError(str(error), pointer="/grammar") from error


def _within_budget(reference: Reference, max_tokens: int | None) -> Reference:
    """Return the reference with a token budget of one token less than the maximum, for vLLM's end token.

    `max_tokens` is vLLM's maximum, which excludes the emitted tokens: vLLM gets them as part of the prompt.

    Raises:
        RequestError: The request has no maximum number of tokens.
    """
    if reference.max_tokens is not None:
        return dataclasses.replace(reference, finish_within_budget=False)
    if max_tokens is None:
        raise RequestError("finish_within_budget needs max_tokens", code="invalid_request", param="max_tokens")
    most = len(reference.emitted_token_ids) + max_tokens - 1
    return dataclasses.replace(reference, finish_within_budget=False, max_tokens=most)

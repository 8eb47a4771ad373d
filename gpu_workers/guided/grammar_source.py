"""From a grammar key to its TokenFSM, as near as it can be had: this process, the node's files, Redis, the compiler.

Nothing compiles here. The artifact a compiler sends is loaded like one from the store, checks included.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gpu_workers.request import GrammarReference, RequestError
from grammar_workers import TokenFSM, Vocabulary
from grammar_workers.artifacts.artifact import HMAC_KEY_VARIABLE, WRONG_DIGEST
from grammar_workers.artifacts.automaton_cache import AutomatonCache
from grammar_workers.artifacts.store import GrammarStore
from grammar_workers.artifacts.store.counters import Counters
from grammar_workers.errors import ArtifactError, LimitExceededError
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.service.metrics import Stats
from grammar_workers.shared_task import SharedTask

logger = get_logger(SERVE)

_SMALL_BYTES = 4096
PLACES_AHEAD = 256
"""Mask rows that a small artifact gets when it is loaded: mostly all, in a millisecond. Read one by one they pass
between threads as often, which costs ten times that. What is larger has too many to guess those that will be needed."""

KEY_MISMATCH = "store_key_mismatch"
"""Error code: the compilers sign artifacts with another key than this process has."""

AskCompiler = Callable[[GrammarReference, bool], Awaitable[bytes | dict[str, Any]]]
"""The artifact, or `{"status": "refused", "error": GrammarError.to_dict()}`, or `{"status": "unknown"}`. With True what
the compilers have found somewhere cannot be loaded, so they shall forget it and compile."""


class GrammarSource:
    """Resolves keys for one event loop. Requests for one key at the same time share one fetch, which ends early when
    the last of them has gone: a compilation that nobody waits for need not begin.

    `keeps`: what the compiler sends goes into the store, for processes beside this one that look nowhere else.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        store: GrammarStore,
        cache: AutomatonCache,
        ask_compiler: AskCompiler,
        *,
        keeps: bool = False,
        places_ahead: int = PLACES_AHEAD,
    ) -> None:
        self._vocabulary = vocabulary
        self._store = store
        self._cache = cache
        self._ask_compiler = ask_compiler
        self._keeps = keeps
        self._places_ahead = places_ahead
        self._counters = Counters()
        self._fetching: dict[str, SharedTask[TokenFSM]] = {}

    async def fetch(self, grammar: GrammarReference) -> TokenFSM:
        """Raises RequestError when the compiler refuses the specification, or does not know a bare key."""
        fsm = self._cache.get(grammar.key)
        self._counters.add("misses" if fsm is None else "hits")
        if fsm is not None:
            return fsm
        if (fetch := self._fetching.get(grammar.key)) is None:
            fetch = self._fetching[grammar.key] = SharedTask()
            fetch.start(self._fetch(grammar))
        try:
            return await fetch.result()
        finally:
            if not fetch.waiters:
                fetch.cancel()
                if self._fetching.get(grammar.key) is fetch:
                    del self._fetching[grammar.key]

    async def store_again(self, grammar: GrammarReference) -> None:
        """Puts the artifact into the store, whose files may have made room for others. Raises as `fetch` does."""
        data = await self._from_compiler(grammar)
        await asyncio.to_thread(self._store.put, grammar.key, data)

    def stats(self) -> Stats:
        """As `GrammarStore.stats`, and of the automata in memory as a tier of their own."""
        cache = self._cache
        sizes = {"entries": len(cache), "bytes": cache.size, "evicted": cache.evictions}
        return {"automata": {**self._counters.snapshot(), **sizes}, **self._store.stats()}

    async def _fetch(self, grammar: GrammarReference) -> TokenFSM:
        began = time.monotonic()
        fsm = None if grammar.artifact else await asyncio.to_thread(self._from_store, grammar.key)
        if fsm is None:
            data = grammar.artifact or await self._from_compiler(grammar)
            try:
                fsm = await asyncio.to_thread(self._load, grammar.key, data)
            except ArtifactError as error:
                logger.warning("compiling grammar %s again: %s", grammar.key, error)
                data = await self._from_compiler(grammar, anew=True)
                fsm = await asyncio.to_thread(self._load_new, grammar.key, data)
            if self._keeps:
                await asyncio.to_thread(self._store.put, grammar.key, data)
        self._cache.put(grammar.key, fsm)
        seconds = time.monotonic() - began
        fields = {"grammar_key": grammar.key, "tenant": grammar.tenant, "seconds": round(seconds, 6)}
        logger.info("loaded grammar %s after %.3f s", grammar.key, seconds, extra=fields)
        return fsm

    async def _from_compiler(self, grammar: GrammarReference, *, anew: bool = False) -> bytes:
        """The artifact. Raises RequestError for a refusal and for a key that nobody knows."""
        started = time.monotonic()
        answer = await self._ask_compiler(grammar, anew)
        self._store.found_elsewhere(time.monotonic() - started)
        if isinstance(answer, bytes):
            return answer
        if answer["status"] == "unknown":
            message = f"no grammar has the key {grammar.key}"
            raise RequestError(message, code="grammar_not_found", status=404, param="key")
        error = answer["error"]
        raise RequestError(error["message"], code=error["code"], param=error.get("pointer"))

    def _from_store(self, key: str) -> TokenFSM | None:
        data = self._store.get(key)
        if data is None:
            return None
        try:
            return self._load(key, data)
        except ArtifactError:
            return None

    def _load_new(self, key: str, data: bytes) -> TokenFSM:
        """Load an artifact that a compiler has just made. Raises RequestError if its signature is of another key."""
        try:
            return self._load(key, data)
        except ArtifactError as error:
            if error.reason != WRONG_DIGEST:
                raise
            self._counters.add("key_mismatch")
            message = f"compilers and model replicas have different values of {HMAC_KEY_VARIABLE}"
            remedy = "give all pods the same Secret, and replace the pods that started with another one"
            logger.error("%s: %s", message, remedy, extra={"grammar_key": key, "error_code": KEY_MISMATCH})
            raise RequestError(f"{message}; {remedy}", code=KEY_MISMATCH, status=503) from error

    def _load(self, key: str, data: bytes) -> TokenFSM:
        fsm = TokenFSM.from_bytes(data, self._vocabulary, key=key)
        if self._places_ahead and len(data) <= _SMALL_BYTES:
            with contextlib.suppress(LimitExceededError):  # who needs a row that cannot be made is told there
                fsm.fill_rows(self._places_ahead)
        return fsm

"""Loads the automaton of a grammar key from the nearest source: this process, files of the node, Redis, or a compiler.

A *grammar key* is a hash that identifies a compiled grammar. This process compiles nothing. An artifact (compiled
grammar as bytes) is checked when it is loaded, whether it comes from a compiler or from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gpu_workers.request import GrammarReference, RequestError
from grammar_workers import TokenFSM, Vocabulary
from grammar_workers.artifacts.artifact import HMAC_KEY_VARIABLE, WRONG_DIGEST
from grammar_workers.artifacts.automaton_cache import AutomatonCache
from grammar_workers.artifacts.store import GrammarStore
from grammar_workers.counters import Counters
from grammar_workers.errors import ArtifactError, LimitExceededError
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.service.metrics import Stats
from grammar_workers.shared_task import SharedTask

logger = get_logger(SERVE)

_SMALL_BYTES = 4096
# Maximum number of configurations that prefetching visits when a small artifact is loaded. In one millisecond, this
# computes most masks that outputs need (docs/decisions/0026-rows-behind-shared-rows.md, for 1,000 and more).
#
# Computed one by one, masks would cost as many thread switches, which take ten times as long. A larger artifact has too
# many masks to guess which ones will be needed.
PLACES_AHEAD = 256

# Error code: the compilers sign artifacts with another key than this process has.
KEY_MISMATCH = "store_key_mismatch"

# Function that requests a grammar from the compilers.
#
# It returns the artifact, `{"status": "refused", "error": GrammarError.to_dict()}`, or `{"status": "unknown"}`. The
# second argument is true if the artifact that the compilers have cannot be loaded: they must drop it and compile again.
AskCompiler = Callable[[GrammarReference, bool], Awaitable[bytes | dict[str, Any]]]


@dataclasses.dataclass(eq=False)
class GrammarSource:
    """Loads the automata (TokenFSMs) of grammar keys, for one event loop.

    Sources are tried in this order: the automata in memory, an artifact (compiled grammar as bytes) in the
    `GrammarReference`, the store, a compiler. Concurrent calls of `fetch` for one key share one fetch. When the last of
    these calls is cancelled, the fetch is cancelled, too.

    Attributes:
        vocabulary: Vocabulary of the model.
        store: Store of artifacts: memory, files and Redis.
        cache: Automata in the memory of this process.
        ask_compiler: Coroutine function that requests an artifact from the compilers. Its arguments are the
            `GrammarReference`, and a flag that is true if the compilers must compile again because their artifact
            cannot be loaded. It returns the artifact; `{"status": "refused", "error": ...}` if the specification is
            rejected; or `{"status": "unknown"}` without a specification for an unknown key.
        keeps: If true, artifacts from the compilers are put into the store, for other processes that read only the
            store.
        places_ahead: Maximum number of configurations that prefetching visits for a small artifact; 0: no prefetching.
    """

    vocabulary: Vocabulary
    store: GrammarStore
    cache: AutomatonCache
    ask_compiler: AskCompiler
    keeps: bool = False
    places_ahead: int = PLACES_AHEAD
    _counters: Counters = dataclasses.field(default_factory=Counters, init=False)
    _fetching: dict[str, SharedTask[TokenFSM]] = dataclasses.field(default_factory=dict, init=False)

    async def fetch(self, grammar: GrammarReference) -> TokenFSM:
        """Return the automaton of a grammar, from the nearest source. Errors of `ask_compiler` are passed on.

        RequestError is raised in three cases:

        - The compiler rejects the specification (code of the compiler's error).
        - The key is unknown, and the reference has no specification (code `grammar_not_found`).
        - The compilers sign artifacts (compiled grammars) with another HMAC key than this process has
          (`store_key_mismatch`).

        ArtifactError is raised if a newly compiled artifact cannot be loaded for another reason.

        Args:
            grammar: Reference with the grammar key.

        Returns:
            The automaton. All requests with this key share it.
        """
        fsm = self.cache.get(grammar.key)
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
        """Get the artifact (compiled grammar) of a key from the compilers, and put it into the store again.

        Call this method if the artifact may have been evicted from the store. RequestError is raised if the compiler
        rejects the specification, or if the key is unknown and the reference has no specification.

        Args:
            grammar: Reference with the grammar key.
        """
        data = await self._from_compiler(grammar)
        await asyncio.to_thread(self.store.put, grammar.key, data)

    def stats(self) -> Stats:
        """Return hits, misses and sizes of all caches of grammars, for the metrics.

        Returns:
            A dict of counts and sizes for each cache, such as `{"automata": {"hits": 7, "entries": 3, ...}, ...}`.
            `automata` is the cache in the memory of this process. The other keys are the levels of the store.
        """
        cache = self.cache
        sizes = {"entries": len(cache), "bytes": cache.size, "evicted": cache.evictions}
        return {"automata": {**self._counters.snapshot(), **sizes}, **self.store.stats()}

    async def _fetch(self, grammar: GrammarReference) -> TokenFSM:
        began = time.monotonic()
        fsm = None if grammar.artifact else await asyncio.to_thread(self._from_store, grammar.key)
        if fsm is None:
            data = grammar.artifact or await self._from_compiler(grammar)
            try:
                fsm = await asyncio.to_thread(self._load, grammar.key, data)
            except ArtifactError as error:
                logger.warning("artifact unusable, compiling again: key=%s error=%s", grammar.key, error)
                data = await self._from_compiler(grammar, anew=True)
                fsm = await asyncio.to_thread(self._load_new, grammar.key, data)
            if self.keeps:
                await asyncio.to_thread(self.store.put, grammar.key, data)
        self.cache.put(grammar.key, fsm)
        seconds = time.monotonic() - began
        fields = {"grammar_key": grammar.key, "tenant": grammar.tenant, "seconds": round(seconds, 6)}
        logger.info("loaded grammar: key=%s seconds=%.3f", grammar.key, seconds, extra=fields)
        return fsm

    async def _from_compiler(self, grammar: GrammarReference, *, anew: bool = False) -> bytes:
        """Return the artifact from the compiler.

        Raises:
            RequestError: The compiler rejects the specification, or the key is unknown.
        """
        started = time.monotonic()
        answer = await self.ask_compiler(grammar, anew)
        self.store.found_elsewhere(time.monotonic() - started)
        if isinstance(answer, bytes):
            return answer
        if answer["status"] == "unknown":
            message = f"no grammar has the key {grammar.key}"
            raise RequestError(message, code="grammar_not_found", status=404, param="key")
        error = answer["error"]
        raise RequestError(error["message"], code=error["code"], param=error.get("pointer"))

    def _from_store(self, key: str) -> TokenFSM | None:
        data = self.store.get(key)
        if data is None:
            return None
        try:
            return self._load(key, data)
        except ArtifactError:
            return None

    def _load_new(self, key: str, data: bytes) -> TokenFSM:
        """Load an artifact from a compiler. RequestError is raised if it is signed with another key."""
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
        fsm = TokenFSM.from_bytes(data, self.vocabulary, key=key)
        if self.places_ahead and len(data) <= _SMALL_BYTES:
            with contextlib.suppress(LimitExceededError):  # a sequence that needs such a mask gets the error
                fsm.prefetch_masks(self.places_ahead)
        return fsm

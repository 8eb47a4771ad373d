"""From a grammar key to its TokenFSM, as near as it can be had: this process, the node's files, Redis, the compiler.

Nothing compiles here. The artifact a compiler sends is loaded like one from the store, checks included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gpu_workers.request import GrammarReference, RequestError
from grammar_workers import TokenFSM, Vocabulary
from grammar_workers.artifact import ArtifactError
from grammar_workers.automaton_cache import AutomatonCache
from grammar_workers.store import GrammarStore

AskCompiler = Callable[[GrammarReference], Awaitable[bytes | dict[str, Any]]]
"""The artifact, or `{"status": "refused", "error": GrammarError.to_dict()}`, or `{"status": "unknown"}`."""


class GrammarSource:
    """Resolves keys for one event loop. Requests for one key at the same time share one fetch."""

    def __init__(
        self, vocabulary: Vocabulary, store: GrammarStore, cache: AutomatonCache, ask_compiler: AskCompiler
    ) -> None:
        self._vocabulary = vocabulary
        self._store = store
        self._cache = cache
        self._ask_compiler = ask_compiler
        self._fetching: dict[str, asyncio.Task[TokenFSM]] = {}

    async def fetch(self, grammar: GrammarReference) -> TokenFSM:
        """Raises RequestError when the compiler refuses the specification, or does not know a bare key."""
        if (fsm := self._cache.get(grammar.key)) is not None:
            return fsm
        if (task := self._fetching.get(grammar.key)) is None:
            task = self._fetching[grammar.key] = asyncio.create_task(self._fetch(grammar))
            task.add_done_callback(lambda done: self._forget(grammar.key, done))
        # Shielded: a request that is cancelled must not take the fetch from the others.
        return await asyncio.shield(task)

    async def _fetch(self, grammar: GrammarReference) -> TokenFSM:
        fsm = await asyncio.to_thread(self._from_store, grammar.key)
        if fsm is None:
            answer = await self._ask_compiler(grammar)
            if isinstance(answer, dict) and answer["status"] == "unknown":
                message = f"no grammar has the key {grammar.key}"
                raise RequestError(message, code="grammar_not_found", status=404, param="key")
            if isinstance(answer, dict):
                error = answer["error"]
                raise RequestError(error["message"], code=error["code"], param=error.get("pointer"))
            fsm = await asyncio.to_thread(TokenFSM.from_bytes, answer, self._vocabulary, key=grammar.key)
        self._cache.put(grammar.key, fsm)
        return fsm

    def _from_store(self, key: str) -> TokenFSM | None:
        data = self._store.get(key)
        if data is None:
            return None
        try:
            return TokenFSM.from_bytes(data, self._vocabulary, key=key)
        except ArtifactError:
            return None

    def _forget(self, key: str, task: asyncio.Task[TokenFSM]) -> None:
        del self._fetching[key]
        if not task.cancelled():
            task.exception()  # retrieved, even if every request that waited has gone

"""The engine-level part of vLLM's structured output interface: keys -> grammars of requests, and the bitmask.

It lives in the EngineCore beside the scheduler, so nothing compiles here: automata come from memory, the node's files
or Redis, where the plugin's API process has put them. By the names of `StructuredOutputBackend` (vLLM 0.29 to 0.33).
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor

from gpu_workers.guided.grammar_source import GrammarSource
from gpu_workers.request import GrammarReference, RequestError
from gpu_workers.vllm.grammar import RequestGrammar
from gpu_workers.vllm.loop_thread import LoopThread
from gpu_workers.vllm.reference import Reference, is_reference
from gpu_workers.vllm.timings import own_timings
from grammar_workers import TokenFSM, Vocabulary, warm_up
from grammar_workers.artifacts.automaton_cache import AutomatonCache
from grammar_workers.artifacts.store import open_store
from grammar_workers.errors import LimitExceededError

_AHEAD_S, _AHEAD_SHARE = 0.01, 0.02
"""How long rows are made ahead when an automaton is loaded, and of the time since the last one at most: the thread that
makes them and the scheduler's share an interpreter."""
_ROUND_GROWTH = 4
"""So many times as many places are looked at as in the round before, and they take so much longer at least."""


def stored_grammars(vocabulary: Vocabulary, store_url: str, cache_mb: int) -> GrammarSource:
    """Keys -> automata of what others have compiled into a store."""
    store = open_store(store_url, vocabulary.fingerprint)
    # `GrammarLoader` makes rows ahead, within its share of the interpreter.
    return GrammarSource(vocabulary, store, AutomatonCache(cache_mb << 20), _unknown, places_ahead=0)


class GrammarLoader:
    """Key -> automaton, for the threads that vLLM loads grammars on."""

    def __init__(self, vocabulary: Vocabulary, store_url: str, cache_mb: int = 512) -> None:
        self._source = stored_grammars(vocabulary, store_url, cache_mb)
        self._ahead: weakref.WeakSet[TokenFSM] = weakref.WeakSet()
        self._thread = LoopThread("turnstile-grammars")
        self._made_rows = -math.inf

    def load(self, key: str) -> TokenFSM:
        """Raises RequestError where nobody has compiled `key`, or what is stored cannot be loaded."""
        fsm = self._thread.submit(self._source.fetch(GrammarReference(key=key))).result()
        if fsm not in self._ahead:
            self._ahead.add(fsm)
            self._make_rows(fsm)
        return fsm

    def close(self) -> None:
        self._thread.close()

    def _make_rows(self, fsm: TokenFSM) -> None:
        """The rows that the scheduler's thread would otherwise make at first visits, as far as time allows."""
        began, places = time.monotonic(), 16
        budget = min(_AHEAD_S, _AHEAD_SHARE * (began - self._made_rows))
        spent = 0.0
        with contextlib.suppress(LimitExceededError):  # who needs a row that cannot be made is told there
            while spent * (1 + _ROUND_GROWTH) <= budget and places <= 4096:
                fsm.fill_rows(places)
                places *= _ROUND_GROWTH
                spent = time.monotonic() - began
        self._made_rows = time.monotonic()


class MaskBackend:
    """Grammars of requests over one vocabulary. `tokens`: the width of the model's logits, padding included.

    `refer`: a constraint's kind and text -> its reference, where constraints come as they are (beam search).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        loader: GrammarLoader,
        tokens: int,
        refer: Callable[[object, str], str] | None = None,
    ) -> None:
        warm_up(vocabulary)
        self._refer = refer
        self._loader = loader
        self._tokens = tokens
        self._timings = own_timings()

    def compile_grammar(
        self, request_type: object, grammar_spec: str, stop_token_ids: Collection[int] | None = None
    ) -> RequestGrammar:
        """The grammar of one request; loads, never compiles. Raises ValueError."""
        if self._refer is not None:
            grammar_spec = self._refer(request_type, grammar_spec)
        if not is_reference(grammar_spec):
            raise ValueError("this request has not passed through Turnstile's plugin in vLLM's API process")
        reference = Reference.parse(grammar_spec)
        if reference.finish_within_budget:
            raise ValueError("finish_within_budget has not passed through vLLM's API process")
        with _value_errors():
            fsm = self._loader.load(reference.key)
            return RequestGrammar.referred(reference, fsm, stop_token_ids or (), timings=self._timings)

    def allocate_token_bitmask(self, max_num_seqs: int) -> Tensor:
        """int32 [max_num_seqs, words], everything allowed."""
        return new_bitmask(max_num_seqs, self._tokens)

    def destroy(self) -> None:
        self._loader.close()


def new_bitmask(rows: int, tokens: int) -> Tensor:
    """int32 [rows, words] on the host, everything allowed; pinned where this process has a GPU to copy it to.

    With workers of their own (tensor parallelism) vLLM's engine core has none, and pinning would open a context there.
    """
    return torch.full((rows, -(-tokens // 32)), -1, dtype=torch.int32, pin_memory=torch.cuda.is_initialized())


@contextlib.contextmanager
def _value_errors() -> Iterator[None]:
    """What vLLM takes for the fault of a request."""
    try:
        yield
    except RequestError as error:
        raise ValueError(f"{error.code}: {error}") from error


async def _unknown(grammar: GrammarReference, anew: bool) -> dict[str, str]:
    return {"status": "unknown"}

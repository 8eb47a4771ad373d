"""Engine-level part of vLLM's structured output interface: the grammars of requests, and the token bitmask.

The method names are those of vLLM's `StructuredOutputBackend` (vLLM 0.29 to 0.33). The backend runs in the EngineCore.
It compiles nothing, because a compilation would block the scheduler in the same process. It loads automata from memory,
the node's files or Redis, where the plugin in vLLM's API process has stored them.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Collection

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

# Limits of the time for prefetching masks when an automaton is loaded: seconds, and share of the time since the last
# prefetch. The prefetching thread and the scheduler's thread share an interpreter.
_AHEAD_S, _AHEAD_SHARE = 0.01, 0.02
# Factor between rounds of prefetching, in configurations to visit.
#
# A round is assumed to take at least so many times as long as the last.
_ROUND_GROWTH = 4


def stored_grammars(vocabulary: Vocabulary, store_url: str, cache_mb: int) -> GrammarSource:
    """Return a source of automata that reads compiled grammars from a store and never calls a compiler.

    Its `fetch` raises RequestError if a key is not in the store.

    Args:
        vocabulary: Vocabulary of the model.
        store_url: URL of the store of compiled grammars, such as `redis://host:6379`.
        cache_mb: Memory for automata in this process, in MiB.
    """
    store = open_store(store_url, vocabulary.fingerprint)
    # `GrammarLoader` prefetches masks, within its share of the interpreter.
    return GrammarSource(vocabulary, store, AutomatonCache(cache_mb << 20), _unknown, places_ahead=0)


class GrammarLoader:
    """Loads automata of compiled grammars by key, from a store. May be called from several threads.

    Args:
        vocabulary: Vocabulary of the model.
        store_url: URL of the store of compiled grammars.
        cache_mb: Memory for automata in this process, in MiB.
    """

    def __init__(self, vocabulary: Vocabulary, store_url: str, cache_mb: int = 512) -> None:
        self._source = stored_grammars(vocabulary, store_url, cache_mb)
        self._ahead: weakref.WeakSet[TokenFSM] = weakref.WeakSet()
        self._thread = LoopThread("turnstile-grammars")
        self._last_prefetch = -math.inf

    def load(self, key: str) -> TokenFSM:
        """Load the automaton of a grammar key, and wait until it is loaded.

        When an automaton is loaded for the first time, some of its masks are prefetched (computed before an output
        needs them). RequestError is raised if no grammar with this key is in the store, or if it cannot be loaded.

        Args:
            key: Grammar key.

        Returns:
            The automaton.
        """
        fsm = self._thread.submit(self._source.fetch(GrammarReference(key=key))).result()
        if fsm not in self._ahead:
            self._ahead.add(fsm)
            self._prefetch_masks(fsm)
        return fsm

    def close(self) -> None:
        """Stop the thread on which automata are loaded. `load` must not be called afterwards."""
        self._thread.close()

    def _prefetch_masks(self, fsm: TokenFSM) -> None:
        """Prefetch masks, within a time limit. The scheduler's thread computes other masks when outputs need them."""
        began, spent, places = time.monotonic(), 0.0, 16
        budget = min(_AHEAD_S, _AHEAD_SHARE * (began - self._last_prefetch))
        with contextlib.suppress(LimitExceededError):  # a request that needs such a mask gets the error
            while spent * (1 + _ROUND_GROWTH) <= budget and places <= 4096:
                fsm.prefetch_masks(places)
                places *= _ROUND_GROWTH
                spent = time.monotonic() - began
        self._last_prefetch = time.monotonic()


class MaskBackend:
    """Creates the grammars of requests in vLLM's EngineCore, for one vocabulary.

    A *reference* is the text that names a compiled grammar in a request (`turnstile:KEY`).

    Args:
        vocabulary: Vocabulary of the model.
        loader: Loads automata.
        tokens: Width of the model's logits, padding included.
        refer: Function that takes vLLM's kind of constraint and the constraint's text, and returns a reference. It is
            necessary for vLLM's beam search, whose constraints are not references. None: every constraint must be a
            reference already.
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
        """Return the grammar of one request, from a compiled grammar in the store. Compiles nothing.

        Args:
            request_type: vLLM's kind of constraint, which is passed to `refer`.
            grammar_spec: A reference to a compiled grammar (`turnstile:KEY`), or the constraint's text if `refer` is
                set.
            stop_token_ids: Tokens that end this request in vLLM; None or empty: end tokens of the model.

        Returns:
            The grammar, in the state before the next token.

        Raises:
            ValueError: The constraint is not a valid reference, its grammar cannot be loaded, or the grammar does not
                allow the reference's settings (emitted tokens, `max_tokens`).
        """
        if self._refer is not None:
            grammar_spec = self._refer(request_type, grammar_spec)
        if not is_reference(grammar_spec):
            raise ValueError("this request has not passed through Turnstile's plugin in vLLM's API process")
        reference = Reference.parse(grammar_spec)
        if reference.finish_within_budget:
            raise ValueError("finish_within_budget has not passed through vLLM's API process")
        try:
            fsm = self._loader.load(reference.key)
            return RequestGrammar.referred(reference, fsm, stop_token_ids or (), timings=self._timings)
        except RequestError as error:  # vLLM treats a ValueError as an error of the request
            raise ValueError(f"{error.code}: {error}") from error

    def allocate_token_bitmask(self, max_num_seqs: int) -> Tensor:
        """Return a new token bitmask on the host (one bit per token and sequence), which allows every token.

        Args:
            max_num_seqs: Number of sequences.

        Returns:
            int32 [max_num_seqs, ceil(width of the logits / 32)], all bits set.
        """
        return new_bitmask(max_num_seqs, self._tokens)

    def destroy(self) -> None:
        """Stop the loader of automata. `compile_grammar` must not be called afterwards."""
        self._loader.close()


def new_bitmask(rows: int, tokens: int) -> Tensor:
    """Return a new token bitmask on the host (one bit per token and sequence), which allows every token.

    The memory is pinned if this process uses a GPU. With separate worker processes (tensor parallelism), vLLM's
    EngineCore uses no GPU, and pinning would create a CUDA context.

    Args:
        rows: Number of sequences.
        tokens: Number of tokens.

    Returns:
        int32 [rows, ceil(tokens / 32)], all bits set.
    """
    return torch.full((rows, -(-tokens // 32)), -1, dtype=torch.int32, pin_memory=torch.cuda.is_initialized())


async def _unknown(grammar: GrammarReference, anew: bool) -> dict[str, str]:
    return {"status": "unknown"}

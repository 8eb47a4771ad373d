"""`finish_within_budget`: a constrained output that is complete before its tokens run out.

The mask of a state keeps the tokens after which a completion still fits into what is left. A completion would have to
be looked up for each token. But tokens lead to few different states, states come again, and most rows keep all their
tokens: for each state the longest of the completions behind it is cached, and while that fits nothing is removed.

    tokens left   9  8  7  6  5  4
    proof         3  3  5  5  ...      length of a completion that is known to be possible from here

There always is a *proof*: a completion that fits, whose first token is always allowed. So the bound holds whatever the
model prefers and however fast completions grow. Looked-up completions are shortest in bytes: a token is removed, or a
request refused, only where that one does not fit. Where the look-ups of an automaton take too long, only the proof and
the completions found before are used.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import weakref
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_workers.request import RequestError
from grammar_workers import TokenFSM
from grammar_workers.errors import LimitExceededError
from grammar_workers.service.memory_guard import GUARD
from grammar_workers.types import MaskRow

_SLOW_S = 0.25
"""Where the look-ups for one row take longer (processor time), they were the last ones of their automaton."""


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """The shortest completion from `state`, of which the first `used` tokens have come; `length` more are to come."""

    state: int
    used: int
    length: int

    def next_token(self, fsm: TokenFSM) -> int:
        return fsm.shortest_completion(self.state)[self.used]

    @property
    def rest(self) -> Proof:
        return dataclasses.replace(self, used=self.used + 1, length=self.length - 1)


class CompletionLengths:
    """How many tokens the completions of an automaton's states take, for all requests that follow it."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # exact, or ~limit where it takes more than `limit`
        self._longest: dict[int, int] = {}
        self._slow = False

    def length(self, fsm: TokenFSM, state: int, limit: int, *, patient: bool = False) -> int | None:
        """Tokens from `state` to an end; None where it takes more than `limit`.

        Also None where look-ups have become too slow, unless `patient`.
        """
        known = self._known.get(state)
        if known is None or ~limit < known < 0:
            if self._slow and not patient:
                return None
            completion = completion_within(fsm, state, limit)
            known = self._known[state] = ~limit if completion is None else len(completion)
        return known if 0 <= known <= limit else None

    def all_fit(self, state: int, limit: int) -> bool:
        """Return whether at most `limit` tokens are known to complete the output after each token of `state`."""
        longest = self._longest.get(state)
        return longest is not None and longest <= limit

    def fitting(self, fsm: TokenFSM, state: int, limit: int) -> NDArray[np.bool_] | None:
        """Whether at most `limit` tokens complete the output after each token, bool [V]; None: after every one.

        No end token fits.
        """
        if self.all_fit(state, limit):
            return None
        began = time.thread_time()
        states, places = fsm.targets(state)
        lengths = []
        for target in states:
            lengths.append(self.length(fsm, target, limit))
            self._slow = self._slow or time.thread_time() - began > _SLOW_S
        fits = [length is not None for length in lengths]
        if all(fits):
            self._longest[state] = max((length or 0 for length in lengths), default=0)
            return None
        return np.array([*fits, False])[places]


def packed(bits: NDArray[np.bool_], words: int) -> MaskRow:
    """A mask row of `words` words with the bits that are set in `bits`, bool [at most words * 32]."""
    padded = np.zeros(words * 32, np.bool_)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view(np.uint32)


def row_of(token_ids: Iterable[int], words: int) -> MaskRow:
    """A mask row of `words` words that allows those of these tokens for which it has bits."""
    bits = np.zeros(words * 32, np.bool_)
    bits[[token_id for token_id in token_ids if token_id < words * 32]] = True
    return packed(bits, words)


def completion_within(fsm: TokenFSM, state: int, limit: int) -> list[int] | None:
    """A shortest way to finish from `state`; None where it takes more than `limit` tokens, or is too long to find."""
    try:
        return GUARD.call(f"completion under grammar {fsm.key}", fsm.shortest_completion, state, limit)
    except LimitExceededError:
        return None


_lengths: weakref.WeakKeyDictionary[TokenFSM, CompletionLengths] = weakref.WeakKeyDictionary()


class OutputBudget:
    """The proof after each token of one output of at most `max_tokens` tokens, `emitted_token_ids` among them.

    The emitted tokens are allowed by the grammar. Raises RequestError where no completion fits behind them. May take
    long: a look-up for every emitted token.
    """

    def __init__(self, fsm: TokenFSM, emitted_token_ids: Sequence[int], max_tokens: int) -> None:
        self._fsm = fsm
        self._room = max_tokens
        self._lengths = _lengths.setdefault(fsm, CompletionLengths())
        states = list(itertools.accumulate(emitted_token_ids, fsm.next_state, initial=fsm.initial_state))
        length = self._lengths.length(fsm, states[0], max_tokens, patient=True)
        self._proofs = [Proof(states[0], 0, length or 0)]
        if length is not None:
            self._proofs += self._proofs_after(emitted_token_ids, states[1:], patient=True)
        if length is None or len(self._proofs) < len(states):
            searched, left = 4 * max_tokens + 256, max_tokens - len(emitted_token_ids)
            completion = completion_within(fsm, states[-1], searched)
            needed = f"more than {searched}" if completion is None else str(len(completion))
            message = f"`finish_within_budget`: the shortest output found needs {needed} more tokens, {left} are left"
            raise RequestError(message, code="budget_too_small", param="max_tokens")
        self._first = len(self._proofs)

    def spares(self, state: int, pending: int) -> bool:
        """Return whether completions are known to fit after all tokens of `state`.

        `pending`: number of tokens before `state` that `accept` has not been told about. Takes no lock.
        """
        return self._lengths.all_fit(state, self._room - len(self._proofs) - pending)

    def accept(self, tokens: Sequence[int], states: Sequence[int]) -> None:
        """Goes on over `tokens`, all of which fit; `states`: the state after each."""
        self._proofs += self._proofs_after(tokens, states)

    def count_fitting(self, tokens: Sequence[int], states: Sequence[int]) -> int:
        """How many of `tokens` may come: as long as a completion fits behind them."""
        return len(self._proofs_after(tokens, states))

    def rollback(self, tokens: int) -> None:
        del self._proofs[-tokens:]

    def reset(self) -> None:
        del self._proofs[self._first :]

    def row(self, mask: MaskRow, state: int) -> MaskRow:
        """What of `mask`, the row of `state`, may come; end tokens always do."""
        proof, left = self._proofs[-1], self._room - len(self._proofs) + 1
        ends: MaskRow = mask & self._fsm.vocabulary.eos_mask
        if left <= 0:
            return ends
        fits = self._lengths.fitting(self._fsm, state, left - 1)
        if fits is None:
            return mask
        if proof.length:
            fits[proof.next_token(self._fsm)] = True
        return (mask & packed(fits, len(mask))) | ends

    def _proofs_after(self, tokens: Sequence[int], states: Sequence[int], *, patient: bool = False) -> list[Proof]:
        """The proof after each of `tokens`, as far as there is one that fits."""
        proof, found = self._proofs[-1], []
        for many, (token_id, state) in enumerate(zip(tokens, states, strict=False), len(self._proofs)):
            left = self._room - many
            if state == self._fsm.end_state:
                proof = Proof(state, 0, 0)
            elif left >= 0 and (length := self._lengths.length(self._fsm, state, left, patient=patient)) is not None:
                proof = Proof(state, 0, length)
            elif proof.length and proof.next_token(self._fsm) == token_id:
                proof = proof.rest
            else:
                break
            found.append(proof)
        return found

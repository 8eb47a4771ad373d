"""`finish_within_budget` where the mask is all that can be said: vLLM draws before anybody could turn a token down.

A row leaves the tokens after which a completion still fits, for each of which one would have to be looked up. But
tokens lead to few different states, states come again, and most rows are left as they are: for each state the longest
of the completions behind it is kept, and while that fits nothing is cut.

As in `gpu_workers.guided.finish_budget`, there always is a *proof*: a completion that fits, whose first token is always
allowed. Where look-ups of an automaton take too long, it is the only one.
"""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_workers.guided.finish_budget import proof_after
from gpu_workers.guided.masks import completion_within
from grammar_workers import TokenFSM
from grammar_workers.types import MaskRow

_SLOW_S = 0.25
"""Where the look-ups for one row take longer (processor time), they were the last ones of their automaton."""


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """A completion from `state`, of which the first `used` tokens have come; `length` more are to come.

    `token_ids`: its tokens, where it is another one than a look-up finds.
    """

    state: int
    used: int
    length: int
    token_ids: Sequence[int] | None = None

    def next_token(self, fsm: TokenFSM) -> int:
        return (self.token_ids or fsm.shortest_completion(self.state))[self.used]

    @property
    def rest(self) -> Proof:
        return dataclasses.replace(self, used=self.used + 1, length=self.length - 1)


class CompletionLengths:
    """How many tokens the completions of an automaton's states take, for all requests that follow it."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # exact, or ~limit where it takes more than `limit`
        self._longest: dict[int, int] = {}
        self._slow = False

    def length(self, fsm: TokenFSM, state: int, limit: int) -> int | None:
        """Tokens from `state` to an end; None where it takes more than `limit`, or nobody looks any more."""
        known = self._known.get(state)
        if known is None or ~limit < known < 0:
            if self._slow:
                return None
            completion = completion_within(fsm, state, limit)
            known = self._known[state] = ~limit if completion is None else len(completion)
        return known if 0 <= known <= limit else None

    def fitting(self, fsm: TokenFSM, state: int, limit: int) -> NDArray[np.bool_] | None:
        """Whether at most `limit` tokens complete the output after each token, bool [V]; None: after every one.

        No end token fits.
        """
        if (longest := self._longest.get(state)) is not None and longest <= limit:
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


_lengths: weakref.WeakKeyDictionary[TokenFSM, CompletionLengths] = weakref.WeakKeyDictionary()


class OutputBudget:
    """The proof after each token of one output of at most `max_tokens` tokens, `emitted_token_ids` among them.

    `state`: the one after the emitted tokens. Raises RequestError where no completion fits.
    """

    def __init__(self, fsm: TokenFSM, state: int, emitted_token_ids: Sequence[int], max_tokens: int) -> None:
        self._fsm = fsm
        self._room = max_tokens - len(emitted_token_ids)
        first = proof_after(fsm, emitted_token_ids, self._room)
        self._proofs = [Proof(state, 0, len(first), first)]
        self._lengths = _lengths.setdefault(fsm, CompletionLengths())

    def accept(self, tokens: Sequence[int], states: Sequence[int]) -> None:
        """Goes on over `tokens`, all of which fit; `states`: the state after each."""
        self._proofs += self._proofs_after(tokens, states)

    def count_fitting(self, tokens: Sequence[int], states: Sequence[int]) -> int:
        """How many of `tokens` may come: as long as a completion fits behind them."""
        return len(self._proofs_after(tokens, states))

    def rollback(self, tokens: int) -> None:
        del self._proofs[-tokens:]

    def reset(self) -> None:
        del self._proofs[1:]

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

    def _proofs_after(self, tokens: Sequence[int], states: Sequence[int]) -> list[Proof]:
        """The proof after each of `tokens`, as far as there is one that fits."""
        proof, found = self._proofs[-1], []
        for many, (token_id, state) in enumerate(zip(tokens, states, strict=False), len(self._proofs)):
            left = self._room - many
            if state == self._fsm.end_state:
                proof = Proof(state, 0, 0)
            elif left >= 0 and (length := self._lengths.length(self._fsm, state, left)) is not None:
                proof = Proof(state, 0, length)
            elif proof.length and proof.next_token(self._fsm) == token_id:
                proof = proof.rest
            else:
                break
            found.append(proof)
        return found

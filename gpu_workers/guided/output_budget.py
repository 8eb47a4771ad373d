"""Masks of the setting `finish_within_budget`, with which a constrained output is complete before its token limit.

A *completion* is a path of tokens from a grammar state to an accepting state. A mask keeps the tokens after which a
completion fits into the remaining tokens. A search for completions after each token would be slow. But tokens lead to
few different states, states recur, and most masks keep all their tokens. So a cache has one number for each state: the
length of the longest of the completions after the tokens that the state allows. If this number fits into the remaining
tokens, the mask is used unchanged and no search is necessary.

After each token of the output, there is a *proof*: one known completion that fits, such as

    tokens left        9  8  7  6  5  4
    length of proof    3  3  5  5  4  3

The first token of the proof is always allowed, so the output can always be completed. A search finds a completion with
the fewest bytes. A token is removed, or a request rejected, only if this completion does not fit. If searches in an
automaton take too long, only the proof and completions found before are used.
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

# Maximum processor seconds of the searches for one mask.
#
# After a slower one, completions in this automaton are not searched any more.
_SLOW_S = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """A completion (path to an accepting state) which proves that the output can still end within its token limit.

    Attributes:
        state: State at which the completion begins.
        used: Number of tokens of the completion that have been generated already.
        length: Number of tokens of the completion that remain.
    """

    state: int
    used: int
    length: int

    def next_token(self, fsm: TokenFSM) -> int:
        """Return the next token of the completion (path to an accepting state). `length` must be at least 1.

        Args:
            fsm: Automaton in which the completion was found.
        """
        return fsm.shortest_completion(self.state)[self.used]

    @property
    def rest(self) -> Proof:
        """The rest of the completion (path to an accepting state), after its next token has been generated."""
        return dataclasses.replace(self, used=self.used + 1, length=self.length - 1)


class CompletionLengths:
    """Cache of the lengths of shortest completions (paths to an accepting state) from the states of one automaton.

    The shortest completion has the fewest bytes; its length is its number of tokens. All requests with this automaton
    share the cache. If a search takes too long, later searches in this automaton are skipped.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # exact, or ~limit where it takes more than `limit`
        self._longest: dict[int, int] = {}
        self._slow = False

    def length(self, fsm: TokenFSM, state: int, limit: int, *, patient: bool = False) -> int | None:
        """Return the length, in tokens, of the completion (path to an accepting state) with the fewest bytes.

        A length that is not cached is found by a search.

        Args:
            fsm: The automaton.
            state: State at which the completion begins.
            limit: Maximum length, in tokens.
            patient: If true, search even if earlier searches in this automaton took too long.

        Returns:
            Length in tokens. None if the length exceeds `limit`, if the search exceeds a limit of the automaton, or if
            the length is not cached and searches are skipped.
        """
        known = self._known.get(state)
        if known is None or ~limit < known < 0:
            if self._slow and not patient:
                return None
            completion = completion_within(fsm, state, limit)
            known = self._known[state] = ~limit if completion is None else len(completion)
        return known if 0 <= known <= limit else None

    def all_fit(self, state: int, limit: int) -> bool:
        """Return whether each token that a state allows is known to have a completion of at most `limit` tokens.

        A completion is a path to an accepting state. The method reads only the cache, which `fitting` fills.

        Args:
            state: The state.
            limit: Maximum number of tokens of a completion. The token after `state` is not counted.
        """
        longest = self._longest.get(state)
        return longest is not None and longest <= limit

    def fitting(self, fsm: TokenFSM, state: int, limit: int) -> NDArray[np.bool_] | None:
        """Return the allowed tokens after which a completion (path to an accepting state) fits. May search for long.

        Args:
            fsm: The automaton.
            state: The state.
            limit: Maximum number of tokens of a completion. The token after `state` is not counted.

        Returns:
            bool [V]: true for allowed tokens after which a completion fits; false for disallowed tokens and end tokens.
            None if a completion fits after all allowed tokens.
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
    """Pack booleans into a token bitmask. Bit i % 32 of word i // 32 is `bits[i]`; further bits are 0.

    Args:
        bits: bool [n], with n at most words * 32.
        words: Number of words of the bitmask.

    Returns:
        uint32 [words].
    """
    padded = np.zeros(words * 32, np.bool_)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view(np.uint32)


def row_of(token_ids: Iterable[int], words: int) -> MaskRow:
    """Return a token bitmask that allows the given tokens and no others.

    Args:
        token_ids: Tokens to allow. IDs from words * 32 on are ignored.
        words: Number of words of the bitmask, 32 tokens each.

    Returns:
        uint32 [words]. Bit t % 32 of word t // 32 is set if token t is allowed.
    """
    bits = np.zeros(words * 32, np.bool_)
    bits[[token_id for token_id in token_ids if token_id < words * 32]] = True
    return packed(bits, words)


def completion_within(fsm: TokenFSM, state: int, limit: int) -> list[int] | None:
    """Return the tokens of a completion (path from a state to an accepting state) with the fewest bytes.

    Args:
        fsm: The automaton.
        state: State at which the completion begins.
        limit: Maximum number of tokens.

    Returns:
        Token IDs; empty if `state` is accepting. None if the completion exceeds `limit` tokens, or if the search
        exceeds a limit of the automaton.
    """
    try:
        return GUARD.call(f"completion under grammar {fsm.key}", fsm.shortest_completion, state, limit)
    except LimitExceededError:
        return None


_lengths: weakref.WeakKeyDictionary[TokenFSM, CompletionLengths] = weakref.WeakKeyDictionary()


class OutputBudget:
    """Ensures that one constrained output is complete within its token limit (`finish_within_budget`).

    After each token of the output, the object stores a *proof*: a completion (path to an accepting state) that fits
    into the remaining tokens. The constructor searches for a completion after every emitted token and may take long.

    Args:
        fsm: Automaton of the grammar.
        emitted_token_ids: Tokens of the output so far, which the grammar allows.
        max_tokens: Maximum number of output tokens, emitted ones included.

    Raises:
        RequestError: No completion that fits was found (code `budget_too_small`).
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
            message = (
                f"`finish_within_budget`: the shortest output found needs {needed} more tokens, {left} are left of "
                "`max_tokens`: raise it"
            )
            raise RequestError(message, code="budget_too_small", param="max_tokens")
        self._first = len(self._proofs)

    def spares(self, state: int, pending: int) -> bool:
        """Return whether the mask of a state can be used unchanged: each of its tokens leaves room for a completion.

        A completion is a path to an accepting state. The method reads only cached lengths, without a lock or a search.

        Args:
            state: Grammar state before the next token.
            pending: Number of output tokens before `state` that `accept` has not received.

        Returns:
            True if the output can be completed within its token limit after every token that `state` allows. False if
            it cannot, or if this is not cached.
        """
        return self._lengths.all_fit(state, self._room - len(self._proofs) - pending)

    def accept(self, tokens: Sequence[int], states: Sequence[int]) -> None:
        """Advance over the next tokens of the output.

        After each of these tokens, a completion must fit into the remaining tokens (see `count_fitting`).

        Args:
            tokens: The tokens.
            states: `states[i]` is the grammar state after `tokens[i]`.
        """
        self._proofs += self._proofs_after(tokens, states)

    def count_fitting(self, tokens: Sequence[int], states: Sequence[int]) -> int:
        """Return the number of leading `tokens` after which the output can still be completed within its token limit.

        The object does not change.

        Args:
            tokens: Tokens that may come next.
            states: `states[i]` is the grammar state after `tokens[i]`. If `states` is shorter than `tokens`, the later
                tokens are not counted.
        """
        return len(self._proofs_after(tokens, states))

    def rollback(self, tokens: int) -> None:
        """Roll back the last tokens of the output.

        Args:
            tokens: Number of tokens to roll back, at least 1.
        """
        del self._proofs[-tokens:]

    def reset(self) -> None:
        """Roll back all tokens that were accepted after the constructor."""
        del self._proofs[self._first :]

    def row(self, mask: MaskRow, state: int) -> MaskRow:
        """Remove from a mask the tokens after which the output cannot be completed within its token limit.

        Args:
            mask: Mask of `state`, uint32 [ceil(V / 32)]. Not changed.
            state: Grammar state after the tokens accepted so far.

        Returns:
            The reduced mask, uint32 [ceil(V / 32)]; `mask` itself if nothing is removed. End tokens are never removed.
        """
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
        """Return the proof after each of `tokens`, up to the first token after which no completion fits."""
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

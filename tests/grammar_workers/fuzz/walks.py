"""Walks under the masks, each with a leaning: uniform draws would hardly ever meet what is rare."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Sequence

import numpy as np

from grammar_workers import TokenFSM

Leaning = Callable[[list[int], bytes], list[int]]
"""Of the allowed tokens those that are preferred after a text."""
_CLOSING = (b'"', b"}", b"]")


class Walker:
    """Walks over one automaton. `texts` are what walks may follow for a while."""

    def __init__(self, fsm: TokenFSM, rng: random.Random, texts: Sequence[bytes]) -> None:
        self._fsm = fsm
        self._rng = rng
        self._texts = texts
        self._used: collections.Counter[int] = collections.Counter()
        self._ends = frozenset(fsm.vocabulary.eos_token_ids)

    def walk(self, longest: int) -> tuple[tuple[int, ...], list[int]]:
        """The tokens up to an end, a dead end or `longest`, and the states passed, the initial one included."""
        fsm, rng = self._fsm, self._rng
        leaning = rng.choice([self._uniform, self._rare, self._following(), self._following(), self._closing])
        strength = rng.choice([0.6, 0.9, 0.97])
        tokens: list[int] = []
        states = [fsm.initial_state]
        text = b""
        while len(tokens) < longest:
            allowed = allowed_tokens(fsm, states[-1])
            if not allowed:
                break
            preferred = leaning(allowed, text) if rng.random() < strength else allowed
            token = rng.choice(preferred or allowed)
            if token in self._ends:
                break
            self._used[token] += 1
            tokens.append(token)
            states.append(fsm.next_state(states[-1], token))
            if states[-1] < 0:
                break
            text += fsm.vocabulary.token_bytes(token)
        return tuple(tokens), states

    def _uniform(self, allowed: list[int], text: bytes) -> list[int]:
        return allowed

    def _rare(self, allowed: list[int], text: bytes) -> list[int]:
        fewest = min(self._used[token] for token in allowed)
        return [token for token in allowed if self._used[token] == fewest]

    def _closing(self, allowed: list[int], text: bytes) -> list[int]:
        data = self._fsm.vocabulary.token_bytes
        return [token for token in allowed if token in self._ends or data(token).endswith(_CLOSING)]

    def _following(self) -> Leaning:
        """Toward one of the texts; where the walk has left it, toward the longest tokens or any."""
        target = self._rng.choice(self._texts) if self._texts else b""
        data = self._fsm.vocabulary.token_bytes

        def leaning(allowed: list[int], text: bytes) -> list[int]:
            if not target.startswith(text):
                return allowed
            rest = target[len(text) :]
            return [token for token in allowed if data(token) and rest.startswith(data(token))]

        return leaning


def allowed_tokens(fsm: TokenFSM, state: int) -> list[int]:
    """The tokens of the mask of a state, sorted."""
    found: list[int] = np.flatnonzero(np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little")).tolist()
    return found


def text_of(fsm: TokenFSM, tokens: Sequence[int]) -> bytes:
    return b"".join(map(fsm.vocabulary.token_bytes, tokens))

"""Text that a grammar leaves no choice about, found from the mask rows of a TokenFSM.

Two kinds, in this order: tokens that are the only ones allowed (they need no model), then bytes that every
continuation begins with although several tokenizations spell them (a draft: the model chooses among the spellings).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpu_workers.guided.output_budget import row_of
from grammar_workers import TokenFSM, Vocabulary
from grammar_workers.matching.mask_store import count_tokens

_MOST_TOKENS = 64
_MOST_BYTES = 64
_LEAST_LEFT = 16
"""Where a text may go on beyond these limits, what is left of it serves as long as a step has no more drafts."""


@dataclass(frozen=True, slots=True)
class ForcedText:
    """What follows one state: the first `sole` of `token_ids` are the only tokens allowed where they stand.

    `states[i]` is the state after `token_ids[i]`.
    """

    token_ids: tuple[int, ...]
    states: tuple[int, ...]
    sole: int

    def after(self, count: int) -> ForcedText:
        """What is left of it behind its first `count` tokens."""
        return ForcedText(self.token_ids[count:], self.states[count:], max(0, self.sole - count))


class ForcedTextFinder:
    """Walks ahead while there is no choice. Stateless but for tables of the vocabulary; reading rows may be slow.

    `encode`: the tokenizer's own way to spell a text, which a model most likely chooses, too.
    """

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]] | None = None) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        token_bytes = [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)]
        # -1 for tokens without bytes: end tokens and other special ones.
        self._end_token_ids = frozenset(vocabulary.eos_token_ids)
        self._first_byte = np.array([data[0] if data else -1 for data in token_bytes], np.int16)
        single_bytes = (token_id for token_id, data in enumerate(token_bytes) if len(data) == 1)
        self._single_bytes = row_of(single_bytes, -(-vocabulary.size // 32))

    def forces(self, token_ids: np.ndarray) -> bool:
        """Whether there is one token, not an end token, or all of these (int64 [n]) begin with the same byte."""
        if len(token_ids) < 2:
            return len(token_ids) == 1 and int(token_ids[0]) not in self._end_token_ids
        first = self._first_byte[token_ids]
        return bool(first[0] >= 0) and bool((first == first[0]).all())

    def find_all(self, fsm: TokenFSM, state: int) -> dict[int, ForcedText]:
        """The text forced after `state`, and after the states that it leads through: what is left of it.

        Without those where another search may find more: behind its end, and where a spelled text happens to reach a
        state that allows one token only.
        """
        whole = self.find(fsm, state)
        many_bytes = sum(len(self._vocabulary.token_bytes(token_id)) for token_id in whole.token_ids[whole.sole :])
        complete = whole.sole < _MOST_TOKENS and many_bytes < _MOST_BYTES
        found = {}
        for i in range(len(whole.token_ids) - (1 if complete else _LEAST_LEFT)):
            if i < whole.sole or not fsm.forced_tokens(whole.states[i], 1):
                found[whole.states[i]] = whole.after(i + 1)
        return {**found, state: whole}

    def find(self, fsm: TokenFSM, state: int) -> ForcedText:
        """The text forced after `state`. Reads the rows of the states it passes."""
        token_ids = fsm.forced_tokens(state, _MOST_TOKENS)
        states: list[int] = []
        for token_id in token_ids:
            state = fsm.next_state(state, token_id)
            states.append(state)
        sole = len(token_ids)
        for token_id in self._spell(self._forced_bytes(fsm, state)):
            state = fsm.next_state(state, token_id)
            if state < 0:
                break
            token_ids.append(token_id)
            states.append(state)
        return ForcedText(tuple(token_ids), tuple(states), sole)

    def _spell(self, text: bytes) -> list[int]:
        """The likeliest tokens for `text`."""
        if self._encode is not None and text:
            token_ids = self._encode(text.decode(errors="replace"))
            if b"".join(map(self._vocabulary.token_bytes, token_ids)) == text:
                return token_ids
        return self._vocabulary.encode(text) or []

    def _forced_bytes(self, fsm: TokenFSM, state: int) -> bytes:
        text = bytearray()
        while len(text) < _MOST_BYTES and not fsm.is_terminal(state):
            row = fsm.allowed_mask(state) & self._single_bytes
            row.setflags(write=False)  # the kernel is compiled ahead for such rows alone
            count, token_id = count_tokens(row)
            if count != 1:
                break
            text += self._vocabulary.token_bytes(token_id)
            state = fsm.next_state(state, token_id)
        return bytes(text)

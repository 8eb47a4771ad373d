"""Forced text: the text with which every allowed output continues after a grammar state. It is found from masks.

Forced text has two parts, in this order:

1. *Forced tokens*: each is the only token that its state allows, so it needs no forward pass.
2. *Forced bytes*: every allowed output continues with these bytes, but in several tokenizations. They are used as
   drafts (proposed tokens that a forward pass verifies), because the model selects the tokenization.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_workers.guided.output_budget import row_of
from grammar_workers import TokenFSM, Vocabulary
from grammar_workers.matching.mask_store import count_tokens

# Function that returns the mask (token bitmask, uint32 [ceil(V / 32)]) of a grammar state.
MaskOf = Callable[[int], NDArray[np.uint32]]

_MOST_TOKENS = 64
_MOST_BYTES = 64
# Number of last tokens of a text at a limit whose states are searched again. A step has at most as many drafts.
_LEAST_LEFT = 16


@dataclass(frozen=True, slots=True)
class ForcedText:
    """Forced text: the text with which every allowed output continues after one grammar state, as tokens.

    Attributes:
        token_ids: Tokens of the text.
        states: `states[i]` is the grammar state after `token_ids[i]`.
        sole: Number of leading tokens that are forced: each is the only token that its state allows. The other tokens
            are one of several possible tokenizations of the text.
    """

    token_ids: tuple[int, ...]
    states: tuple[int, ...]
    sole: int

    def after(self, count: int) -> ForcedText:
        """Return the rest of the forced text, after its first `count` tokens.

        Args:
            count: Number of tokens to drop, from 0 to the number of tokens of the text.
        """
        return ForcedText(self.token_ids[count:], self.states[count:], max(0, self.sole - count))


class ForcedTextFinder:
    """Searches for forced text: the text with which every allowed output continues after a grammar state.

    A search needs the masks along the text. To compute them may take long in some grammars. The finder has no state
    except tables of the vocabulary.

    Args:
        vocabulary: Vocabulary of the model.
        encode: Function that tokenizes a text as the model's tokenizer does, without special tokens. None:
            `Vocabulary.encode` tokenizes.
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
        """Return whether a grammar state has forced text.

        Text is forced if the state allows one token that is not an end token, or several tokens that all start with the
        same byte.

        Args:
            token_ids: All tokens that the state allows, int64 [n].
        """
        if len(token_ids) < 2:
            return len(token_ids) == 1 and int(token_ids[0]) not in self._end_token_ids
        first = self._first_byte[token_ids]
        return bool(first[0] >= 0) and bool((first == first[0]).all())

    def find_all(self, fsm: TokenFSM, state: int, mask_of: MaskOf) -> dict[int, ForcedText]:
        """Return the forced text after a state, and the rest of this text after each state along it.

        Errors of `mask_of` and of `TokenFSM.next_state` are raised.

        Args:
            fsm: Automaton of the grammar.
            state: State at which the text begins.
            mask_of: Function that returns the mask of a state, such as `fsm.allowed_mask`.

        Returns:
            Forced text by state. `state` is always a key. A search is limited in length, so states near the end of a
            long text are left out: a new search from them may find more text.
        """
        whole = self.find(fsm, state, mask_of)
        many_bytes = sum(len(self._vocabulary.token_bytes(token_id)) for token_id in whole.token_ids[whole.sole :])
        complete = whole.sole < _MOST_TOKENS and many_bytes < _MOST_BYTES
        found = {}
        for i in range(len(whole.token_ids) - (1 if complete else _LEAST_LEFT)):
            if i < whole.sole or self._sole(mask_of(whole.states[i])) is None:
                found[whole.states[i]] = whole.after(i + 1)
        return {**found, state: whole}

    def find(self, fsm: TokenFSM, state: int, mask_of: MaskOf) -> ForcedText:
        """Return the forced text after a state.

        Errors of `mask_of` and of `TokenFSM.next_state` are raised, such as LimitExceededError.

        Args:
            fsm: Automaton of the grammar.
            state: State at which the text begins.
            mask_of: Function that returns the mask of a state. It is called for the states along the text.

        Returns:
            The forced text: at most 64 forced tokens, then the tokens of at most 64 forced bytes. It has no tokens if
            nothing is forced.
        """
        token_ids: list[int] = []
        states: list[int] = []
        while len(token_ids) < _MOST_TOKENS and (sole := self._sole(mask_of(state))) is not None:
            state = fsm.next_state(state, sole)
            token_ids.append(sole)
            states.append(state)
        sole_tokens = len(token_ids)
        for token_id in self._spell(self._forced_bytes(fsm, state, mask_of)):
            state = fsm.next_state(state, token_id)
            if state < 0:
                break
            token_ids.append(token_id)
            states.append(state)
        return ForcedText(tuple(token_ids), tuple(states), sole_tokens)

    def _sole(self, mask: NDArray[np.uint32]) -> int | None:
        """Return the only token that a mask allows; None if it allows several tokens, or an end token."""
        count, token_id = count_tokens(mask)
        return int(token_id) if count == 1 and token_id not in self._end_token_ids else None

    def _spell(self, text: bytes) -> list[int]:
        """Return the most likely tokenization of `text`."""
        if self._encode is not None and text:
            token_ids = self._encode(text.decode(errors="replace"))
            if b"".join(map(self._vocabulary.token_bytes, token_ids)) == text:
                return token_ids
        return self._vocabulary.encode(text) or []

    def _forced_bytes(self, fsm: TokenFSM, state: int, mask_of: MaskOf) -> bytes:
        text = bytearray()
        while len(text) < _MOST_BYTES and not fsm.is_terminal(state):
            row = mask_of(state) & self._single_bytes
            row.setflags(write=False)  # the kernel is precompiled for read-only masks only
            count, token_id = count_tokens(row)
            if count != 1:
                break
            text += self._vocabulary.token_bytes(token_id)
            state = fsm.next_state(state, token_id)
        return bytes(text)

"""Masks for logits processors, which get the tokens of the prompts and outputs in each call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers import TokenFSM
from turnstile_llm.grammar import Grammar, WidthError

# State of an output that the processor was not called with, and the number of outputs per row whose states are kept.
# Only outputs of the last calls are continued: a rejected draft goes back by a few tokens.
_UNKNOWN, _MOST_KNOWN = -2, 128


class _Generation:
    """Prompts of one batch, and the grammar states of the outputs that the processor was called with.

    Args:
        prompts: Token IDs of the first call, int64 [rows, length].
        automata: Automaton of each row. None: the row has no constraint.

    Attributes:
        rows: Number and automaton of each row with a constraint.
    """

    def __init__(self, prompts: NDArray[np.int64], automata: Sequence[TokenFSM | None]) -> None:
        self._prompts = prompts
        self.rows = [(row, fsm) for row, fsm in enumerate(automata) if fsm is not None]
        # (automaton, hash of an output) -> state: `end_state` also behind the end, -1 behind a disallowed token.
        self._known = {(fsm, _hash(prompts[:0])): fsm.initial_state for _, fsm in self.rows}

    def states(self, ids: NDArray[np.int64]) -> list[int] | None:
        """Return the state of each row with a constraint. None if `ids` belongs to another generation.

        `ids` belongs to this generation if each row is a known output, or a known output and one more token, and the
        last token is allowed in at least one row. Other rows occur in beams without a valid continuation.
        """
        length = self._prompts.shape[1]
        if not np.array_equal(ids[:, :length], self._prompts):
            return None
        states = [self._state(fsm, ids[row, length:]) for row, fsm in self.rows]
        return None if states and (min(states) == _UNKNOWN or max(states) < 0) else states

    def _state(self, fsm: TokenFSM, tokens: NDArray[np.int64]) -> int:
        key, before = (fsm, _hash(tokens)), self._known.get((fsm, _hash(tokens[:-1])), _UNKNOWN)
        if key not in self._known and before != _UNKNOWN:
            self._known[key] = before and fsm.next_state(before, int(tokens[-1]))  # `end_state` is 0
            if len(self._known) > _MOST_KNOWN * len(self.rows):
                del self._known[next(iter(self._known))]
        return self._known.get(key, _UNKNOWN)


def _hash(tokens: NDArray[np.int64]) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()


class OutputMasks:
    """Masks of the outputs of a logits processor. An output is recognized by its tokens, also after rejected drafts.

    Args:
        grammars: Grammar of each prompt of a batch; None: no constraint.

    Raises:
        ValueError: The vocabulary of a grammar has no end token, so outputs would never end.
    """

    def __init__(self, grammars: Sequence[Grammar | None]) -> None:
        self._grammars = grammars
        if not all(one is None or one.automaton().vocabulary.eos_token_ids for one in grammars):
            raise ValueError("the vocabulary has no end token: name one by `generation_config` of `from_tokenizer`")
        # Last used first. The first token of a new prompt cannot be told from a draft that the grammar does not allow,
        # so each such draft begins a generation here. Drafts are shorter than this list.
        self._generations: list[_Generation] = []

    def bitmask(self, ids: Any, width: int) -> NDArray[np.int32]:
        """Return the masks of the next tokens, int32 [rows, ceil(V / 32)].

        A row whose output has ended, or is a beam without a valid continuation, allows only end tokens. WidthError is
        raised if the grammars fit neither the rows nor the logits.

        Args:
            ids: Prompts and outputs so far, integers [rows, length].
            width: Width V of the logits.
        """
        ids = np.array(ids, np.int64)
        for generation in self._generations:
            if (states := generation.states(ids)) is not None:
                break
        else:
            generation = self._begin(ids, width)
            states = [fsm.initial_state for _, fsm in generation.rows]
        self._generations = [generation, *(one for one in self._generations if one is not generation)][:64]
        bitmask = np.full((len(ids), -(-width // 32)), -1, np.int32)
        for (row, fsm), state in zip(generation.rows, states, strict=True):
            mask = fsm.allowed_mask(state) if state > fsm.end_state else fsm.vocabulary.eos_mask
            bitmask[row] = mask.view(np.int32)
        return bitmask

    def _begin(self, prompts: NDArray[np.int64], width: int) -> _Generation:
        rows, automata = len(prompts), [None if grammar is None else grammar.automaton() for grammar in self._grammars]
        if not automata or rows % len(automata):
            raise WidthError(f"{len(automata)} grammars do not fit {rows} rows: give one, or one for each prompt")
        for size in {fsm.vocabulary.size for fsm in automata if fsm is not None} - {width}:
            raise WidthError(f"the vocabulary has {size} tokens: create it with vocab_size={width}, the logits' width")
        return _Generation(prompts, [automata[row * len(automata) // rows] for row in range(rows)])

"""Compiled grammars, matchers, which follow one output and compute its masks, and operations on token bitmasks.

A token bitmask is int32 [rows, ceil(V / 32)] for logits of the width V. Bit t % 32 of word t // 32 is set if token t is
allowed. xgrammar and vLLM use this layout, too.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from grammar_workers import GrammarError, TokenFSM
from grammar_workers.matching.examples import draw_examples


class MatcherError(RuntimeError):
    """A matcher is used by two threads at once, after the end of its output, or rolled back too far."""


class WidthError(ValueError):
    """A token bitmask, logits or a list of grammars does not fit the vocabulary or the batch."""


class Grammar:
    """A constraint that is compiled for one vocabulary. Thread-safe.

    `repr` shows the first allowed tokens, the shortest output and two random outputs.

    Args:
        fsm: Automaton of the grammar.

    Attributes:
        key: Grammar key: a hash of the constraint, the options and the vocabulary, equal in all processes.
        notes: Warnings of the compiler about the constraint.
    """

    def __init__(self, fsm: TokenFSM) -> None:
        self._fsm = fsm
        self.key, self.notes = fsm.key, fsm.notes

    def automaton(self) -> TokenFSM:
        """Return the automaton for a new output. It is loaded again if its visited states use much memory."""
        self._fsm = self._fsm.renewed()
        return self._fsm

    def matcher(self) -> Matcher:
        """Return a matcher for a new output."""
        return Matcher(self.automaton())

    def __repr__(self) -> str:
        fsm, vocabulary = self.automaton(), self._fsm.vocabulary
        names = {token: name.encode() for name, token in vocabulary.special_tokens.items()}
        try:
            tokens = sorted(fsm.allowed_tokens(fsm.initial_state))
            examples = [text.decode("utf-8", "replace") for text in draw_examples(fsm, 3)]
        except GrammarError as error:  # a limit on work or memory
            return f"Grammar({self.key[:12]}: {error})"
        texts = [vocabulary.token_bytes(token) or names.get(token, b"") for token in tokens[:8]]
        first = ", ".join(repr(text.decode("utf-8", "replace")) for text in texts) + ", ..." * (len(tokens) > 8)
        title = f"Grammar({self.key[:12]}\n  first tokens ({len(tokens)}): {first}\n  examples:"
        return "\n    ".join([title, *examples]) + ")"


class _OneThread:
    """Lock that does not wait: MatcherError is raised if another thread has it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise MatcherError("two threads use this matcher at once: give each thread its own `copy()`")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Matcher:
    """Position in one output: it computes the mask of the next token, and advances over tokens.

    One thread at a time may use a matcher; different matchers of a grammar may be used in parallel. A method raises
    MatcherError if another thread is in a method, and LimitExceededError, a GrammarError, if the grammar exceeds a
    limit on work or memory.

    Args:
        fsm: Automaton of the grammar.
        states: State before the first token, then the state after each accepted token. Empty: no token is accepted yet.
    """

    def __init__(self, fsm: TokenFSM, states: Sequence[int] = ()) -> None:
        self._fsm = fsm
        self._states = [*states] or [fsm.initial_state]
        self._one_thread = _OneThread()

    @property
    def is_complete(self) -> bool:
        """True if the output may end here: an end token is allowed, or has been accepted."""
        return self._fsm.is_terminal(self._states[-1])

    @property
    def has_ended(self) -> bool:
        """True if an end token has been accepted."""
        return self._states[-1] == self._fsm.end_state

    def fill_bitmask(self, bitmask: Any, index: int = 0) -> None:
        """Write the mask of the next token to a row of a token bitmask.

        MatcherError is raised if the output has ended.

        Args:
            bitmask: int32 [rows, `Vocabulary.bitmask_width`], a numpy array or a torch tensor on the CPU.
            index: Number of the row.

        Raises:
            WidthError: The bitmask has another shape or type.
        """
        rows, words = bitmask if isinstance(bitmask, np.ndarray) else bitmask.numpy(), self._fsm.vocabulary.mask_words
        if rows.shape[1:] != (words,) or rows.dtype != np.int32:
            raise WidthError(f"the bitmask must be int32 [rows, {words}], got {rows.dtype} {list(rows.shape)}")
        with self._one_thread:
            rows[index] = self._fsm.allowed_mask(self._open_state()).view(np.int32)

    def accept(self, token: int) -> bool:
        """Advance over a token. MatcherError is raised if the output has ended.

        Args:
            token: Token ID.

        Returns:
            True if the token is allowed. False otherwise; the matcher is then unchanged.
        """
        with self._one_thread:
            state = self._fsm.next_state(self._open_state(), operator.index(token))
            if state >= 0:
                self._states.append(state)
            return state >= 0

    def rollback(self, count: int = 1) -> None:
        """Undo the last `count` accepted tokens, 0 or more. An end token counts.

        Raises:
            MatcherError: Fewer tokens have been accepted.
        """
        with self._one_thread:
            if not 0 <= count < len(self._states):
                raise MatcherError(f"cannot roll back {count} of {len(self._states) - 1} accepted tokens")
            del self._states[len(self._states) - count :]

    def forced_tokens(self, limit: int = 64) -> list[int]:
        """Return the next tokens that have no alternative, at most `limit`. End tokens are not included."""
        with self._one_thread:
            return self._fsm.forced_tokens(self._states[-1], limit)

    def copy(self) -> Matcher:
        """Return an independent matcher at the same position."""
        with self._one_thread:
            return Matcher(self._fsm, self._states)

    def _open_state(self) -> int:
        if self.has_ended:
            raise MatcherError("the output has ended: roll back, or use a new `Grammar.matcher()`")
        return self._states[-1]


def fill_bitmasks(matchers: Sequence[Matcher | None], bitmask: Any) -> None:
    """Write the masks of the next tokens of several outputs to a token bitmask. Row i gets the mask of matcher i.

    The errors of `Matcher.fill_bitmask` are raised.

    Args:
        matchers: One matcher per row. None: all tokens are allowed, as for an output without a constraint.
        bitmask: int32 [rows, `Vocabulary.bitmask_width`], a numpy array or a torch tensor on the CPU.

    Raises:
        WidthError: The bitmask has fewer rows than there are matchers.
    """
    if len(matchers) > len(bitmask):
        raise WidthError(f"{len(matchers)} matchers need as many rows of the bitmask, got {len(bitmask)}")
    # In one thread: 32 uncached masks over 131,072 tokens take 0.3 ms on two CPU cores, and in two threads 0.7 ms.
    for index, matcher in enumerate(matchers):
        if matcher is None:
            bitmask[index] = -1
        else:
            matcher.fill_bitmask(bitmask, index)


def apply_bitmask(logits: Any, bitmask: Any) -> Any:
    """Set the logits of disallowed tokens to -inf.

    Args:
        logits: Float [rows, V]: a numpy array or a torch tensor, changed in place, or an MLX array.
        bitmask: Token bitmask, int32 [rows, ceil(V / 32)]: a numpy array, or a torch tensor on any device for torch.

    Returns:
        `logits`, or a new array for MLX.

    Raises:
        WidthError: The bitmask does not have one row per row of logits, and one bit per token.
    """
    (rows, tokens), package = logits.shape, type(logits).__module__.partition(".")[0]
    if tuple(bitmask.shape) != (rows, -(-tokens // 32)):
        raise WidthError(f"bitmask {list(bitmask.shape)} does not fit logits {[rows, tokens]}: set vocab_size={tokens}")
    if getattr(bitmask, "is_cpu", True):
        octets: Any = np.ascontiguousarray(bitmask).view(np.uint8)
        disallowed: Any = np.unpackbits(~octets, axis=1, count=tokens, bitorder="little").view(bool)
    else:  # a torch tensor on another device, which the CPU does not wait for
        import torch

        octets = bitmask.contiguous().view(torch.uint8)
        bits = octets[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=bitmask.device) & 1
        disallowed = bits.flatten(1)[:, :tokens] == 0
    if package == "torch":
        import torch

        return logits.masked_fill_(torch.as_tensor(disallowed).to(logits.device), -np.inf)
    if package == "mlx":
        import mlx.core as mx

        return mx.where(mx.array(disallowed), -mx.inf, logits)
    logits[disallowed] = -np.inf
    return logits

"""One request's grammar, as SGLang's scheduler drives it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from typing import Any

from torch import Tensor

from deployments.sglang.masks import apply_vocab_mask
from gpu_workers.vllm.backend import new_bitmask
from gpu_workers.vllm.grammar import RequestGrammar
from gpu_workers.vllm.reference import Reference
from grammar_workers import TokenFSM

_DRAFT_WALK = "traverse_tree"
"""SGLang's function that tries the drafts of a step and takes them back."""


class SharedAutomaton:
    """The automaton of all requests with one constraint.

    SGLang keeps a grammar forever, and its automaton grows with every output. An automaton that reached its limits, or
    holds mostly states that will not occur again, is replaced for the next request.
    """

    def __init__(self, reference: Reference, fsm: TokenFSM, end_token_ids: Collection[int]) -> None:
        self._reference = reference
        self._fsm = fsm
        self._end_token_ids = end_token_ids
        self.exhausted = False

    def new_grammar(self) -> RequestGrammar:
        """Return a grammar at its beginning. Raises ValueError and RequestError as `RequestGrammar` does."""
        if self.exhausted or self._fsm.is_worn:
            known = self._fsm
            self._fsm = TokenFSM.from_bytes(known.to_bytes(), known.vocabulary, key=known.key)
            self.exhausted = False
        return RequestGrammar.referred(self._reference, self._fsm, self._end_token_ids)


def grammar_class(base: Any) -> Any:
    """Return our `BaseGrammarObject` of `base`, SGLang's module."""

    class Grammar(base.BaseGrammarObject):
        """One request's grammar. `current_token`: the last token accepted; None before the first one."""

        def __init__(self, automaton: SharedAutomaton, tokens: int, stats: Any) -> None:
            super().__init__()
            self.grammar_stats = stats
            self._automaton = automaton
            self._tokens = tokens
            self._grammar = automaton.new_grammar()
            # Tokens accepted after the end, or drafts after the last state that is known; `rollback` counts them, too.
            self._beyond = 0
            self._followed = 0
            self._unmasked_at: int | None = None
            self._failed = False

        def accept_token(self, token: int) -> None:
            """Advance by one token.

            Raises:
                ValueError: The grammar does not allow the token or cannot go on. SGLang then ends this request with an
                    error. Drafts raise nothing: an error among them would end the scheduler.
            """
            if self._beyond or self._grammar.is_terminated() or not self._grammar.accept_tokens("", [token]):
                self._note_failure()
                if not self._ended and not _tries_drafts():
                    raise ValueError(self._why_not(token))
                self._beyond += 1
            else:
                self._followed += 1
            self.current_token = token

        def rollback(self, k: int) -> None:
            beyond = min(k, self._beyond)
            self._beyond -= beyond
            self._grammar.rollback(k - beyond)
            self._followed -= k - beyond
            # A draft that failed is gone. Where no mask could be made, nothing can follow.
            if self._unmasked_at is not None and self._followed < self._unmasked_at:
                self._unmasked_at = None
            self._grammar.failed = self._unmasked_at is not None

        def is_terminated(self) -> bool:
            """Return whether the output is complete, or nothing is known about the last draft."""
            return self._ended or self._beyond > 0

        def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> Tensor:
            """Return int32 [batch_size, words] on the host. All tokens are allowed."""
            return new_bitmask(batch_size, max(vocab_size, self._tokens))

        def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None:
            """Write the allowed tokens into a row. The row allows all if the grammar cannot go on."""
            self._grammar.fill_bitmask(vocab_mask, idx)
            if self._grammar.failed:
                self._unmasked_at = self._followed
            self._note_failure()

        @staticmethod
        def reset_vocab_mask(vocab_mask: Tensor) -> None:
            vocab_mask.fill_(-1)

        @staticmethod
        def move_vocab_mask(vocab_mask: Tensor, device: Any) -> Tensor:
            return vocab_mask.to(device, non_blocking=True)

        apply_vocab_mask = staticmethod(apply_vocab_mask)

        def copy(self) -> Any:
            """Return the grammar at its beginning, for another request."""
            stats = dataclasses.replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
            return type(self)(self._automaton, self._tokens, stats)

        def try_jump_forward(self, tokenizer: Any) -> None:
            """Return None. SGLang does not jump, and forced text would have other tokens than the model's."""

        @property
        def _ended(self) -> bool:
            return self._grammar.is_terminated() and not self._grammar.failed

        def _note_failure(self) -> None:
            self._failed |= self._grammar.failed
            self._automaton.exhausted |= self._grammar.failed

        def _why_not(self, token: int) -> str:
            if self._failed:
                return "the grammar of this request grew past its limits (SGLang's log says which): simplify it"
            return f"the grammar does not allow the token {token}"

    return Grammar


def _tries_drafts() -> bool:
    """Return whether SGLang tries drafts at present.

    It calls `accept_token` for drafts and for committed tokens alike, and handles errors of the latter only.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _DRAFT_WALK:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None

"""Grammar states of requests in SGLang. SGLang's scheduler gets the mask of the next token from the grammar state."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from typing import Any

from torch import Tensor

from deployments.sglang.masks import MaskMethods
from gpu_workers.vllm.grammar import RequestGrammar
from gpu_workers.vllm.reference import Reference
from grammar_workers import TokenFSM

# Name of SGLang's function that tries the drafts of a step and rolls them back.
_DRAFT_WALK = "traverse_tree"


class SharedAutomaton:
    """Automaton that all requests with one constraint share. It is loaded again if it has grown too large.

    SGLang caches a grammar for the life of the process, and the automaton gets more states with each output. Before a
    new request, the automaton is loaded again if it has reached its limits, or if its states use much memory and are
    rarely reached again.

    Args:
        reference: Key of the compiled grammar, and settings of the requests.
        fsm: Automaton of the grammar.
        end_token_ids: Token IDs that end an output. Empty: the end tokens of the vocabulary.

    Attributes:
        exhausted: True if the automaton has reached its limits. The grammar states of requests set this attribute.
    """

    def __init__(self, reference: Reference, fsm: TokenFSM, end_token_ids: Collection[int]) -> None:
        self._reference = reference
        self._fsm = fsm
        self._end_token_ids = end_token_ids
        self.exhausted = False

    def new_grammar(self) -> RequestGrammar:
        """Return the grammar state of a new request, at the start of its output.

        If the reference (constructor) has tokens of an output that the request continues, the state after these tokens
        is returned. ValueError is raised if the grammar does not allow the tokens. RequestError is raised if no output
        fits into the token budget of the reference.
        """
        self._fsm = self._fsm.renewed(force=self.exhausted)
        self.exhausted = False
        return RequestGrammar.referred(self._reference, self._fsm, self._end_token_ids)


class _GrammarMethods(MaskMethods):
    """Methods of Turnstile's subclass of SGLang's `BaseGrammarObject`, the grammar state of one request.

    Attributes:
        current_token: ID of the last token that `accept_token` was called with. None before the first token.
    """

    def __init__(self, automaton: SharedAutomaton, tokens: int, stats: Any) -> None:
        super().__init__()
        self.grammar_stats = stats
        self._automaton = automaton
        self._tokens = tokens
        self._grammar = automaton.new_grammar()
        # Number of tokens accepted after the end, or of drafts after the last known state. `rollback` counts them.
        self._beyond = 0
        self._followed = 0
        self._unmasked_at: int | None = None
        self._failed = False

    def accept_token(self, token: int) -> None:
        """Advance by one token.

        Args:
            token: ID of a generated token, or of a draft.

        Raises:
            ValueError: The grammar does not allow the token, or has exceeded its limits. SGLang then ends this
                request with an error. A draft raises nothing, because an error in a draft would end the scheduler.
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
        # A failed draft is gone. The grammar stays failed only at a state whose mask failed, and after it.
        if self._unmasked_at is not None and self._followed < self._unmasked_at:
            self._unmasked_at = None
        self._grammar.failed = self._unmasked_at is not None

    def is_terminated(self) -> bool:
        """Return whether the output has ended, or a token after the end or a disallowed draft was accepted."""
        return self._ended or self._beyond > 0

    def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None:
        """Write the mask of the next token into row `idx` of `vocab_mask`, int32 [B, words] on the host.

        If the automaton has exceeded its limits, the mask allows all tokens, and the next token is rejected.
        """
        self._grammar.fill_bitmask(vocab_mask, idx)
        if self._grammar.failed:
            self._unmasked_at = self._followed
        self._note_failure()

    @staticmethod
    def reset_vocab_mask(vocab_mask: Tensor) -> None:
        vocab_mask.fill_(-1)

    def copy(self) -> Any:
        """Return a new grammar state at the start of an output, for another request with the same constraint."""
        stats = dataclasses.replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
        return type(self)(self._automaton, self._tokens, stats)

    def try_jump_forward(self, tokenizer: Any) -> None:
        """Return None: no jump-forward decoding, because the model would tokenize forced text differently."""

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


def grammar_class(base: Any) -> Any:
    """Create Turnstile's subclass of SGLang's `BaseGrammarObject`.

    The class is created in a function, so that this module can be imported without SGLang.

    Args:
        base: SGLang's module `base_grammar_backend`.

    Returns:
        The class. Arguments of its constructor: a `SharedAutomaton`, the width V of the logits, and SGLang's
        `GrammarStats`.
    """

    class Grammar(_GrammarMethods, base.BaseGrammarObject):
        """Grammar state of one request: the state of the automaton after the tokens so far."""

    return Grammar


def _tries_drafts() -> bool:
    """Return whether SGLang tries drafts at present.

    SGLang calls `accept_token` for drafts and for committed tokens, but handles errors for committed tokens only.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _DRAFT_WALK:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None

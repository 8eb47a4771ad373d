"""Grammar state of one request. The method names are those of vLLM's `StructuredOutputGrammar` (vLLM 0.29 to 0.33)."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from gpu_workers.guided.output_budget import OutputBudget, row_of
from gpu_workers.vllm.reference import Reference
from gpu_workers.vllm.timings import Timings
from grammar_workers import TokenFSM
from grammar_workers.logs import get_logger
from grammar_workers.types import MaskRow

logger = get_logger("vllm.turnstile")


class RequestGrammar:
    """Grammar state of one request in vLLM: a list with the automaton's state after each number of accepted tokens.

        tokens          {   "a  ":  1   <end>
        states      0   4   9   12  13  end

    A rollback truncates the list. End tokens are allowed only where the output is complete, unless the grammar itself
    allows nothing else. Before `min_tokens` tokens, end tokens are allowed only if nothing else is allowed.

    The constructor raises ValueError if the grammar does not allow `emitted_token_ids`, or if these tokens have already
    ended the output. It raises RequestError if no output fits into `max_tokens`. The methods catch all errors of the
    automaton, because an exception in the scheduler's thread would end all requests. After an error (for example, the
    automaton has exceeded its limits), `failed` is true and every further token is rejected. vLLM then ends the request
    with an error.

    Args:
        fsm: Automaton of the grammar.
        end_token_ids: Tokens that end this request in vLLM: end tokens of the model and stop tokens of the client. If
            empty, the end tokens of the model.
        min_tokens: Minimum number of output tokens, emitted ones included.
        emitted_token_ids: Earlier tokens of this output, which vLLM treats as part of the prompt.
        max_tokens: Number of tokens within which the output must be complete (`finish_within_budget`). Emitted tokens
            count, the end token does not. None: the masks do not depend on a token limit.
        timings: Object that records the durations of operations; None: durations are not shared with other processes.

    Attributes:
        failed: True after an error. No mask can be computed then, until `reset`.
    """

    def __init__(
        self,
        fsm: TokenFSM,
        end_token_ids: Collection[int],
        *,
        min_tokens: int = 0,
        emitted_token_ids: Sequence[int] = (),
        max_tokens: int | None = None,
        timings: Timings | None = None,
    ) -> None:
        self._fsm = fsm
        self._end_token_ids = frozenset(end_token_ids) or frozenset(fsm.vocabulary.eos_token_ids)
        self._min_tokens = min_tokens - len(emitted_token_ids)
        self._timings = timings or Timings()
        self._budget: OutputBudget | None = None
        self.failed = False
        self._states = [fsm.initial_state]
        self._states[0] = self._state_after(emitted_token_ids)
        if max_tokens is not None:
            self._budget = OutputBudget(fsm, emitted_token_ids, max_tokens)
        own = frozenset(fsm.vocabulary.eos_token_ids)
        # If the end tokens of request and automaton are equal, the automaton's masks can be used unchanged.
        self._plain = own == self._end_token_ids and self._min_tokens <= 0
        words = -(-fsm.vocabulary.size // 32)
        self._ends = row_of(self._end_token_ids, words)
        self._rest = ~(self._ends | row_of(own, words))

    @classmethod
    def referred(cls, reference: Reference, fsm: TokenFSM, end_token_ids: Collection[int], **settings: Any) -> Self:
        """Create the grammar state of a request from a reference: the text `turnstile:KEY?settings` in the request.

        ValueError is raised if the grammar does not allow the reference's `emitted_token_ids`, or if these tokens have
        already ended the output. RequestError is raised if no output fits into the reference's `max_tokens`.

        Args:
            reference: The parsed reference.
            fsm: Automaton of the reference's grammar key.
            end_token_ids: Tokens that end this request in vLLM. If empty, the end tokens of the model.
            **settings: Further arguments of the constructor.

        Returns:
            The grammar state, after the reference's `emitted_token_ids`.
        """
        return cls(
            fsm,
            end_token_ids,
            min_tokens=reference.min_tokens,
            emitted_token_ids=reference.emitted_token_ids,
            max_tokens=reference.max_tokens,
            **settings,
        )

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance the grammar state over tokens of the output, if all of them are allowed.

        After the end of the output any token is accepted, because a request may ignore end tokens. `rollback` must
        count these tokens, too.

        Args:
            request_id: Not used.
            tokens: The tokens.

        Returns:
            True if all tokens were accepted. False if one is disallowed or `failed` is set; the state has then not
            changed.
        """
        began = time.perf_counter()
        try:
            accepted = not self.failed and self._accept(tokens)
        except Exception as error:
            accepted = False
            self._fail(error)
        self._timings.accept.note(time.perf_counter() - began)
        return accepted

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the longest prefix of `tokens` that the grammar allows after the accepted tokens.

        The grammar state does not change.

        Args:
            tokens: Tokens that may come next, such as drafts.

        Returns:
            The allowed tokens; empty after the end of the output, or if `failed` is set.
        """
        try:
            return [] if self.failed else tokens[: len(self._states_after(tokens))]
        except Exception as error:
            self._fail(error)
            return []

    def with_forced_tokens(self, drafts: list[int], most: int) -> list[int]:
        """Return drafts (proposed tokens) for the next step: forced tokens, or vLLM's drafts.

        A forced token is the only token that the grammar allows. Forced tokens are returned if there are more of them
        than leading tokens of `drafts` that the grammar allows.

        Args:
            drafts: Drafts of vLLM.
            most: Maximum number of forced tokens.

        Returns:
            Forced tokens, at most `most`, or `drafts` unchanged.
        """
        allowed = self.validate_tokens(drafts)
        if self.failed or len(allowed) >= most:
            return drafts
        try:
            forced = self._fsm.forced_tokens(self._states[-1], most)
        except Exception as error:
            self._fail(error)
            return drafts
        return forced if len(forced) > len(allowed) else drafts

    def rollback(self, num_tokens: int) -> None:
        """Roll back the last accepted tokens.

        Args:
            num_tokens: Number of tokens to roll back, tokens after the end of the output included; 0 changes nothing.
        """
        if num_tokens > 0:
            del self._states[-num_tokens:]
            if self._budget is not None:
                self._budget.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Tensor, index: int) -> None:
        """Write the mask of the next token into one row of a token bitmask.

        Tokens beyond the vocabulary are disallowed. If the mask cannot be computed, every token is allowed and `failed`
        is set.

        Args:
            bitmask: Token bitmask, int32 [rows, words] on the host. The lowest bit of a word is its first token.
            index: Row of the bitmask.
        """
        began = time.perf_counter()
        row = bitmask[index].numpy()
        try:
            mask = self._row()
            row[: len(mask)] = mask.view(np.int32)
            row[len(mask) :] = 0
        except Exception as error:
            row[:] = -1  # as vLLM does after the end of a grammar
            self._fail(error)
        self._timings.fill.note(time.perf_counter() - began)

    def is_terminated(self) -> bool:
        """Return whether no mask applies, because the output has ended or `failed` is set."""
        return self.failed or self._states[-1] == self._fsm.end_state

    def reset(self) -> None:
        """Roll back all accepted tokens, except the constructor's `emitted_token_ids`, and set `failed` to false."""
        self.failed = False
        del self._states[1:]
        if self._budget is not None:
            self._budget.reset()

    def _fail(self, error: Exception) -> None:
        """Mark this request as failed, and log the error."""
        self.failed = True
        logger.error("grammar failed: key=%s", self._fsm.key, exc_info=error)

    def _accept(self, tokens: list[int]) -> bool:
        after = self._states_after(tokens)
        if len(after) < len(tokens):
            if (after or self._states)[-1] != self._fsm.end_state:
                return False
            after += [self._fsm.end_state] * (len(tokens) - len(after))
        if self._budget is not None:
            self._budget.accept(tokens, after)
        self._states += after
        return True

    def _row(self) -> MaskRow:
        mask = self._fsm.allowed_mask(self._states[-1])
        if self._budget is not None:
            mask = self._budget.row(mask, self._states[-1])
        return mask if self._plain else self._with_ends(mask)

    def _with_ends(self, mask: np.ndarray) -> np.ndarray:
        others = mask & self._rest
        ends = self._ends if self._fsm.is_terminal(self._states[-1]) else np.zeros_like(mask)
        if not others.any():
            return ends if ends.any() else mask
        return others if len(self._states) <= self._min_tokens else others | ends

    def _states_after(self, tokens: Sequence[int]) -> list[int]:
        """Return the state after each of `tokens`, up to a disallowed one or the one that ends the output."""
        state, after = self._states[-1], []
        for token_id in tokens:
            if state == self._fsm.end_state:
                break
            if token_id in self._end_token_ids and self._fsm.is_terminal(state):
                state = self._fsm.end_state
            elif (state := self._fsm.next_state(state, token_id)) < 0:
                break
            after.append(state)
        return after if self._budget is None else after[: self._budget.count_fitting(tokens, after)]

    def _state_after(self, emitted_token_ids: Sequence[int]) -> int:
        states = [*self._states, *self._states_after(emitted_token_ids)]
        if len(states) <= len(emitted_token_ids):
            raise ValueError(f"token {len(states) - 1} of those emitted before is not allowed by the grammar")
        if states[-1] == self._fsm.end_state:
            raise ValueError("the tokens emitted before end the output already")
        return states[-1]

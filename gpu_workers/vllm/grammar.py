"""One request's way through its automaton, by the names of vLLM's `StructuredOutputGrammar` (vLLM 0.29 to 0.33)."""

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
    """The grammar state after each token of the output, the one before them first: going back is cutting the list.

        tokens          {   "a  ":  1   <end>
        states      0   4   9   12  13  end

    `end_token_ids`: what ends this request in vLLM: end tokens of the model and stop tokens of the user. They are
    allowed where the output is complete and nowhere else, but where the grammar leaves nothing but one of them; before
    `min_tokens` tokens only where nothing else is allowed. `emitted_token_ids`: tokens of this output that came out
    before, which vLLM takes for a part of the prompt. With `max_tokens` the output is complete within so many tokens,
    an end token not counted (`finish_within_budget`). Both numbers are of the whole output, emitted tokens included.

    Raises ValueError for emitted tokens that the grammar does not allow or that end the output already, and
    RequestError where no output fits into `max_tokens`. Nothing raises later, in the scheduler's thread, where it would
    be the end of all requests: a grammar that cannot go on (an automaton that has grown past its limits) refuses every
    token from then on, with which vLLM ends its request as an error; `failed` tells.
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
        # The automaton's own rows say everything where both agree on what ends an output.
        self._plain = own == self._end_token_ids and self._min_tokens <= 0
        words = -(-fsm.vocabulary.size // 32)
        self._ends = row_of(self._end_token_ids, words)
        self._rest = ~(self._ends | row_of(own, words))

    @classmethod
    def referred(cls, reference: Reference, fsm: TokenFSM, end_token_ids: Collection[int], **settings: Any) -> Self:
        """The grammar that `reference` asks for; `fsm` is the automaton of its key. `settings` and errors as above."""
        return cls(
            fsm,
            end_token_ids,
            min_tokens=reference.min_tokens,
            emitted_token_ids=reference.emitted_token_ids,
            max_tokens=reference.max_tokens,
            **settings,
        )

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Goes on over `tokens`, or stays and says False where one of them is not allowed.

        Anything may follow the end, as vLLM goes on where it ignores end tokens. Such a token counts as accepted:
        `rollback` takes it back like any other.
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
        """The longest prefix of `tokens` that is allowed here; nothing is allowed after the end."""
        try:
            return [] if self.failed else tokens[: len(self._states_after(tokens))]
        except Exception as error:
            self._fail(error)
            return []

    def with_forced_tokens(self, drafts: list[int], most: int) -> list[int]:
        """Drafts for this place: forced tokens, at most `most`, if they are more than the allowed part of `drafts`.

        One of the two begins with the other, because no other token is allowed in place of a forced one.
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
        """Takes back the last `num_tokens` tokens accepted, those after the end included."""
        if num_tokens > 0:
            del self._states[-num_tokens:]
            if self._budget is not None:
                self._budget.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Tensor, index: int) -> None:
        """Writes what may come next into a row of `bitmask`, int32 [rows, words] on the host, lowest bit first.

        Tokens past the vocabulary are not allowed.
        """
        began = time.perf_counter()
        row = bitmask[index].numpy()
        try:
            mask = self._row()
            row[: len(mask)] = mask.view(np.int32)
            row[len(mask) :] = 0
        except Exception as error:
            row[:] = -1  # as vLLM fills it where a grammar has come to its end
            self._fail(error)
        self._timings.fill.note(time.perf_counter() - began)

    def is_terminated(self) -> bool:
        """Whether anything may come: behind the end, and where the grammar cannot go on."""
        return self.failed or self._states[-1] == self._fsm.end_state

    def reset(self) -> None:
        self.failed = False
        del self._states[1:]
        if self._budget is not None:
            self._budget.reset()

    def _fail(self, error: Exception) -> None:
        """Ends this request and nothing else."""
        self.failed = True
        logger.error("the grammar %s cannot go on", self._fsm.key, exc_info=error)

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
        """The state after each of `tokens`, as far as they are allowed; none after the one that ends the output."""
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

"""State of one generation (a prompt and its output), and the rules by which it advances and ends."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from collections.abc import Sequence as PySequence
from concurrent.futures import Future
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from gpu_workers.guided.banned_text import PATIENCE, BannedText, HeldToken
from gpu_workers.guided.masks import Constraint, advance, begun
from gpu_workers.guided.output_budget import OutputBudget
from gpu_workers.output import FinishReason, OutputStream
from gpu_workers.request import GenerationRequest
from gpu_workers.sampling.allowed_tokens import AllowedTokens
from gpu_workers.sampling.logprobs import TokenNames, TokenReport
from gpu_workers.sampling.penalties import History
from gpu_workers.sampling.sampler import Draw
from gpu_workers.sequence.drafts import Draft, Drafter
from gpu_workers.sequence.output_text import OutputText
from gpu_workers.sequence.step_result import StepResult
from gpu_workers.sequence.times import Times
from grammar_workers import TokenFSM, Vocabulary

Description = Callable[[], dict[str, Any]] | None  # returns the report on a token; None: no report is needed


class State(Enum):
    """State of a generation. It is independent of the slot of the KV cache, which a generation may lose and get again.

        AWAITING_GRAMMAR --constrain--> UNSETTLED --settle--> RUNNING --append--> UNSETTLED ...
                                           |
                                           `--> FINISHED

    Attributes:
        AWAITING_GRAMMAR: The grammar has not arrived. The prompt can be computed, but no token can be sampled.
        UNSETTLED: The engine has not decided yet if the output ends after its last token. Under a grammar, this needs
            the grammar state after this token, and sometimes the mask of the state.
        RUNNING: The output goes on. Tokens without keys and values in the KV cache go into the next step. Then a token
            is sampled.
        FINISHED: The output has ended; `Sequence.finish_reason` has the reason.
    """

    AWAITING_GRAMMAR = auto()
    UNSETTLED = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """One generation: a prompt and its output, with its grammar state and its drafts (proposed next tokens).

        token_ids   p p p p p p o o o o       p: prompt, o: output
        length      `--- computed ---'        keys and values of these tokens are in the slot of the KV cache
        pending                       `-'     these tokens go into the next step (forward pass of the batch)

    If no token is pending, `hidden_state` belongs to the last token, and the next token is sampled as soon as its mask
    is available. A step also processes the drafts. As long as each sampled token equals its draft, no token becomes
    pending.

    Args:
        request: The request. Its `emitted_token_ids` are the beginning of the output.
        prompt_token_ids: Tokens of the prompt, at least 1 and fewer than `max_model_len`.
        vocabulary: Vocabulary of the model.
        max_model_len: Maximum number of tokens of prompt and output together.
        stream: Stream to which the output is written.
        drafter: Proposes drafts from the grammar and earlier text; None: no drafts from these sources.

    Attributes:
        request: The request.
        stream: Stream to which the output is written.
        token_ids: Tokens of prompt and output.
        state: State of the generation.
        finish_reason: Reason of the end; None until `state` is FINISHED.
        slot: Slot of the KV cache; None while the sequence waits for one.
        length: Number of leading tokens whose keys and values are in the slot.
        written: Number of positions of the slot that this sequence may have written.
        blocked_steps: Number of consecutive steps without a mask, counted while other sequences wait for a slot.
        drafts: Drafts for the next step, in order.
        times: Times of the events in this generation.
        constraint: Grammar state; None without a grammar or before it has arrived.
        budget: Output budget, which ensures that the output is complete within its token limit. None without the
            setting `finish_within_budget`, or before the grammar has arrived.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        vocabulary: Vocabulary,
        max_model_len: int,
        stream: OutputStream,
        drafter: Drafter | None = None,
    ) -> None:
        assert 0 < len(prompt_token_ids) < max_model_len
        self.request = request
        self.stream = stream
        self.token_ids = [*prompt_token_ids, *request.emitted_token_ids]
        self.state = State.UNSETTLED if request.grammar is None else State.AWAITING_GRAMMAR
        self.finish_reason: FinishReason | None = None
        self.slot: int | None = None
        self.length = 0
        self.written = 0
        self.blocked_steps = 0
        self.drafts: list[Draft] = []
        self.times = Times()
        self._vocabulary = vocabulary
        self._prompt_length = len(prompt_token_ids)
        sampling, room = request.sampling, max_model_len - self._prompt_length
        self._max_tokens = min(sampling.max_tokens or room, room)
        self._prompt_ids = np.unique(np.array(prompt_token_ids, dtype=np.int64)) if sampling.penalizes else None
        self.constraint: Constraint | None = None  # None until the grammar has arrived
        self._drafter = drafter
        self._result = StepResult()
        self._banned = None if sampling.banned_words is None else BannedText(sampling.banned_words, sampling.stop)
        self._gave_up = False  # the output was truncated after too many rollbacks
        self.budget: OutputBudget | None = None  # set with the grammar, for `finish_within_budget`
        self._names = TokenNames(vocabulary) if sampling.reports else None
        self.text = OutputText(request, vocabulary)

    @property
    def pending(self) -> int:
        """Number of tokens whose keys and values are not in the KV cache yet."""
        return len(self.token_ids) - self.length

    @property
    def output_length(self) -> int:
        """Number of output tokens, an end token included."""
        return len(self.token_ids) - self._prompt_length

    @property
    def _left(self) -> int:
        return self._max_tokens - self.output_length

    @property
    def runnable(self) -> bool:
        """True if the sequence has pending tokens (not yet in the KV cache) that may go into the next step.

        A prompt does not wait for its grammar.
        """
        return self.pending > 0 and self.state in (State.RUNNING, State.AWAITING_GRAMMAR)

    @property
    def blocked(self) -> bool:
        """True if the sequence cannot advance until a mask of its grammar has been computed."""
        if self.constraint is None or self.text.stopped:
            return False
        idle = self.state is State.UNSETTLED or (self.state is State.RUNNING and self.pending == 0)
        return idle and self.constraint.blocked

    @property
    def reading(self) -> Future[Any] | None:
        """Future of the mask for which this sequence waits; None if it waits for none, or if its masks are slow."""
        if self.constraint is None or not self.constraint.reads_fast:
            return None
        return self.constraint.reading()

    @property
    def hidden_state(self) -> Tensor | None:
        """Hidden state of the last token, [H]; None if a forward pass must compute it first."""
        return self._result.hidden_state

    @property
    def drawn(self) -> int | None:
        """The next token, if the device has sampled it and the output goes on; None otherwise."""
        return self._result.drawn if self.state is State.RUNNING else None

    def replay(self, fsm: TokenFSM | None) -> int:
        """Advance grammar and text over the tokens of a resumed output (`emitted_token_ids` of the request).

        The client already has the text of these tokens. Call the method once for every sequence, before the engine
        thread reads the sequence. ForbiddenTokenError is raised if the grammar disallows a token. RequestError is
        raised if no output of the grammar begins with the request's `begun_text`, or if no output fits into the token
        limit (`finish_within_budget`).

        Args:
            fsm: Automaton of the grammar; None without a grammar.

        Returns:
            Grammar state after `begun_text` and the tokens, which is the initial state if there are none; -1 without a
            grammar.
        """
        before, state = ([], -1) if fsm is None else begun(fsm, self.request)
        for position, token_id in enumerate(self.request.emitted_token_ids):
            complete_before = fsm is not None and fsm.is_terminal(state)
            if fsm is not None:
                state = advance(fsm, state, token_id)
            text = self.text.append(token_id, position, complete_before=complete_before)
            if callable(text):
                text()
            if self._banned is not None:
                self._banned.skip(self._vocabulary.token_bytes(token_id))
        if self.request.sampling.finish_within_budget and fsm is not None:
            token_ids = [*before, *self.request.emitted_token_ids]
            self.budget = OutputBudget(fsm, token_ids, self._max_tokens + len(before))
        return state

    def constrain(self, constraint: Constraint) -> float:
        """Attach the grammar to the sequence, when it has arrived. Call this method once, after `replay`.

        Args:
            constraint: Grammar state after the tokens of `replay`.

        Returns:
            Seconds for which the sequence had nothing to do but wait for the grammar: the time since the end of
            prefill; 0 if prefill has not ended.
        """
        assert self.state is State.AWAITING_GRAMMAR
        self.constraint = constraint
        self.state = State.UNSETTLED
        self.times.note("constrained")
        return self.times.grammar_late_s()

    def catch_up(self) -> None:
        """Advance the grammar state over the last token, unless this would wait for another thread.

        ForbiddenTokenError is raised if the grammar does not allow the token.
        """
        if self.constraint is not None:
            self.constraint.catch_up()

    def settle(self) -> None:
        """Decide if the output ends after its last token: change `state` from UNSETTLED to FINISHED or RUNNING.

        If the grammar state or a needed mask is not available yet, `state` stays UNSETTLED. The call starts to compute
        the mask. If this computation fails, a later call raises its error.
        """
        if self.state is not State.UNSETTLED:
            return
        if self.text.stopped:
            return self._finish("length" if self._gave_up else "stop")
        complete = only_end = False
        if self.constraint is not None:
            if self.constraint.behind:
                return
            allowed = self.constraint.allowed()
            complete = self.constraint.is_terminal
            if complete:
                if allowed is None:
                    return
                only_end = allowed.only_end
                if allowed.count == 0 or (only_end and not self.request.sampling.probe):
                    return self._finish("stop")
        if self._left > 0 or only_end:  # a search asks for the probability of the end at the limit, too
            self.state = State.RUNNING
        else:
            self._finish("stop" if self.budget is not None and complete else "length")

    def append_forced(self) -> int:
        """Append forced tokens (each the only token that the grammar allows), without a forward pass.

        If the request needs reports (`logprobs`, `diagnostics` or `probe`), nothing is appended, because a report needs
        the logits of its token.

        Returns:
            Number of appended tokens.
        """
        if self.request.sampling.reports:
            return 0
        before = len(self.token_ids)
        constraint = self.constraint
        while constraint is not None and self.state is State.RUNNING:
            forced = constraint.table.forced_text(constraint.state)
            if forced is None or not forced.sole:
                break
            constraint.follow(zip(forced.token_ids, forced.states, strict=True))
            for token_id in forced.token_ids[: forced.sole]:
                self.append(token_id)
                self.settle()
                if self.state is not State.RUNNING:
                    break
        return len(self.token_ids) - before

    @property
    def draft_room(self) -> int:
        """Maximum number of drafts (proposed tokens) in the next step; 0 unless RUNNING with pending tokens.

        A step samples one more token after the accepted drafts, so the maximum is the number of remaining output tokens
        minus 1.
        """
        return self._left - 1 if self.state is State.RUNNING and self.pending else 0

    def propose(self) -> None:
        """Replace `drafts` (proposed next tokens, which the next step verifies) by new ones from the drafter.

        Without a drafter, or without room for drafts, `drafts` becomes empty.
        """
        self.drafts = []
        if self._drafter is not None and self.draft_room > 0:
            self.use_drafts(*self._drafter.propose(self.token_ids, self.constraint, self.draft_room))

    def use_drafts(self, drafts: list[Draft], states: list[int]) -> None:
        """Replace `drafts` (proposed next tokens) by the given ones, and start to compute the masks after them.

        Args:
            drafts: The new drafts, in order.
            states: `states[i]` is the grammar state after `drafts[i]`; -1 without a grammar.
        """
        self.drafts = drafts
        if self.constraint is not None:
            self.constraint.follow((draft.token_id, state) for draft, state in zip(drafts, states, strict=True))
            self.constraint.prefetch()

    def receive(self, hidden_states: Tensor) -> None:
        """Store the hidden states that a step has computed, or is still computing on the device.

        Args:
            hidden_states: [1 + k, H]: the hidden state of the last token, then those of the first k drafts.
        """
        self._result.put(hidden_states, self.drafts)

    def receive_drawn(self, drawn: PySequence[tuple[int, int]]) -> None:
        """Store the next tokens, which the device has sampled. `drawn` returns them one by one, to be appended.

        Args:
            drawn: Pairs (token, grammar state after the token), in order. The state is -1 if it is unknown, or without
                a grammar.
        """
        self._result.put_drawn(token_id for token_id, _ in drawn)
        if self.constraint is not None:
            self.constraint.follow(drawn)

    def draw(self) -> Draw | None:
        """Return the inputs for sampling the next token. An error of the computation of the mask is raised.

        Returns:
            The inputs; None if `state` is not RUNNING, or if the mask has not been computed yet.

        Raises:
            RuntimeError: The grammar allows no token in its current state.
        """
        if self.state is not State.RUNNING:
            return None
        allowed = None
        if self.constraint is not None:
            allowed = self.constraint.drawable()
            if allowed is None:
                return None
            if allowed.count == 0:
                raise RuntimeError(f"grammar state {self.constraint.state} allows no token")
        return self._draw(allowed)

    def append(self, token_id: int, report: TokenReport | None = None) -> None:
        """Append a sampled or forced token, and write it to the stream.

        Text that could begin a stop string is held back, and so are tokens that could belong to a banned word. If the
        token completes a banned word, the output is rolled back to the beginning of this word.

        Args:
            token_id: The token.
            report: Log-probabilities and diagnostics of the token; None if the request needs no reports.
        """
        self.times.note("first_token")
        position = self.output_length
        self.token_ids.append(token_id)
        self.state = State.UNSETTLED
        drafted = self._result.advance(token_id)
        self.length += drafted
        complete_before = self.constraint is not None and self.constraint.is_terminal
        described = self._describe(position, report, drafted=drafted, complete=complete_before)
        if self._banned is not None:
            return self._append_unless_banned(token_id, described)
        text = self.text.append(token_id, position, complete_before=complete_before)
        if self.constraint is not None and not self.text.stopped:
            self.constraint.accept(token_id)
        self.stream.push(token_id, text, described)

    def suspend(self) -> None:
        """Reset the sequence after the loss of its slot: keys and values of all its tokens count as not computed."""
        self.length = self.written = self.blocked_steps = 0
        self._result.clear()

    def _draw(self, allowed: AllowedTokens | None) -> Draw:
        excluded = self.text.unwanted(self.output_length)
        attempt = 0
        if self._banned is not None:
            tried = self._banned.excluded(self.output_length)
            excluded |= tried
            # The random number also depends on the output so far: numbers that led to a banned word must not select
            # the text that replaces the word.
            output = np.array(self.token_ids[self._prompt_length :], dtype=np.int64)
            attempt = (zlib.crc32(output.tobytes()) + len(tried)) % 2**32
        if allowed is not None and excluded:
            rest = allowed.without(excluded)
            allowed = rest if rest.count else allowed  # the grammar takes precedence
        history = None
        if self._prompt_ids is not None:
            history = History(self._prompt_ids, self.token_ids[self._prompt_length :])
        # The drafts from this position on go into the next step, or were in the last one.
        drafts = self.drafts if self.hidden_state is None else self._result.drafts
        return Draw(
            self.request.sampling,
            self.request.choice_index,
            self.output_length,
            allowed,
            history,
            excluded if allowed is None else frozenset(),
            attempt,
            drafts[0].proposal if drafts else None,
        )

    def _describe(self, position: int, report: TokenReport | None, *, drafted: bool, complete: bool) -> Description:
        if report is None or self._names is None:
            return None
        state = None if self.constraint is None else self.constraint.state
        rolled_back = 0 if self._banned is None else len(self._banned.excluded(position))
        return partial(self._names.describe, report, complete, state=state, drafted=drafted, rolled_back=rolled_back)

    def _append_unless_banned(self, token_id: int, report: Description) -> None:
        """Hold back a token for banned words; roll back to a banned word, or stream the tokens that are released."""
        assert self._banned is not None
        ends = self.text.ends(token_id)
        self._banned.append(HeldToken(token_id, b"" if ends else self._vocabulary.token_bytes(token_id), report))
        over = ends or self._left <= 0
        while (position := self._banned.go_back(over=over)) is not None:
            self._roll_back(position)
            self._gave_up = over = len(self._banned.excluded(position)) >= PATIENCE
            if not self._gave_up:
                return
        first = self.output_length - len(self._banned)
        for at, held in enumerate(self._banned.release(over=over), first):
            self.stream.push(held.token_id, self.text.append(held.token_id, at), held.report)
            if self.text.stopped:
                return
        self.text.stopped = self._gave_up

    def _roll_back(self, position: int) -> None:
        """Remove the output from `position` on. The token before it is computed again, for its hidden state."""
        del self.token_ids[self._prompt_length + position :]
        self.length = min(self.length, len(self.token_ids) - 1)
        self._result.clear()

    def _finish(self, reason: FinishReason) -> None:
        self.state, self.finish_reason = State.FINISHED, reason

"""One generation: its state, and the rules by which it goes on and ends."""

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

Description = Callable[[], dict[str, Any]] | None
"""The call that will say what was asked about a token."""


class State(Enum):
    """Where a generation stands. Whether it has a slot is another question, `Sequence.slot`.

    AWAITING_GRAMMAR --constrain--> UNSETTLED --settle--> RUNNING --append--> UNSETTLED ...
                                       |
                                       `--> FINISHED
    """

    AWAITING_GRAMMAR = auto()
    """The prompt is computed meanwhile; no token can be drawn."""
    UNSETTLED = auto()
    """Whether the output ends with its last token is open: the grammar's state behind it, or its mask, is not known."""
    RUNNING = auto()
    """The output goes on: pending tokens go into the next step, then a token is drawn."""
    FINISHED = auto()
    """`finish_reason` says why."""


class Sequence:
    """One prompt and what is generated after it.

        token_ids   p p p p p p o o o o
                    `- prompt -'`- output
        length      `--- computed ---'        keys and values of these are in the slot
        pending                       `-'     these go into the next step

    Always `length == len(token_ids) - pending`. When nothing is pending, `hidden_state` is the last token's, and the
    sequence waits to be sampled; it waits alone, however long its grammar or its mask takes. Drafts were computed
    behind the last token: while the tokens drawn are the ones drafted, their hidden states are there already and
    nothing becomes pending.

    The scheduler writes `slot`, `length`, `written` (positions of the slot that may hold something of this sequence)
    and `blocked_steps`; the rest changes only through methods.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        vocabulary: Vocabulary,
        max_length: int,
        stream: OutputStream,
        drafter: Drafter | None = None,
    ) -> None:
        assert 0 < len(prompt_token_ids) < max_length
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
        sampling, room = request.sampling, max_length - self._prompt_length
        self._max_tokens = min(sampling.max_tokens or room, room)
        # Distinct prompt tokens, for penalties alone: the output's are read off `token_ids`.
        self._prompt_ids = np.unique(np.array(prompt_token_ids, dtype=np.int64)) if sampling.penalizes else None
        self.constraint: Constraint | None = None  # the place in the grammar, once it has arrived
        self._drafter = drafter
        self._result = StepResult()
        self._banned = None if sampling.banned_words is None else BannedText(sampling.banned_words, sampling.stop)
        self._gave_up = False  # a limit on tries has cut the output
        self.budget: OutputBudget | None = None  # of `finish_within_budget`, once the grammar is there
        self._names = TokenNames(vocabulary) if sampling.reports else None
        self._text = OutputText(request, vocabulary)

    # -- what it is ready for ----------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return len(self.token_ids) - self.length

    @property
    def output_length(self) -> int:
        return len(self.token_ids) - self._prompt_length

    @property
    def _left(self) -> int:
        return self._max_tokens - self.output_length

    @property
    def runnable(self) -> bool:
        """Whether pending tokens may go into a step: prefill does not wait for the grammar, an open end does."""
        return self.pending > 0 and self.state in (State.RUNNING, State.AWAITING_GRAMMAR)

    @property
    def blocked(self) -> bool:
        """Whether the sequence can do nothing before a mask row of its grammar has been read."""
        if self.constraint is None or self._text.stopped:
            return False
        idle = self.state is State.UNSETTLED or (self.state is State.RUNNING and self.pending == 0)
        return idle and self.constraint.blocked

    @property
    def reading(self) -> Future[Any] | None:
        """The look-up that this sequence waits for, if it waits for one that may be there in a moment."""
        if self.constraint is None or not self.constraint.reads_fast:
            return None
        return self.constraint.reading()

    @property
    def hidden_state(self) -> Tensor | None:
        """The last token's row for the output head, [H]; None while it has to be computed."""
        return self._result.hidden_state

    @property
    def drawn(self) -> int | None:
        """The next token, where it was drawn on the device already and the sequence is ready for it."""
        return self._result.drawn if self.state is State.RUNNING else None

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """Tokens that may end the output."""
        return self._text.ending_token_ids

    # -- the grammar arrives -----------------------------------------------------------------------------------------

    def replay(self, fsm: TokenFSM | None) -> int:
        """Runs the tokens emitted before a resume through grammar and text; their text has been sent already.

        Returns the grammar state after them. Called once, before the engine thread looks at anything that this writes.
        Raises ForbiddenTokenError when they do not match the grammar, RequestError when no output fits the budget, or
        none begins with the text that is continued.
        """
        before, state = ([], -1) if fsm is None else begun(fsm, self.request)
        for position, token_id in enumerate(self.request.emitted_token_ids):
            complete_before = fsm is not None and fsm.is_terminal(state)
            if fsm is not None:
                state = advance(fsm, state, token_id)
            text = self._text.append(token_id, position, complete_before=complete_before)
            if callable(text):
                text()
            if self._banned is not None:
                self._banned.skip(self._vocabulary.token_bytes(token_id))
        if self.request.sampling.finish_within_budget and fsm is not None:
            token_ids = [*before, *self.request.emitted_token_ids]
            self.budget = OutputBudget(fsm, token_ids, self._max_tokens + len(before))
        return state

    def constrain(self, constraint: Constraint) -> float:
        """The grammar is there, `constraint` where `replay` ended. Returns how many seconds nothing was left to do."""
        assert self.state is State.AWAITING_GRAMMAR
        self.constraint = constraint
        self.state = State.UNSETTLED
        self.times.note("constrained")
        return self.times.grammar_late_s()

    # -- before a step -----------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Advances the grammar state over the last token. Raises what the FSM raises."""
        if self.constraint is not None:
            self.constraint.catch_up()

    def settle(self) -> None:
        """Decides whether the output ends here. Starts reading the state's row; raises what reading it raised.

        Open while the state is terminal and its row still being read: only end tokens may follow, perhaps.
        """
        if self.state is not State.UNSETTLED:
            return
        if self._text.stopped:
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
        """Appends the tokens that the grammar leaves no choice about, without a forward pass; returns how many.

        None for a request that is told about each token: it needs their logits, and they become drafts.
        """
        if self.request.sampling.reports:
            return 0
        before = len(self.token_ids)
        constraint = self.constraint
        while constraint is not None and self.state is State.RUNNING:
            forced = constraint.forced_text(constraint.state)
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
        """How many drafts may go into the next step: one token more is drawn than drafts come true."""
        return self._left - 1 if self.state is State.RUNNING and self.pending else 0

    def propose(self) -> None:
        """Renews `drafts`: what may follow the tokens that go into the next step."""
        self.drafts = []
        if self._drafter is not None and self.draft_room > 0:
            self.drafts = self._drafter.propose(self.token_ids, self.constraint, self.draft_room)

    def use_drafts(self, drafts: list[Draft], states: list[int]) -> None:
        """Sets `drafts` made elsewhere; `states[i]`: the grammar state after the i-th, if there is a grammar."""
        self.drafts = drafts
        if self.constraint is not None:
            self.constraint.follow((draft.token_id, state) for draft, state in zip(drafts, states, strict=True))
            self.constraint.prefetch()

    # -- after a step ------------------------------------------------------------------------------------------------

    def receive(self, hidden_states: Tensor) -> None:
        """The step's hidden states [1 + k, H], behind the last token and behind the first k drafts."""
        self.times.note("computed")
        self._result.put(hidden_states, self.drafts)

    def receive_drawn(self, drawn: PySequence[tuple[int, int]]) -> None:
        """Tokens that the device has drawn from the hidden states, each with the grammar state after it."""
        self._result.put_drawn(token_id for token_id, _ in drawn)
        if self.constraint is not None:
            self.constraint.follow(drawn)

    def draw(self) -> Draw | None:
        """What to sample next, fixed from here on; None while that is open. Raises what reading the row raised."""
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
        """Accepts a token, drawn or forced; streams the text that became certain and what is told about the token."""
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
        text = self._text.append(token_id, position, complete_before=complete_before)
        if self.constraint is not None and not self._text.stopped:
            self.constraint.accept(token_id)
        self.stream.push(token_id, text, described)

    def suspend(self) -> None:
        """The slot is gone: everything has to be computed again, and comes out the same."""
        self.length = self.written = self.blocked_steps = 0
        self._result.clear()

    def rest_of_text(self) -> str:
        """Text held back until now, when the output is over."""
        return self._text.rest()

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the output; None where something else did."""
        return self._text.stop_string

    # -- one token ---------------------------------------------------------------------------------------------------

    def _draw(self, allowed: AllowedTokens | None) -> Draw:
        excluded = self._text.unwanted(self.output_length)
        attempt = 0
        if self._banned is not None:
            tried = self._banned.excluded(self.output_length)
            excluded |= tried
            # What led to a word that was taken back must not decide what follows instead: another text, other numbers.
            output = np.array(self.token_ids[self._prompt_length :], dtype=np.int64)
            attempt = (zlib.crc32(output.tobytes()) + len(tried)) % 2**32
        if allowed is not None and excluded:
            rest = allowed.without(excluded)
            allowed = rest if rest.count else allowed  # the grammar wins
        history = None
        if self._prompt_ids is not None:
            history = History(self._prompt_ids, self.token_ids[self._prompt_length :])
        # The drafts for this position and those after it go into the step, or were in the last one.
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
        """Streams what no banned word can reach; returns to where a word began when there is one."""
        assert self._banned is not None
        ends = self._text.ends(token_id)
        self._banned.append(HeldToken(token_id, b"" if ends else self._vocabulary.token_bytes(token_id), report))
        over = ends or self._left <= 0
        while (position := self._banned.go_back(over=over)) is not None:
            self._roll_back(position)
            self._gave_up = over = len(self._banned.excluded(position)) >= PATIENCE
            if not self._gave_up:
                return
        first = self.output_length - len(self._banned)
        for at, held in enumerate(self._banned.release(over=over), first):
            self.stream.push(held.token_id, self._text.append(held.token_id, at), held.report)
            if self._text.stopped:
                return
        self._text.stopped = self._gave_up

    def _roll_back(self, position: int) -> None:
        """Forgets the output from `position` on; the token before it is computed again, for its hidden state."""
        del self.token_ids[self._prompt_length + position :]
        self.length = min(self.length, len(self.token_ids) - 1)
        self._result.clear()

    def _finish(self, reason: FinishReason) -> None:
        self.state, self.finish_reason = State.FINISHED, reason

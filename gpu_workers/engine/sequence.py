"""The state of one generation, and the rules by which it ends."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as PySequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from gpu_workers.guided.banned_text import PATIENCE, BannedText, HeldToken
from gpu_workers.guided.finish_budget import FinishBudget
from gpu_workers.guided.masks import AllowedTokens, Constraint, advance
from gpu_workers.model.text import TextStream
from gpu_workers.output import FinishReason, OutputStream, Text
from gpu_workers.request import GenerationRequest
from gpu_workers.sampling.logprobs import TokenNames, TokenReport
from gpu_workers.sampling.penalties import History
from gpu_workers.sampling.sampler import Draw
from gpu_workers.speculative.drafts import Draft, Drafter
from grammar_workers import TokenFSM, Vocabulary


class Sequence:
    """One prompt and what is generated after it.

        token_ids   p p p p p p o o o o
                    `- prompt -'`- output
        length      `--- computed ---'        keys and values of these are in the slot
        pending                       `-'     these go into the next step

    Always `length == len(token_ids) - pending`. When nothing is pending, `features` holds the last token's row for the
    output head and the sequence waits to be sampled; it waits alone, however long its grammar or its mask takes.
    Drafts were computed behind the last token: while the tokens drawn are the ones drafted, their features are there
    already and nothing becomes pending.

    The scheduler writes `slot`, `length`, `written` (places of the slot that may hold something of this sequence) and
    `idle_steps`; the rest changes only through methods.
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
        self.slot: int | None = None
        self.length = 0
        self.written = 0
        self.idle_steps = 0
        self.drafts: list[Draft] = []
        self.features: Tensor | None = None
        self.finish_reason: FinishReason | None = None
        self._stands_since: float | None = None  # the prompt was computed, the grammar not there
        self._vocabulary = vocabulary
        sampling = request.sampling
        self._end_token_ids = frozenset(vocabulary.eos_token_ids)
        self._stop_token_ids = frozenset(sampling.stop_token_ids)
        self._prompt_length = len(prompt_token_ids)
        room = max_length - self._prompt_length
        self._max_tokens = min(sampling.max_tokens or room, room)
        # Distinct prompt tokens, for penalties alone: the output's are read off `token_ids`.
        self._prompt_ids = np.unique(np.array(prompt_token_ids, dtype=np.int64)) if sampling.penalizes else None
        self._constraint: Constraint | None = None
        self._drafter = drafter
        self._ahead: deque[tuple[Draft, Tensor]] = deque()
        self._drawn: deque[int] = deque()
        self._banned = None if sampling.banned_words is None else BannedText(sampling.banned_words, sampling.stop)
        self._budget = FinishBudget() if sampling.finish_within_budget else None
        self._names = TokenNames(vocabulary) if sampling.reports else None
        self._shown: dict[int, bytes] = {}  # special tokens that are text
        if request.special_token_text:
            self._shown = {token_id: name.encode() for name, token_id in vocabulary.special_tokens.items()}
        self._text = TextStream(sampling.stop, constrained=request.grammar is not None)
        self._stopped = False
        self._settled = False

    @property
    def pending(self) -> int:
        return len(self.token_ids) - self.length

    @property
    def output_length(self) -> int:
        return len(self.token_ids) - self._prompt_length

    @property
    def _left(self) -> int:
        """How many more tokens the output may have."""
        return self._max_tokens - self.output_length

    @property
    def undecided(self) -> bool:
        """Whether a drawn token waits to be accepted or turned down."""
        return self._budget is not None and self._budget.candidate is not None

    @property
    def awaits_grammar(self) -> bool:
        return self.request.grammar is not None and self._constraint is None

    @property
    def runnable(self) -> bool:
        """Whether pending tokens may go into a step: prefill does not wait for the grammar, an open end does."""
        return self.pending > 0 and (self._settled or self.awaits_grammar)

    @property
    def held_up(self) -> bool:
        """Whether the sequence can do nothing before a row of its grammar has been read."""
        if self._constraint is None or self._stopped or self.finish_reason:
            return False
        if self._budget is not None and self._budget.candidate is not None:
            return False
        return self._constraint.held_up and (self.pending == 0 or not self._settled)

    @property
    def reading(self) -> Future[Any] | None:
        """The look-up that this sequence waits for, if it waits for one that may be there in a moment."""
        if self._budget is not None and self._budget.candidate is not None:
            return self._budget.candidate.completion
        if self._constraint is None or not self._constraint.reads_fast:
            return None
        return self._constraint.reading()

    def replay(self, fsm: TokenFSM | None) -> int:
        """Runs the tokens emitted before a resume through grammar and text; their text has been sent already.

        Returns the grammar state after them. Called once, before the engine thread looks at anything that this writes.
        Raises ForbiddenTokenError when they do not match the grammar, RequestError when no output fits the budget.
        """
        state = -1 if fsm is None else fsm.initial_state
        for position, token_id in enumerate(self.request.emitted_token_ids):
            complete_before = fsm is not None and fsm.is_terminal(state)
            if fsm is not None:
                state = advance(fsm, state, token_id)
            text = self._read(token_id, position, complete_before)
            if callable(text):
                text()
            if self._banned is not None:
                self._banned.skip(self._vocabulary.token_bytes(token_id))
        if self._budget is not None and fsm is not None:
            self._budget.replay(fsm, self.request.emitted_token_ids, self._left)
        return state

    def constrain(self, constraint: Constraint) -> float:
        """The grammar has arrived; `constraint` stands where `replay` ended. Returns how many seconds it came late: how
        long there was nothing left to do without it.
        """
        assert self.awaits_grammar
        self._constraint = constraint
        return 0.0 if self._stands_since is None else time.monotonic() - self._stands_since

    @property
    def constraint(self) -> Constraint | None:
        """The place in the grammar; None without one and before it has arrived."""
        return self._constraint

    @property
    def draft_room(self) -> int:
        """How many drafts may go into the next step: one token more is drawn than drafts come true."""
        if not self._settled or not self.pending or (self._constraint is not None and self._constraint.behind):
            return 0
        return self._left - 1

    def propose(self) -> None:
        """Renews `drafts`: what may follow the tokens that go into the next step."""
        self.drafts = []
        if self._drafter is not None and self.draft_room > 0:
            self.drafts = self._drafter.propose(self.token_ids, self._constraint, self.draft_room)

    def use_drafts(self, drafts: list[Draft], states: list[int]) -> None:
        """Sets `drafts` made elsewhere; `states[i]`: the grammar state after the i-th, if there is a grammar."""
        self.drafts = drafts
        if self._constraint is not None:
            self._constraint.follow((draft.token_id, state) for draft, state in zip(drafts, states, strict=True))
            self._constraint.prefetch()

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """Tokens that may end the output."""
        return self._end_token_ids | self._stop_token_ids

    @property
    def may_take_back(self) -> bool:
        """Whether tokens that have been drawn may be drawn again."""
        return self._banned is not None

    @property
    def draws_ahead(self) -> bool:
        """Whether the next tokens can be drawn where the features are, from settings and states alone."""
        sampling = self.request.sampling
        plain = not (sampling.penalizes or sampling.reports or sampling.ignore_eos or self._banned or self._budget)
        plain = plain and not any(draft.proposal for draft in self.drafts)
        known = self._settled and self.pending > 0 and not (self._constraint is not None and self._constraint.behind)
        return plain and known and self.output_length >= sampling.min_tokens

    def receive(self, features: Tensor, drawn: PySequence[tuple[int, int]] = ()) -> None:
        """The step's features [1 + k, F], behind the last token and behind the first k drafts.

        `drawn`: tokens that were drawn from them already, each with the grammar state after it.
        """
        if self.awaits_grammar and self._stands_since is None:
            self._stands_since = time.monotonic()
        self.features = features[0]
        self._ahead = deque(zip(self.drafts, features[1:], strict=False))
        self._drawn = deque(token_id for token_id, _ in drawn)
        if self._constraint is not None and drawn:
            self._constraint.follow(drawn)

    @property
    def drawn(self) -> int | None:
        """The next token, where it has been drawn already and the sequence is ready for it."""
        ready = self.features is not None and self._settled and not self.finish_reason
        return self._drawn[0] if ready and self._drawn else None

    def append(self, token_id: int, report: TokenReport | None = None) -> None:
        """Accepts a token, drawn or forced; streams the text that became certain and what is told about the token.

        Under `finish_within_budget` a token may have to wait for `catch_up`, which accepts it or turns it down.
        """
        if self._budget is not None and self._constraint is not None and not self._budget.proves(token_id):
            self._budget.offer(token_id, report, self._constraint, self._left - 1)
        else:
            self._append(token_id, report)

    def _append(self, token_id: int, report: TokenReport | None) -> None:
        position = self.output_length
        self.token_ids.append(token_id)
        self.features = None
        if self._drawn and self._drawn.popleft() != token_id:
            self._drawn.clear()
        drafted = False
        if self._ahead:
            draft, features = self._ahead.popleft()
            drafted = draft.token_id == token_id
            if draft.rate is not None:
                draft.rate.update(drafted)
            if drafted:
                self.features = features
                self.length += 1
            else:
                self._ahead.clear()
        self._settled = False
        constraint = self._constraint
        described = self._describe(position, report, drafted)
        if self._banned is not None:
            self._append_unless_banned(HeldToken(token_id, self._text_bytes(token_id), described))
            return
        text = self._read(token_id, position, complete_before=constraint is not None and constraint.is_terminal)
        if constraint is not None and not self._stopped:
            constraint.accept(token_id)
        self.stream.push(token_id, text, described)

    def catch_up(self) -> None:
        """Decides on a token that waits; advances the grammar state over the last one. Raises what the FSM raises."""
        if self._budget is not None:
            if (chosen := self._budget.decide(self._left - 1)) is not None:
                self._append(chosen.token_id, chosen.report)
            elif self._budget.must_end:
                self.finish_reason = "stop"
        if self._constraint is not None:
            self._constraint.catch_up()

    def settle(self) -> None:
        """Decides whether the output ends here, and sets `finish_reason` if so. Starts reading the state's row.

        Stays undecided while the state is terminal and its row still being read: if only end tokens may follow, the
        output is complete without another forward pass. Raises what reading the row raised.
        """
        if self._settled or self.finish_reason or self.awaits_grammar:
            return
        if self._stopped:
            self.finish_reason = "stop"
            return
        if self._constraint is not None:
            if self._constraint.behind:
                return
            allowed = self._constraint.allowed()
            if self._constraint.is_terminal:
                if allowed is None:
                    return
                if allowed.count == 0 or (allowed.only_end and not self.request.probe):
                    self.finish_reason = "stop"
                    return
        if self._left <= 0:
            in_time = self._budget is not None and self._constraint is not None and self._constraint.is_terminal
            self.finish_reason = "stop" if in_time else "length"
        self._settled = True

    def append_forced(self) -> int:
        """Appends the tokens that the grammar leaves no choice about, without a forward pass; returns how many.

        None for a request that is told about each token: it needs their logits, and they become drafts.
        """
        if self.request.sampling.reports:
            return 0
        before = len(self.token_ids)
        constraint = self._constraint
        while constraint is not None and self._settled and not self.finish_reason and not constraint.behind:
            forced = constraint.forced_text(constraint.state)
            if forced is None or not forced.sole:
                break
            constraint.follow(zip(forced.token_ids, forced.states, strict=True))
            for token_id in forced.token_ids[: forced.sole]:
                self.append(token_id)
                self.settle()
                if self.finish_reason or not self._settled:
                    break
        return len(self.token_ids) - before

    def draw(self) -> Draw | None:
        """What to sample next, fixed from here on; None while that is open. Raises what reading the row raised."""
        if not self._settled or self.undecided:
            return None
        allowed = None
        if self._constraint is not None:
            allowed = self._constraint.allowed()
            if allowed is None:
                return None
            if allowed.count == 0:
                raise RuntimeError(f"grammar state {self._constraint.state} allows no token")
        return self._draw(allowed)

    def suspend(self) -> None:
        """The slot is gone: everything has to be computed again, and comes out the same."""
        self.length = self.written = self.idle_steps = 0
        self.features = None
        self._ahead.clear()
        self._drawn.clear()

    def rest_of_text(self) -> str:
        """Text held back until now, when the output is over."""
        return self._text.finish()

    def _describe(
        self, position: int, report: TokenReport | None, drafted: bool
    ) -> Callable[[], dict[str, Any]] | None:
        if report is None or self._names is None:
            return None
        state = None if self._constraint is None else self._constraint.state
        rolled_back = 0 if self._banned is None else len(self._banned.excluded(position))
        return partial(self._names.describe, report, state=state, drafted=drafted, rolled_back=rolled_back)

    def _append_unless_banned(self, token: HeldToken) -> None:
        """Streams what no banned word can reach; returns to where a word began when there is one."""
        assert self._banned is not None
        self._banned.append(token)
        over = self._ends(token.token_id) or self._left <= 0
        gave_up = False
        while (position := self._banned.go_back(over=over)) is not None:
            self._roll_back(position)
            gave_up = over = len(self._banned.excluded(position)) >= PATIENCE
            if not gave_up:
                return
        first = self.output_length - len(self._banned)
        for at, held in enumerate(self._banned.release(over=over), first):
            self.stream.push(held.token_id, self._read(held.token_id, at, complete_before=False), held.report)
            if self._stopped:
                return
        self._stopped = gave_up

    def _roll_back(self, position: int) -> None:
        """Forgets the output from `position` on; the token before it is computed again, for its features."""
        del self.token_ids[self._prompt_length + position :]
        self.length = min(self.length, len(self.token_ids) - 1)
        self.features = None
        self._ahead.clear()

    def _draw(self, allowed: AllowedTokens | None) -> Draw:
        excluded = self._unwanted(self.output_length)
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
        if allowed is not None and self._budget is not None and (only := self._budget.only) is not None:
            allowed = allowed.only(only)
        history = None
        if self._prompt_ids is not None:
            history = History(self._prompt_ids, self.token_ids[self._prompt_length :])
        return Draw(
            self.request.sampling,
            self.request.choice_index,
            self.output_length,
            allowed,
            history,
            excluded if allowed is None else frozenset(),
            attempt,
            next((draft.proposal for draft in self._drafts_here), None),
        )

    @property
    def _drafts_here(self) -> list[Draft]:
        """The drafts for this position and those after it, which go into the step or were in the last one."""
        return self.drafts if self.features is None else [draft for draft, _ in self._ahead]

    def _unwanted(self, position: int) -> frozenset[int]:
        """Tokens that would end the output at `position` although `min_tokens` or `ignore_eos` forbids it."""
        if position < self.request.sampling.min_tokens:
            return self._end_token_ids | self._stop_token_ids
        return self._end_token_ids if self.request.sampling.ignore_eos else frozenset()

    def _read(self, token_id: int, position: int, complete_before: bool) -> Text:
        """The text that one more output token makes certain; notices end tokens, stop tokens and stop strings.

        Under a grammar a stop token counts only where the output was complete before it. Where no stop string makes the
        text decide about the output, it is decoded when it is delivered.
        """
        if self._ends(token_id, complete_before):
            self._stopped = True
            return ""
        decode = partial(
            self._text.append,
            self._shown.get(token_id) or self._vocabulary.token_bytes(token_id),
            complete_before=complete_before,
            may_stop=position >= self.request.sampling.min_tokens,
        )
        if not self.request.sampling.stop:
            return decode
        text = decode()
        self._stopped = self._text.stopped
        return text

    def _ends(self, token_id: int, complete_before: bool = False) -> bool:
        """Whether this token ends the output and is no part of its text."""
        stops = token_id in self._stop_token_ids and (complete_before or self.request.grammar is None)
        return stops or token_id in self._end_token_ids

    def _text_bytes(self, token_id: int) -> bytes:
        return b"" if self._ends(token_id) else self._vocabulary.token_bytes(token_id)

"""Tokens of one generation as they come from vLLM -> text, reports, and where the output ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_workers.guided.masks import ForbiddenTokenError, advance, begun
from gpu_workers.guided.output_budget import OutputBudget
from gpu_workers.output import FinishReason, GenerationOutput
from gpu_workers.request import GenerationRequest, RequestError
from gpu_workers.sampling.logprobs import TokenLogprob, TokenNames, TokenReport
from gpu_workers.sequence.output_text import OutputText
from grammar_workers import GrammarError, TokenFSM, Vocabulary


class OutputReader:
    """What one output says so far. `max_tokens`: the most it may have, `emitted_token_ids` included.

    The automaton `fsm` of its grammar is followed where a stop string, a stop token or a full budget asks whether the
    output is complete; the EngineCore follows its own for the masks.
    """

    def __init__(
        self,
        request: GenerationRequest,
        vocabulary: Vocabulary,
        fsm: TokenFSM | None,
        *,
        max_tokens: int,
        prompt_tokens: int,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self._sampling = request.sampling
        self._fsm = fsm
        self._max_tokens = max_tokens
        self._prompt_tokens = prompt_tokens
        self._end_token_ids = frozenset(vocabulary.eos_token_ids)
        self._text = OutputText(request, vocabulary)
        self._names = TokenNames(vocabulary) if request.sampling.reports else None
        self._token_ids: list[int] = []
        self.begun: list[int] = []
        """Tokens that spell the text which the output continues, for the automaton."""
        self._state = -1
        if fsm is not None:
            self.begun, self._state = begun(fsm, request)
        self._followed = 0  # tokens that led to _state
        self._replay(request.emitted_token_ids)

    @property
    def left(self) -> int:
        """How many tokens may still come."""
        return self._max_tokens - len(self._token_ids)

    def take(self, token_ids: Sequence[int], logprobs: Sequence[Any] | None) -> GenerationOutput:
        """What the next tokens say; those behind the end say nothing. `logprobs`: vLLM's, a dictionary per token."""
        output = GenerationOutput(prompt_tokens=self._prompt_tokens)
        for place, token_id in enumerate(token_ids):
            output.text += self._append(token_id)
            output.token_ids.append(token_id)
            if self._names is not None and logprobs is not None:
                report = _report(token_id, logprobs[place], self._sampling.logprobs or 0)
                output.reports.append(self._names.describe(report))
            if self._text.stopped:
                return self._finish(output, "stop")
        return output

    def end(self, output: GenerationOutput, reason: str) -> GenerationOutput:
        """`output` as the last one, vLLM having ended for `reason`. Raises RequestError where that was no end."""
        if reason not in ("stop", "length"):
            code = "unavailable" if reason == "abort" else "internal_error"
            raise RequestError(f"vLLM ended the output: {reason}", code=code, status=503 if reason == "abort" else 500)
        return self._finish(output, "stop" if reason == "stop" else self._full())

    def _finish(self, output: GenerationOutput, reason: FinishReason) -> GenerationOutput:
        output.text += self._text.rest()
        output.finish_reason = self.finish_reason = reason
        output.stop_string = self._text.stop_string
        return output

    def _replay(self, token_ids: Sequence[int]) -> None:
        """Tokens whose text has been sent.

        Raises RequestError where the grammar does not allow them, or no output fits `finish_within_budget`.
        """
        for token_id in token_ids:
            self._append(token_id)
        if self._text.stopped:
            self.finish_reason = "stop"
            return
        try:
            self._follow()
        except ForbiddenTokenError as error:
            raise RequestError(f"cannot resume: {error}", code="invalid_resume") from error
        if self.left <= 0:
            self.finish_reason = self._full()
        elif self._sampling.finish_within_budget and self._fsm is not None:
            OutputBudget(self._fsm, [*self.begun, *token_ids], self._max_tokens + len(self.begun))

    def _append(self, token_id: int) -> str:
        position = len(self._token_ids)
        ends = self._sampling.stop or self._sampling.stop_token_ids
        complete = bool(ends) and position >= self._sampling.min_tokens and self._may_end()
        text = self._text.append(token_id, position, complete_before=complete)
        self._token_ids.append(token_id)
        return text() if callable(text) else text

    def _may_end(self) -> bool:
        """Whether the grammar accepts the output as it is."""
        if self._fsm is None:
            return False
        self._follow()
        return self._fsm.is_terminal(self._state)

    def _full(self) -> FinishReason:
        """How an output ends that has all its tokens: complete where nothing but an end token could follow."""
        if self._fsm is None or not self._may_end():
            return "length"
        if self._sampling.finish_within_budget:
            return "stop"
        allowed = np.unpackbits(self._fsm.allowed_mask(self._state).view(np.uint8), bitorder="little")
        return "stop" if self._end_token_ids.issuperset(np.flatnonzero(allowed).tolist()) else "length"

    def _follow(self) -> None:
        if self._fsm is None:
            return
        try:
            for token_id in self._token_ids[self._followed :]:
                self._state = advance(self._fsm, self._state, token_id)
                self._followed += 1
        except GrammarError as error:
            raise RequestError(str(error), code=error.code) from error


def _report(token_id: int, logprobs: dict[int, Any], most: int) -> TokenReport:
    """vLLM's values are after the mask and before everything else, as ours; the drawn token is always among them."""
    likely = [TokenLogprob(one, choice.logprob) for one, choice in logprobs.items() if choice.logprob > float("-inf")]
    top = sorted(likely, key=lambda choice: (-choice.logprob, choice.token_id))
    return TokenReport(TokenLogprob(token_id, logprobs[token_id].logprob), top[:most])

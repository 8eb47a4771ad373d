"""Conversion of the tokens of one vLLM generation to text, reports on tokens, and the finish reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_workers.guided.masks import ForbiddenTokenError, advance, begun
from gpu_workers.guided.output_budget import OutputBudget
from gpu_workers.output import FinishReason, GenerationOutput
from gpu_workers.request import GenerationRequest, RequestError
from gpu_workers.sampling.logprobs import TokenLogprob, TokenNames, TokenReport
from gpu_workers.sequence.output_text import OutputText
from grammar_workers import GrammarError, TokenFSM, Vocabulary


class OutputReader:
    """Converts the tokens of one vLLM generation to text, log-probabilities and a finish reason.

    A stop string or stop token may end a constrained output only where the output is complete. The automaton `fsm` is
    used to decide that. (The EngineCore computes the masks with an automaton of its own.)

    The constructor raises RequestError if the grammar does not allow the text `begun_text` or the tokens
    `emitted_token_ids` of the request. It also raises RequestError if `finish_within_budget` is set and no valid output
    has at most `max_tokens` tokens.

    Args:
        request: The request. Its `emitted_token_ids` are output tokens that the client has received from another
            replica.
        vocabulary: Vocabulary of the model.
        fsm: Automaton of the grammar. None: the output is not constrained.
        max_tokens: Maximum number of output tokens, `emitted_token_ids` included.
        prompt_tokens: Number of tokens of the prompt.

    Attributes:
        finish_reason: `stop` or `length`. None: the output has not ended.
        begun: Tokens of `begun_text`: the end of the prompt, if the constraint also applies to it. The automaton
            accepts these tokens before the tokens of the output. Empty without a grammar.
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
        # Tokens of the text that the output continues. The automaton accepts them first.
        self.begun: list[int] = []
        self._state = -1
        if fsm is not None:
            self.begun, self._state = begun(fsm, request)
        self._followed = 0  # tokens that led to _state
        self._replay(request.emitted_token_ids)

    @property
    def left(self) -> int:
        """Number of further tokens that the output may have: `max_tokens` minus the number of tokens so far."""
        return self._max_tokens - len(self._token_ids)

    def take(self, token_ids: Sequence[int], logprobs: Sequence[Any] | None) -> GenerationOutput:
        """Append the next tokens of the output. Tokens after a stop string or stop token are ignored.

        Args:
            token_ids: New token IDs from vLLM.
            logprobs: vLLM's log-probabilities (natural logarithms). There is one dictionary, token ID -> `Logprob`, for
                each token of `token_ids`. None: the request does not need log-probabilities.

        Returns:
            The new text and tokens, with a report (log-probabilities) on each new token if the request needs reports.
            If a stop string or stop token has ended the output, `finish_reason` of the result and of this object is
            `stop`.
        """
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
        """Complete the last item of the stream after vLLM has ended the generation.

        Args:
            output: Item with the last tokens; changed in place. The method adds the finish reason, and the text that
                was held back because it could have been the beginning of a stop string.
            reason: vLLM's finish reason: `stop`, `length`, `abort` or `error`.

        Returns:
            `output` itself. A constrained output that is complete at the token limit gets the finish reason `stop`.

        Raises:
            RequestError: `reason` is `abort` (status 503) or `error` (status 500).
        """
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
        """Append tokens whose text has been sent before.

        Raises:
            RequestError: The grammar does not allow the tokens, or no output fits `finish_within_budget`.
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
        """Return whether the grammar accepts the output so far."""
        if self._fsm is None:
            return False
        self._follow()
        return self._fsm.is_terminal(self._state)

    def _full(self) -> FinishReason:
        """Return the finish reason at the token limit: `stop` if only an end token could follow, otherwise `length`."""
        if self._fsm is None or not self._may_end():
            return "length"
        if self._sampling.finish_within_budget:
            return "stop"
        return "stop" if self._fsm.allowed_tokens(self._state) <= self._end_token_ids else "length"

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
    """Return the report of a token.

    vLLM's values are computed after the mask and before everything else, like Turnstile's.
    """
    likely = [TokenLogprob(one, choice.logprob) for one, choice in logprobs.items() if choice.logprob > float("-inf")]
    top = sorted(likely, key=lambda choice: (-choice.logprob, choice.token_id))
    return TokenReport(TokenLogprob(token_id, logprobs[token_id].logprob), top[:most])

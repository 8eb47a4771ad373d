"""The text of one output, and the tokens and strings that end it."""

from __future__ import annotations

from functools import partial

from gpu_workers.model.text import TextStream
from gpu_workers.output import Text
from gpu_workers.request import GenerationRequest
from grammar_workers import Vocabulary


class OutputText:
    """What an output says so far, and whether it has been ended.

    End tokens of the model, stop tokens and stop strings of the request end an output and are no part of its text.
    Under a grammar the latter two count only where the output was complete before them. `stopped`: one has come.
    """

    def __init__(self, request: GenerationRequest, vocabulary: Vocabulary) -> None:
        sampling = request.sampling
        self.stopped = False
        self._vocabulary = vocabulary
        self._end_token_ids = frozenset(vocabulary.eos_token_ids)
        self._stop_token_ids = frozenset(sampling.stop_token_ids)
        self._sampling = sampling
        self._constrained = request.grammar is not None
        self._shown: dict[int, bytes] = {}  # special tokens that are text
        if request.special_token_text:
            self._shown = {token_id: name.encode() for name, token_id in vocabulary.special_tokens.items()}
        self._stream = TextStream(sampling.stop, constrained=self._constrained)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the output; None where something else did."""
        return self._stream.stop_string

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """Tokens that may end the output."""
        return self._end_token_ids | self._stop_token_ids

    def append(self, token_id: int, position: int, *, complete_before: bool = False) -> Text:
        """The text that the output token at `position` makes certain; notices what ends the output.

        Where no stop string makes the text decide about the output, it is decoded when it is delivered.
        """
        if self.ends(token_id, complete_before=complete_before):
            self.stopped = True
            return ""
        decode = partial(
            self._stream.append,
            self._shown.get(token_id) or self._vocabulary.token_bytes(token_id),
            complete_before=complete_before,
            may_stop=position >= self._sampling.min_tokens,
        )
        if not self._sampling.stop:
            return decode
        text = decode()
        self.stopped = self._stream.stopped
        return text

    def rest(self) -> str:
        """Text held back until now, when the output is over."""
        return self._stream.finish()

    def ends(self, token_id: int, *, complete_before: bool = False) -> bool:
        """Whether this token ends the output and is no part of its text."""
        if token_id in self._end_token_ids:
            return True
        return token_id in self._stop_token_ids and (complete_before or not self._constrained)

    def unwanted(self, position: int) -> frozenset[int]:
        """Tokens that would end the output at `position` although `min_tokens` or `ignore_eos` forbids it."""
        if position < self._sampling.min_tokens:
            return self.ending_token_ids
        return self._end_token_ids if self._sampling.ignore_eos else frozenset()

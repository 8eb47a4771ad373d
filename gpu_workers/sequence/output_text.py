"""Decodes one output to text, and detects the tokens and strings that end the output."""

from __future__ import annotations

from functools import partial

from gpu_workers.model.text import TextStream
from gpu_workers.output import Text
from gpu_workers.request import GenerationRequest
from grammar_workers import Vocabulary


class OutputText:
    """Decoder of the text of one output. It also detects the end of the output.

    An output ends at an end token of the model, or at a stop token or stop string of the request. The end token, stop
    token or stop string is not part of the text. Under a grammar, a stop token or stop string ends the output only if
    the grammar accepts the output before it.

    Args:
        request: The request, with its stop tokens and stop strings.
        vocabulary: Vocabulary of the model, with its end tokens.

    Attributes:
        stopped: True if an end token, a stop token or a stop string has ended the output.
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
        """The stop string that ended the output; None if the output goes on, or if a token ended it."""
        return self._stream.stop_string

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """IDs of the end tokens of the model and the stop tokens of the request."""
        return self._end_token_ids | self._stop_token_ids

    def append(self, token_id: int, position: int, *, complete_before: bool = False) -> Text:
        """Add an output token, and set `stopped` if it ends the output.

        Args:
            token_id: The token.
            position: Position of the token in the output, from 0.
            complete_before: True if the grammar accepts the output without this token.

        Returns:
            The text that has become final. It is a string if the request has stop strings or the token ends the output.
            Otherwise it is a function that decodes and returns the text. Call these functions once each, in order.
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
        """Return the text that was held back because it could begin a stop string. Call it when the output ends."""
        return self._stream.finish()

    def ends(self, token_id: int, *, complete_before: bool = False) -> bool:
        """Return whether a token ends the output. A token that ends the output is not part of the text.

        Args:
            token_id: The token.
            complete_before: True if the grammar accepts the output without this token. Not used without a grammar.
        """
        if token_id in self._end_token_ids:
            return True
        return token_id in self._stop_token_ids and (complete_before or not self._constrained)

    def unwanted(self, position: int) -> frozenset[int]:
        """Return the tokens that must not end the output at a position, because of `min_tokens` or `ignore_eos`.

        Args:
            position: Position in the output, from 0.

        Returns:
            Token IDs to exclude from sampling; empty if the output may end at the position.
        """
        if position < self._sampling.min_tokens:
            return self.ending_token_ids
        return self._end_token_ids if self._sampling.ignore_eos else frozenset()

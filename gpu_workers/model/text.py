"""Incremental decoding of tokens to text: returns whole characters, and ends at a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Decodes the bytes of tokens to text, and returns each part of the text as soon as it is final.

    Two kinds of text are held back: bytes of an incomplete character, and an end of the text that could begin a stop
    string. Bytes that can never become UTF-8 are decoded as U+FFFD. If a stop string is complete, the stop string and
    the text after it are dropped.

    Under a grammar, a stop string ends the text only if it begins at the beginning of a token, and if the grammar
    accepts the output before this token.

    Args:
        stop: Stop strings, each with at least one character.
        constrained: True if the output has a grammar.

    Attributes:
        stopped: True if a stop string has ended the text.
        stop_string: The stop string that ended the text; None if there is none.
    """

    def __init__(self, stop: Sequence[str] = (), *, constrained: bool = False) -> None:
        self.stopped = False
        self.stop_string: str | None = None
        self._stop = tuple(stop)
        self._constrained = constrained
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._cuts: set[int] = set()  # places in _held where a constrained output is complete

    def append(self, data: bytes, *, complete_before: bool = False, may_stop: bool = True) -> str:
        """Add the bytes of one token, and return the text that has become final.

        Args:
            data: Bytes of the token.
            complete_before: True if the grammar accepts the output without this token. Not used without a grammar.
            may_stop: If false, stop strings are not searched, and all text up to this token becomes final.

        Returns:
            The new final text; often empty.
        """
        if complete_before and not self._decoder.getstate()[0]:
            self._cuts.add(len(self._held))
        self._held += self._decoder.decode(data)
        if not may_stop:
            return self._release(len(self._held))
        found = min(((at, stop) for stop in self._stop if (at := self._find(stop)) >= 0), default=None)
        if found is not None:
            self.stopped = True
            self.stop_string = found[1]
            return self._release(found[0])
        begun = max((beginning_of(stop, self._held) for stop in self._stop), default=0)
        return self._release(len(self._held) - begun)

    def finish(self) -> str:
        """Return the text that is still held back. Call this method after the last token.

        Bytes of an incomplete character are dropped. If a stop string has ended the text, nothing is returned.
        """
        return "" if self.stopped else self._release(len(self._held))

    def _find(self, stop: str) -> int:
        at = self._held.find(stop)
        while self._constrained and at >= 0 and at not in self._cuts:
            at = self._held.find(stop, at + 1)
        return at

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self._cuts = {cut - length for cut in self._cuts if cut >= length}
        return text


def beginning_of(word: str, text: str) -> int:
    """Return the length of the longest proper prefix of `word` that is a suffix of `text`; 0 if there is none.

    Args:
        word: A word, such as a stop string.
        text: Text in which the word may have begun.
    """
    lengths = range(min(len(word) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(word[:length])), 0)

"""Text out of tokens, piece by piece: whole characters only, and nothing that may still become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """The concatenation of token bytes as text, released as early as it is certain.

    Held back: bytes of a character that is not whole yet, and a tail that could begin a stop string. Bytes that can
    never become UTF-8 turn into U+FFFD. `stopped` is set when a stop string is complete, and `stop_string` is this
    one; it and what follows are dropped.

    Under a grammar (`constrained`) a stop string counts only where it begins at a token before which the output was
    complete: what is left after cutting it off must still match.
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
        """Adds one token's bytes and returns the text that is now certain.

        `complete_before`: the grammar would have accepted the output without this token. `may_stop`: stop strings are
        looked for; text before the first token that may stop is no part of one.
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
        """The rest, when no more tokens come. Bytes of an unfinished character are dropped."""
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
    """Length of the longest end of `text` that begins `word` without being all of it."""
    lengths = range(min(len(word) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(word[:length])), 0)

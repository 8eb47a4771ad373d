"""Banned words in free text, by detection and rollback.

    text    ... | t h e   c a        held: with "cat" banned, the last two may be the beginning of it
                  `-.-'   `-.-'
        safe: streamed        held

A token is let go only when no banned word can still begin in it, as the text goes on. When a word is complete, the
output returns to the token that the word begins in, and that token is excluded at that position. What comes in its
place may complete a word that begins in text that was let go before: then the first held token is the one excluded. So
no position is tried twice with the same token, the text before a held token never changes, and after `PATIENCE` tries
at one position the output is cut there, with the finish reason `length`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_workers.request import BannedWords

PATIENCE = 256
"""Tokens excluded at one position before the output ends at it: however much the model wants a word, it ends."""


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token that is not streamed yet, its bytes, and what is to be told about it."""

    token_id: int
    data: bytes
    report: Callable[[], dict[str, Any]] | None


class BannedText:
    """The end of an output that a banned word may still reach.

    Case is folded character by character. With `whole_words` a word counts where neither neighbour is a letter, digit
    or underscore; the end of the output and the first character of a stop string count as no such neighbour.
    """

    def __init__(self, banned: BannedWords, stop: Sequence[str]) -> None:
        self._fold_case = not banned.case_sensitive
        self._whole_words = banned.whole_words
        self._words = {self._fold(word) for word in banned.words}
        self._lengths = sorted({len(word) for word in self._words})
        self._beginnings = {word[:end] for word in self._words for end in range(1, len(word) + 1)}
        self._stop_characters = {text[0] for text in stop}
        self._held: list[HeldToken] = []
        self._first = 0  # output position of the first held token
        self._before = ""  # the last characters that were let go: a word and one more
        self._excluded: dict[int, frozenset[int]] = {}

    def __len__(self) -> int:
        """How many tokens are held."""
        return len(self._held)

    def excluded(self, position: int) -> frozenset[int]:
        """Tokens that led to a banned word at this output position, after the present text."""
        return self._excluded.get(position, frozenset())

    def skip(self, data: bytes) -> None:
        """One token that was let go before a resume."""
        self._first += 1
        self._let_go(data.decode("utf-8", "replace"))

    def append(self, token: HeldToken) -> None:
        self._held.append(token)

    def go_back(self, *, over: bool) -> int | None:
        """The output position to return to, if there is a banned word; its token is excluded there from now on.

        `over`: the output ends here, so that nothing can prolong a word.
        """
        text, starts, _ = self._decode()
        at = self._find(self._fold(text), over)
        if at is None:
            return None
        index = max((i for i, start in enumerate(starts) if start <= at), default=0)
        position = self._first + index
        tried = self.excluded(position) | {self._held[index].token_id}
        del self._held[index:]
        # What was excluded further on belonged to the text that is gone.
        self._excluded = {place: ids for place, ids in self._excluded.items() if place < position}
        self._excluded[position] = tried
        return position

    def release(self, *, over: bool) -> list[HeldToken]:
        """The tokens, oldest first, that no banned word can reach any more; all of them when the output is `over`."""
        text, starts, end = self._decode()
        many = len(self._held)
        if not over:
            reach = self._reach(self._fold(text))
            stops = [*starts[1:], end][: len(starts)]
            may_stop = (stop.is_integer() and stop <= reach and self._may_part(text, int(stop)) for stop in stops)
            many = max((i for i, stops_here in enumerate(may_stop, 1) if stops_here), default=0)
        if many:
            self._let_go(text[: int(starts[many]) if many < len(starts) else len(text)])
        released, self._held = self._held[:many], self._held[many:]
        self._first += many
        self._excluded = {place: ids for place, ids in self._excluded.items() if place >= self._first}
        return released

    def _decode(self) -> tuple[str, list[float], float]:
        """The held text, where in it each token begins, and its end; half a character counts as one half.

        Tokens are let go at whole characters only, so the held bytes begin with one.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text, starts = "", []
        for token in self._held:
            starts.append(len(text) + (0.5 if decoder.getstate()[0] else 0.0))
            text += decoder.decode(token.data)
        return text, starts, len(text) + (0.5 if decoder.getstate()[0] else 0.0)

    def _let_go(self, text: str) -> None:
        self._before = (self._before + text)[-self._lengths[-1] - 1 :]

    def _find(self, held: str, over: bool) -> int | None:
        """Where the first banned word that ends in the folded text begins; negative: before it."""
        before = len(self._before)
        text = self._fold(self._before) + held
        for at in range(len(text)):
            if self._may_begin(text, at):
                for length in self._lengths:
                    if (
                        before < at + length <= len(text)
                        and text[at : at + length] in self._words
                        and self._ends(text, at + length, over)
                    ):
                        return at - before
        return None

    def _reach(self, held: str) -> int:
        """The first character of the folded text from which a banned word may still begin."""
        text = self._fold(self._before) + held
        for at in range(max(len(self._before), len(text) - self._lengths[-1]), len(text)):
            if text[at:] in self._beginnings and self._may_begin(text, at):
                return at - len(self._before)
        return len(held)

    def _may_part(self, held: str, stop: int) -> bool:
        """Whether the text may be let go up to here: what looks like a whole word must have its neighbour beside it."""
        if not self._whole_words:
            return True
        text = self._fold(self._before + held[:stop])
        return not any(
            text[len(text) - length :] in self._words and self._may_begin(text, len(text) - length)
            for length in self._lengths
            if length <= len(text)
        )

    def _may_begin(self, text: str, at: int) -> bool:
        return not self._whole_words or at == 0 or not _is_word(text[at - 1])

    def _ends(self, text: str, end: int, over: bool) -> bool:
        if not self._whole_words:
            return True
        if end == len(text):
            return over
        return not _is_word(text[end]) or text[end] in self._stop_characters

    def _fold(self, text: str) -> str:
        return "".join(map(_folded, text)) if self._fold_case else text


def _folded(character: str) -> str:
    """One character for one, so that places in the text stay what they are."""
    upper = character.upper()
    lower = (upper if len(upper) == 1 else character).lower()
    return lower if len(lower) == 1 else character


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"

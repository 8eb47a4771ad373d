"""Removes banned words from text without a grammar: a completed word is rolled back, and other tokens are sampled.

In this example, "cat" is banned. The last two characters could be its beginning:

    text    t h e _ c a
            `--.--' `.'
          released   held back

A token is released when no banned word can begin in it any more, for all continuations of the text. When a banned word
is complete, the output rolls back to the token in which the word begins. This token is excluded at its position, so no
token is tried twice at one position. If the word begins in released text, the first held token is excluded, because
released text never changes. After `PATIENCE` tries at one position, the output is truncated there, with the finish
reason `length`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_workers.request import BannedWords

# Number of tokens excluded at one position after which the output ends there. It bounds the work on likely words.
PATIENCE = 256


@dataclass(frozen=True, slots=True)
class HeldToken:
    """An output token that is held back, because a banned word may begin or end in its text.

    Attributes:
        token_id: The token.
        data: Bytes of the token; empty if the token ends the output.
        report: Function that returns log-probabilities and diagnostics of the token; None if none are needed.
    """

    token_id: int
    data: bytes
    report: Callable[[], dict[str, Any]] | None


class BannedText:
    """The last tokens of an output, which are held back because a banned word may begin in them.

    `len` of the object is the number of these tokens. With `whole_words`, a word is banned only if no letter, digit or
    underscore is next to it. The end of the output and the first character of a stop string also end a word. Unless
    `case_sensitive` is true, case is folded character by character.

    Args:
        banned: Words and options of the request.
        stop: Stop strings of the request.
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
        self._before = ""  # the last released characters: as many as the longest word has, and one more
        self._excluded: dict[int, frozenset[int]] = {}

    def __len__(self) -> int:
        """Return the number of tokens held back."""
        return len(self._held)

    def excluded(self, position: int) -> frozenset[int]:
        """Return the tokens that are excluded at an output position, because they led to a banned word.

        Args:
            position: Position in the output, from 0.

        Returns:
            Token IDs; empty if none are excluded. A rollback to an earlier position drops the exclusions.
        """
        return self._excluded.get(position, frozenset())

    def skip(self, data: bytes) -> None:
        """Append a token of a resumed generation. The client already has its text, so it is never rolled back.

        Args:
            data: Bytes of the token.
        """
        self._first += 1
        self._let_go(data.decode("utf-8", "replace"))

    def append(self, token: HeldToken) -> None:
        """Append an output token. The token is held back until `release` returns it.

        Args:
            token: The token.
        """
        self._held.append(token)

    def go_back(self, *, over: bool) -> int | None:
        """Search the held tokens for a complete banned word, and remove the word.

        The token in which the word begins, and all later tokens, are removed from the held tokens. The token in which
        the word begins is excluded at its position from now on.

        Args:
            over: True if the output ends here, so that the last word of the text is complete.

        Returns:
            The output position, from 0, of the first removed token: the output must be rolled back to this position.
            None if there is no banned word.
        """
        text, starts, _ = self._decode()
        at = self._find(self._fold(text), over)
        if at is None:
            return None
        index = max((i for i, start in enumerate(starts) if start <= at), default=0)
        position = self._first + index
        tried = self.excluded(position) | {self._held[index].token_id}
        del self._held[index:]
        # Tokens excluded at later positions depended on the text that is rolled back.
        self._excluded = {place: ids for place, ids in self._excluded.items() if place < position}
        self._excluded[position] = tried
        return position

    def release(self, *, over: bool) -> list[HeldToken]:
        """Remove and return the held tokens in which no banned word can begin any more.

        Args:
            over: True if the output ends here. Then all tokens are released.

        Returns:
            The released tokens, oldest first.
        """
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
        """Return the text held back, the offset at which each token begins in it, and its end.

        Half of a character counts as 0.5. Tokens are released at whole characters only, so the bytes held back begin
        with a whole character.
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
        """Return the offset of the first banned word in the folded text; negative if it begins before the text."""
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
        """Return the first offset in the folded text at which a banned word may still begin."""
        text = self._fold(self._before) + held
        for at in range(max(len(self._before), len(text) - self._lengths[-1]), len(text)):
            if text[at:] in self._beginnings and self._may_begin(text, at):
                return at - len(self._before)
        return len(held)

    def _may_part(self, held: str, stop: int) -> bool:
        """Return whether `stop` may part the text: a possible whole word must keep its next character."""
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
    """Fold the case of one character to one character, so that offsets in the text stay valid."""
    upper = character.upper()
    lower = (upper if len(upper) == 1 else character).lower()
    return lower if len(lower) == 1 else character


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"

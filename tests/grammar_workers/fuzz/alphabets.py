"""Alphabet: the few characters that all names, patterns and texts of one case are made of, so that they meet."""

from __future__ import annotations

import random

ASCII = "abABk01_- /"
AWKWARD = (
    *('"', "\\", "\n", "\t", "\b", "\x00", "\x01", "\x1f", "\x7f", "~", ",", ":", "{", "}", "[", "]"),
    *("\x80", "\x9f", "\xa0", "é", "è", "ß", "̈", "́", "߿", "ࠀ"),
    *("İ", "ı", "ſ", "σ", "ς", "K", "ﬁ", "ẞ"),
    *("名", "吀", "前", "\u2028", "\u2029", "\ufeff", "\ufffd", "\ud7ff", "\ue000", "\ufdd0", "\uffff", "０", "٣"),
    *("😀", "😁", "𝒳", "\U00010000", "\U0001ffff", "\U0010ffff"),
)
"""Quotes, escapes, controls, case folding, combining marks, ends of ranges, and characters that share bytes."""
RELATIVES = {
    "é": "è",
    "名": "吀",
    "😀": "😁",
    "σ": "ςſ",
    "ı": "İ",
    "ſ": "sS",
    "k": "K",
    "ß": "sẞ",
    "\n": "nu0",
    "\\": "nu",
}


class Alphabet:
    """See the module. `characters` has no repetitions."""

    def __init__(self, rng: random.Random) -> None:
        chosen = rng.sample(ASCII, rng.randrange(1, 4))
        if rng.random() < 0.8:
            chosen += rng.sample(AWKWARD, rng.randrange(1, 4))
        for character in list(chosen):
            if rng.random() < 0.5:
                chosen += RELATIVES.get(character, "")
        self.characters = list(dict.fromkeys(chosen))
        self._rng = rng
        self.names = list(dict.fromkeys(self.text(2 if rng.random() < 0.8 else 4) for _ in range(rng.randrange(2, 5))))

    def character(self) -> str:
        return self._rng.choice(self.characters)

    def text(self, longest: int = 3) -> str:
        return "".join(self.character() for _ in range(self._rng.randrange(longest + 1)))

    def name(self) -> str:
        """Mostly one of a few, for names must be equal to matter, or one that begins like one of these."""
        if self._rng.random() < 0.8:
            return self._rng.choice(self.names)
        return self._rng.choice(self.names) + self.character() if self._rng.random() < 0.5 else self.text()

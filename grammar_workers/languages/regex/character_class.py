r"""Character classes of regular expressions, as ECMA-262 and Python's `re` read them: `\d`, `[^a-z]`, `.`, `\p{..}`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.languages.regex.case_folding import fold_ecma, fold_python

_LINE_ENDS = charset.of("\n\r\u2028\u2029")
_ECMA_SPACE = charset.make(
    (ord(span[0]), ord(span[-1]))
    for span in ["\t\r", " ", "\xa0", "\u1680", "\u2000\u200a", "\u2028\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]
)
_ECMA = {
    "d": charset.make([(0x30, 0x39)]),
    "w": charset.make([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]),
    "s": _ECMA_SPACE,
}
# Python's own classes hold more (all of Unicode's digits and letters), but for U+FEFF, which is no space there.
_COMMON = _ECMA | {"s": charset.subtract(_ECMA_SPACE, charset.of("\ufeff"))}


class CharacterClass:
    """A class as each dialect reads it. Sets are worked out when needed: Python's digits and letters are large.

    `known` is what both dialects accept, where that is known without asking.
    """

    def __init__(
        self, ecma: Callable[[], Charset], python: Callable[[], Charset], known: Charset | None = None
    ) -> None:
        self.ecma = ecma
        self.python = python
        self._known = known

    @functools.cached_property
    def common(self) -> Charset:
        """The characters that both dialects accept."""
        return charset.intersect(self.ecma(), self.python()) if self._known is None else self._known

    @functools.cached_property
    def either(self) -> Charset:
        """The characters that at least one dialect accepts."""
        return self.common if self.is_agreed else charset.union(self.ecma(), self.python())

    @property
    def is_agreed(self) -> bool:
        """True if both dialects accept the same characters."""
        return self.ecma is self.python

    @property
    def single(self) -> int | None:
        """The only code point of the class, where there is one that both dialects see."""
        if not self.is_agreed or len(self.common) != 1 or self.common[0][0] != self.common[0][1]:
            return None
        return self.common[0][0]

    def negated(self) -> CharacterClass:
        if self.is_agreed:
            return agreed(charset.complement(self.common))
        return CharacterClass(lambda: charset.complement(self.ecma()), lambda: charset.complement(self.python()))

    def folded(self) -> CharacterClass:
        """The class when case is ignored: of characters, a range or a property, or one of `named` and its complement.

        Python asks whether a character is a digit, a letter or a space as it is.
        """
        if not self.is_agreed:
            return CharacterClass(lambda: fold_ecma(self.ecma()), self.python)
        ecma, python = fold_ecma(self.common), fold_python(self.common)
        return agreed(ecma) if ecma == python else CharacterClass(lambda: ecma, lambda: python)


@functools.lru_cache(maxsize=4096)
def agreed(characters: Charset) -> CharacterClass:
    """The class that both dialects see alike."""

    def get() -> Charset:
        return characters

    return CharacterClass(get, get, characters)  # The same function twice is what `is_agreed` looks for.


@functools.lru_cache(maxsize=4096)
def single(code_point: int) -> CharacterClass:
    return agreed(charset.make([(code_point, code_point)]))


@functools.cache
def named(name: str) -> CharacterClass:
    r"""The class of `\d`, `\w` or `\s`."""
    return CharacterClass(lambda: _ECMA[name], lambda: charset.matching(rf"\{name}"), _COMMON[name])


def joined(items: Sequence[CharacterClass]) -> CharacterClass:
    """The union. What both dialects accept of it may be more than the union of what both accept of the parts."""
    if len(items) == 1:
        return items[0]
    if all(item.is_agreed for item in items):
        return agreed(charset.union(*(item.common for item in items)))
    return CharacterClass(
        lambda: charset.union(*(item.ecma() for item in items)),
        lambda: charset.union(*(item.python() for item in items)),
        None if any(item._known is None for item in items) else charset.union(*(item.common for item in items)),
    )


DOT = CharacterClass(
    lambda: charset.complement(_LINE_ENDS),
    lambda: charset.complement(charset.of("\n")),
    charset.complement(_LINE_ENDS),
)
"""Any character but a line end: four characters in ECMA-262, the line feed alone in Python."""
ANYTHING = agreed(charset.ALL)

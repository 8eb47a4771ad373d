r"""Character classes of regular expressions (`\d`, `[^a-z]`, `.`, `\p{..}`), as in ECMA-262 and in Python's `re`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import regex

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.languages.regex.case_folding import fold_ecma, fold_python

_PROPERTY = re.compile(r"[A-Za-z][A-Za-z0-9_ -]*(=[A-Za-z][A-Za-z0-9_ -]*)?")
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
# Python's classes contain more (all digits and letters of Unicode), except U+FEFF, which is no space in Python.
_COMMON = _ECMA | {"s": charset.subtract(_ECMA_SPACE, charset.of("\ufeff"))}


class CharacterClass:
    r"""Character class of a regular expression, with one set of characters per dialect (ECMA-262 and Python's `re`).

    The sets are computed when they are needed, because Python's `\d` and `\w` are large.

    Args:
        ecma: Function that returns the characters of the class in ECMA-262.
        python: Function that returns the characters of the class in Python; the same function as `ecma` if the dialects
            agree.
        known: The characters that both dialects accept, if they are known in advance. None: they are computed.
    """

    def __init__(
        self, ecma: Callable[[], Charset], python: Callable[[], Charset], known: Charset | None = None
    ) -> None:
        self.ecma = ecma
        self.python = python
        self._known = known

    @functools.cached_property
    def common(self) -> Charset:
        """Set of the characters that are in the class in both dialects (ECMA-262 and Python's `re`)."""
        return charset.intersect(self.ecma(), self.python()) if self._known is None else self._known

    @functools.cached_property
    def either(self) -> Charset:
        """Set of the characters that are in the class in at least one dialect (ECMA-262 or Python's `re`)."""
        return self.common if self.is_agreed else charset.union(self.ecma(), self.python())

    @property
    def is_agreed(self) -> bool:
        """True if the class certainly has the same characters in both dialects. False: they may differ."""
        return self.ecma is self.python

    @property
    def single(self) -> int | None:
        """The code point of the class, if it has exactly one. None otherwise, or if the dialects may differ."""
        if not self.is_agreed or len(self.common) != 1 or self.common[0][0] != self.common[0][1]:
            return None
        return self.common[0][0]

    def negated(self) -> CharacterClass:
        """Return the class of all other characters, in each dialect."""
        if self.is_agreed:
            return agreed(charset.complement(self.common))
        return CharacterClass(lambda: charset.complement(self.ecma()), lambda: charset.complement(self.python()))

    def folded(self) -> CharacterClass:
        r"""Return the class for case-insensitive matching. Each dialect has its own rules.

        The class must have the same characters in both dialects, or be `\d`, `\w`, `\s` or a complement of these
        three. This is not checked. Python does not fold the case of these six classes.
        """
        if not self.is_agreed:
            return CharacterClass(lambda: fold_ecma(self.ecma()), self.python)
        ecma, python = fold_ecma(self.common), fold_python(self.common)
        return agreed(ecma) if ecma == python else CharacterClass(lambda: ecma, lambda: python)


@functools.lru_cache(maxsize=4096)
def agreed(characters: Charset) -> CharacterClass:
    """Return the class that contains `characters` in both dialects (ECMA-262 and Python's `re`)."""

    def get() -> Charset:
        return characters

    return CharacterClass(get, get, characters)  # The same function twice is what `is_agreed` looks for.


@functools.lru_cache(maxsize=4096)
def single(code_point: int) -> CharacterClass:
    """Return the class with exactly one code point, in both dialects."""
    return agreed(charset.make([(code_point, code_point)]))


@functools.cache
def named(name: str) -> CharacterClass:
    r"""Return the class of `\d`, `\w` or `\s`; `name` is the letter d, w or s."""
    return CharacterClass(lambda: _ECMA[name], lambda: charset.matching(rf"\{name}"), _COMMON[name])


def with_property(name: str) -> CharacterClass | None:
    r"""Return the class of the characters that `\p{name}` matches. None if there is no such property.

    Args:
        name: A value of General_Category (`Lu`, `Uppercase_Letter`), a script (`Greek`, `Script=Greek`, `sc=Grek`),
            `Script_Extensions` or a binary property (`Alphabetic`). The tables are those of the package `regex`.
    """
    if not _PROPERTY.fullmatch(name):
        return None
    try:
        return agreed(charset.matching(rf"\p{{{name}}}", properties=True))
    except regex.error:
        return None


def joined(items: Sequence[CharacterClass]) -> CharacterClass:
    """Return the union of classes, at least one. It is computed for each dialect.

    If one class has a character only in ECMA-262, and another only in Python, `common` of the union may lack it.
    """
    if len(items) == 1:
        return items[0]
    if all(item.is_agreed for item in items):
        return agreed(charset.union(*(item.common for item in items)))
    return CharacterClass(
        lambda: charset.union(*(item.ecma() for item in items)),
        lambda: charset.union(*(item.python() for item in items)),
        None if any(item._known is None for item in items) else charset.union(*(item.common for item in items)),
    )


# Any character except line ends: four characters in ECMA-262, only the line feed in Python.
DOT = CharacterClass(
    lambda: charset.complement(_LINE_ENDS),
    lambda: charset.complement(charset.of("\n")),
    charset.complement(_LINE_ENDS),
)
# Any character.
ANYTHING = agreed(charset.ALL)

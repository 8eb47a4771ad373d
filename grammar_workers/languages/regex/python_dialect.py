r"""Patterns as Python's `re` alone reads them: `\w` is any letter, `.` anything but a line feed, `$` may precede one.

Anchors and word boundaries become look-arounds, so that look-arounds are the only conditions that are left.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import ClassVar

from grammar_workers.dfa import charset
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.character_class import ANYTHING, CharacterClass, agreed, single
from grammar_workers.languages.regex.written_out import width, with_parts
from grammar_workers.languages.scalar_values import is_scalar_value
from grammar_workers.options import Limits

_ANY = parse.Characters(ANYTHING)
_LINE_FEED = parse.Characters(agreed(charset.of("\n")))
_OTHER = parse.Characters(agreed(charset.complement(charset.of("\n"))))
_LONGER = parse.Alternatives((_OTHER, parse.Sequence((_LINE_FEED, _ANY))))
"""What does not follow `$`, which may precede the last line feed."""

_COMMENTS = re.compile(r"(?:\(\?#[^)]*\))*+")
_BLANKS = re.compile(r"(?:\(\?#[^)]*\)|[ \t\n\r\v\f]|#[^\n]*+)*+")
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_NAME = re.compile(r"\\N\{([^}]*)\}")
_OCTAL = re.compile(r"\\(0[0-7]{0,2}|[0-3][0-7]{2})")
_OCTAL_IN_CLASS = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}(?![0-7]))")
_SPECIAL = frozenset("()[]{}|*+?.^$\\-&~# \t\n\r\v\f")


@functools.lru_cache(maxsize=64)
def read_python(pattern: str, limits: Limits) -> parse.Node:
    """Read a pattern of a Lark grammar; its only conditions are look-arounds. Raises what `parse.read_regex` raises."""
    return _PythonReader(pattern, limits).read()


class _PythonReader(parse.PatternReader):
    is_python: ClassVar = True

    def _skip(self) -> None:
        skipped = (_BLANKS if "x" in self._flags else _COMMENTS).match(self._pattern, self._position)
        assert skipped is not None
        self._position = skipped.end()

    def _with_flags(self, added: str, removed: str, begin: int) -> frozenset[str]:
        if {"a", "u"} <= {*added} or not {"a", "u"}.isdisjoint(removed):
            raise self._invalid("the flags a and u exclude each other, and are not turned off", begin)
        flags = super()._with_flags(added, removed, begin)
        return flags - {"a"} if "u" in added else flags

    def _repeated(self) -> parse.Node:
        node = super()._repeated()
        if isinstance(node, parse.Anchor):
            if "m" in self._flags:
                return parse.Look(_OTHER, not node.at_end, True, node.position)
            return parse.Look(_LONGER if node.at_end else _ANY, not node.at_end, True, node.position)
        if isinstance(node, parse.WordBoundary):
            # One side is part of a word; with `negative`, both or none.
            word, at = parse.Characters(agreed(node.words.python())), node.position
            sides = [(side, side == node.negative) for side in (True, False)]
            looks = [(parse.Look(word, True, not a, at), parse.Look(word, False, not b, at)) for a, b in sides]
            return parse.Alternatives(tuple(map(parse.Sequence, looks)))
        return node

    def _atom(self) -> parse.Node:
        begin = self._position
        if self._take("\\A") or self._take("\\Z"):
            return parse.Look(_ANY, self._pattern[begin + 1] == "A", True, begin)
        node = super()._atom()
        if isinstance(node, parse.Look) and node.behind and len({*width(node.body)}) > 1:
            raise self._invalid("a look-behind of several lengths; write one for each length", begin)
        if isinstance(node, parse.Characters) and not node.characters.is_agreed:
            return parse.Characters(agreed(node.characters.python()))
        return node

    # -- classes -------------------------------------------------------------------------------------------------

    def _folded(self, characters: CharacterClass) -> CharacterClass:
        if "a" not in self._flags or "i" not in self._flags or not characters.is_agreed:
            return super()._folded(characters)
        letters = charset.intersect(characters.common, charset.matching("[a-zA-Z]"))
        other = tuple((code ^ 32, code ^ 32) for low, high in letters for code in range(low, high + 1))
        return agreed(charset.union(characters.common, other))

    def _named(self, name: str) -> CharacterClass:
        if "a" not in self._flags:
            return super()._named(name)
        found = charset.matching(rf"(?a:\{name})")
        # No class that both dialects see alike, so that it stays as it is where case is ignored.
        return CharacterClass(lambda: found, lambda: found)

    def _escape(self, *, in_class: bool) -> CharacterClass:
        begin = self._position - 1
        if found := _CODE.match(self._pattern, begin):
            code = int(found[found.lastindex or 0], 16)
            if not is_scalar_value(code):
                raise self._invalid("not a character", begin)
            if chr(code) in _SPECIAL:
                raise self._unsupported(f"an escape that Lark reads as {chr(code)!r} itself", begin)
        elif found := _NAME.match(self._pattern, begin):
            try:
                code = ord(unicodedata.lookup(found[1]))
            except (KeyError, TypeError):
                raise self._invalid(f"no character has the name {found[1]!a}", begin) from None
        elif found := (_OCTAL_IN_CLASS if in_class else _OCTAL).match(self._pattern, begin):
            code = int(found[1], 8)
        elif self._peek() == "a":
            self._position += 1
            return single(7)
        elif self._peek() in tuple("cpPuUxN"):
            raise self._invalid(f"unknown escape \\{self._peek()}; write the character", begin)
        elif "x" in self._flags and not in_class and self._peek() in tuple("fnrt"):
            raise self._unsupported("a blank that is left out by the flag x", begin)
        else:
            return super()._escape(in_class=in_class)
        self._position = found.end()
        return single(code)


def without_conditions(node: parse.Node) -> parse.Node:
    """Return the pattern with every look-around taken out."""
    return parse.NOTHING if isinstance(node, parse.Look) else with_parts(node, without_conditions)

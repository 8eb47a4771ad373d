r"""Parser of patterns in the dialect of Python's `re`, for the terminals of Lark grammars.

In this dialect, `\w` is the underscore or any Unicode letter or digit. `.` is any character except the line feed. `$`
may precede a final line feed. The parser converts anchors and word boundaries to look-arounds.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import ClassVar

from grammar_workers.dfa import charset
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.character_class import CharacterClass, agreed, single
from grammar_workers.languages.regex.neighbors import ANY, NO_LINE_FEED, PYTHON_END, between
from grammar_workers.languages.regex.written_out import width, with_parts
from grammar_workers.options import Limits
from grammar_workers.scalar_values import is_scalar_value

_COMMENTS = re.compile(r"(?:\(\?#[^)]*\))*+")
_BLANKS = re.compile(r"(?:\(\?#[^)]*\)|[ \t\n\r\v\f]|#[^\n]*+)*+")
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_NAME = re.compile(r"\\N\{([^}]*)\}")
_OCTAL = re.compile(r"\\(0[0-7]{0,2}|[0-3][0-7]{2})")
_OCTAL_IN_CLASS = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}(?![0-7]))")
_SPECIAL = frozenset("()[]{}|*+?.^$\\-&~# \t\n\r\v\f")


@functools.lru_cache(maxsize=64)
def read_python(pattern: str, limits: Limits) -> parse.Node:
    """Parse a pattern in the dialect of Python's `re` to a syntax tree.

    A malformed, unsupported or too large pattern raises GrammarError with the position.

    Args:
        pattern: The regular expression.
        limits: Bounds on nesting and on the number of characters.

    Returns:
        The root of the syntax tree. It has look-arounds instead of anchors and word boundaries.
    """
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
                return parse.Look(NO_LINE_FEED, not node.at_end, True, node.position)
            return PYTHON_END if node.at_end else parse.Look(ANY, True, True, node.position)
        if isinstance(node, parse.WordBoundary):
            # Exactly one side is a word character; with `negative`, both or neither.
            word = node.words.python()
            return between(((word, outside), (word, outside == node.negative)) for outside in (False, True))
        return node

    def _atom(self) -> parse.Node:
        begin = self._position
        if self._take("\\A") or self._take("\\Z"):
            return parse.Look(ANY, self._pattern[begin + 1] == "A", True, begin)
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
        # The two functions differ, so the class does not count as agreed, and case folding leaves it unchanged.
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
    """Return a copy of a syntax tree without its look-arounds. It matches at least the texts of the original.

    Args:
        node: The root of the tree; not changed. Anchors and word boundaries must already be look-arounds
            (`read_python`).
    """
    return parse.NOTHING if isinstance(node, parse.Look) else with_parts(node, without_conditions)

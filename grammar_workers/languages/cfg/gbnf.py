"""GBNF, the grammar notation of llama.cpp (and of the EBNF that vLLM users send).

    root  ::= "yes" | number ("," ws number)*     # comments run to the end of the line
    number ::= "-"? [0-9]{1,5} | [^a-z\\x22]        # classes, escapes, ? * + {n} {n,} {n,m} {,m}
    ws ::= [ \\t\\n]*

White space, line ends included, means nothing outside quotes and brackets: a rule goes on until the next `name ::=`.
`.` is any character. The language is that of the rule `root`. Token references (`<think>`, `<[17]>`) are refused.
"""

from __future__ import annotations

import re
from typing import NoReturn

from grammar_workers.dfa import charset
from grammar_workers.languages.cfg.syntax import (
    EMPTY,
    Alternatives,
    Characters,
    Expression,
    Grammar,
    Reference,
    Repeat,
    Rule,
    Sequence,
    literal,
)
from grammar_workers.languages.cfg.text_cursor import TextCursor
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.options import Limits

START = "root"

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_DEFINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*::=")
_BOUNDS = re.compile(r"\{\s*([0-9]*)\s*(,?)\s*([0-9]*)\s*\}")
_PLAIN = re.compile(r'[^"\\\n\ud800-\udfff]+')
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}
_WIDTHS = {"x": 2, "u": 4, "U": 8}
_LITERAL_ESCAPES = "\\\"[]^-/'"


def read_gbnf(text: str, limits: Limits) -> Grammar:
    """Parse a GBNF text.

    Raises InvalidSpecificationError, UnsupportedFeatureError or LimitExceededError, each with the position.
    """
    return _Reader(TextCursor(text, limits)).read()


class _Reader:
    """Recursive descent."""

    def __init__(self, cursor: TextCursor) -> None:
        self._cursor = cursor

    def read(self) -> Grammar:
        cursor = self._cursor
        rules: dict[str, Rule] = {}
        self._skip()
        while not cursor.at_end:
            begin = cursor.position
            name = cursor.match(_NAME)
            if not name:
                cursor.fail("a rule `name ::= ...` is expected here")
            if not cursor.match(_DEFINES):
                cursor.fail(f"`::=` is missing after {name[0]!r}", begin)
            self._skip()
            if name[0] in rules:
                cursor.fail(f"the rule {name[0]!r} is defined twice", begin)
            rules[name[0]] = Rule(self._alternatives(), begin)
            if cursor.peek() == ")":
                cursor.fail("unbalanced ')'")
        if START not in rules:
            cursor.fail(f"there is no rule named {START!r}", 0)
        return Grammar(rules, START)

    def _alternatives(self) -> Expression:
        branches = [self._sequence()]
        while self._cursor.take("|"):
            self._skip()
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def _sequence(self) -> Expression:
        cursor = self._cursor
        items: list[Expression] = []
        while not cursor.at_end and cursor.peek() not in "|)":
            begin = cursor.position
            item = self._atom()
            if item is None:
                break
            self._skip()
            while (bounds := self._quantifier()) is not None:
                item = Repeat(item, *bounds)
                self._skip()
            items.append(item)
            if cursor.position == begin:
                cursor.fail(f"unexpected {cursor.peek()!r}")
        return items[0] if len(items) == 1 else Sequence(tuple(items)) if items else EMPTY

    def _atom(self) -> Expression | None:
        """One element, or None where the next rule begins."""
        cursor = self._cursor
        begin = cursor.position
        if cursor.take('"'):
            return self._literal(begin)
        if cursor.take("["):
            return self._class(begin)
        if cursor.take("."):
            return Characters((charset.ALL,))
        if cursor.take("("):
            return self._group(begin)
        if cursor.peek() in "<!" and cursor.peek():
            cursor.refuse("a token reference in a grammar is not supported; name its text in quotes")
        name = cursor.match(_NAME)
        if not name:
            cursor.fail(f"unexpected {cursor.peek()!r}")
        if _DEFINES.match(cursor.text, cursor.position):
            cursor.position = begin
            return None
        return Reference(name[0], begin)

    def _group(self, begin: int) -> Expression:
        cursor = self._cursor
        cursor.enter(begin)
        self._skip()
        inner = self._alternatives()
        if not cursor.take(")"):
            cursor.fail("missing ')'", begin)
        cursor.leave()
        return inner

    def _quantifier(self) -> tuple[int, int | None] | None:
        cursor = self._cursor
        begin = cursor.position
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if cursor.take(symbol):
                return bounds
        if cursor.peek() != "{":
            return None
        found = cursor.match(_BOUNDS)
        if not found or not (found[1] or found[3]):
            cursor.fail("malformed repetition; write {n}, {n,} or {n,m}", begin)
        low = cursor.count(found[1] or "0", begin)
        high = cursor.count(found[3], begin) if found[3] else (None if found[2] else low)
        if high is not None and high < low:
            cursor.fail("repeat bounds out of order", begin)
        return low, high

    def _literal(self, begin: int) -> Expression:
        cursor = self._cursor
        characters = []
        while not cursor.take('"'):
            if cursor.at_end or cursor.peek() == "\n":
                cursor.fail("missing '\"'", begin)
            plain = cursor.match(_PLAIN)
            characters.append(plain[0] if plain else self._character())
        return literal("".join(characters))

    def _class(self, begin: int) -> Expression:
        cursor = self._cursor
        negated = cursor.take("^")
        intervals: list[tuple[int, int]] = []
        while not cursor.take("]"):
            if cursor.at_end:
                cursor.fail("missing ']'", begin)
            at = cursor.position
            low = high = self._character()
            if cursor.peek() == "-" and cursor.peek(2) not in ("-", "-]"):
                cursor.take("-")
                high = self._character()
                if high < low:
                    cursor.fail("character range out of order", at)
            intervals.append((ord(low), ord(high)))
        members = charset.make(intervals)
        return Characters((charset.complement(members) if negated else members,))

    def _character(self) -> str:
        """One character, written plainly or as an escape."""
        cursor = self._cursor
        begin = cursor.position
        character = cursor.peek()
        if not character:
            cursor.fail("the text ends inside a literal", begin)
        cursor.position += 1
        if has_surrogate(character):
            cursor.fail("a lone surrogate", begin)
        if character != "\\":
            return character
        kind = cursor.peek()
        cursor.position += 1
        if kind in _CONTROL:
            return _CONTROL[kind]
        if kind in _WIDTHS:
            width = _WIDTHS[kind]
            digits = cursor.peek(width)
            cursor.position += width
            return cursor.scalar(digits, width, begin)
        if kind and kind in _LITERAL_ESCAPES:
            return kind
        self._bad_escape(kind, begin)

    def _bad_escape(self, kind: str, begin: int) -> NoReturn:
        self._cursor.fail(f"unknown escape \\{kind}", begin)

    def _skip(self) -> None:
        self._cursor.match(_SPACE)

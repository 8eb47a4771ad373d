r"""Reader of GBNF, the grammar notation of llama.cpp. It also reads the EBNF grammars that vLLM users send.

    root  ::= "yes" | number ("," ws number)*     # comments run to the end of the line
    number ::= "-"? [0-9]{1,5} | [^a-z\x22]        # classes, escapes, ? * + {n} {n,} {n,m} {,m}
    ws ::= [ \t\n]*

White space and line ends outside quotes and brackets have no meaning. A rule ends where the next `name ::=` begins. `.`
is any character. Outputs match the rule `root`. `<think>` and `<[17]>` are tokens. `!</think>` is any token except
`</think>`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from grammar_workers.dfa import charset
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.cfg.text_cursor import TextCursor
from grammar_workers.options import Limits

START = "root"

# Possessive: text that was read as a comment must not be read again as grammar.
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*+)*+")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_DEFINES = re.compile(_SPACE.pattern + "::=")
_NEXT_RULE = re.compile(_NAME.pattern + _DEFINES.pattern)
_BOUNDS = re.compile(r"\{\s*([0-9]*)\s*(,?)\s*([0-9]*)\s*\}")
_PLAIN = re.compile(r'[^"\\\n\ud800-\udfff]+')


def read_gbnf(text: str, limits: Limits) -> syntax.Grammar:
    """Parse a grammar in the GBNF notation.

    An error in the text raises InvalidSpecificationError, UnsupportedFeatureError or LimitExceededError, each with the
    position in `text`.

    Args:
        text: The grammar text.
        limits: Bounds on nesting and repeat counts.

    Returns:
        The syntax trees of all rules. The start rule is `root`.
    """
    return _Reader(text, limits).read()


class _Reader(TextCursor):
    """A recursive descent parser."""

    escapes: ClassVar = {"n": "\n", "r": "\r", "t": "\t", **{character: character for character in "\\\"[]^-/'"}}
    keeps_unknown_escapes = False

    def read(self) -> syntax.Grammar:
        rules: dict[str, syntax.Rule] = {}
        self.match(_SPACE)
        while not self.at_end:
            begin = self.position
            name = self.match(_NAME)
            if not name:
                self.fail("a rule `name ::= ...` is expected here")
            if not self.match(_DEFINES):
                self.fail(f"`::=` is missing after {name[0]!r}", begin)
            if name[0] in rules:
                self.fail(f"the rule {name[0]!r} is defined twice", begin)
            rules[name[0]] = syntax.Rule(self.alternatives(), begin)
            if self.peek() == ")":
                self.fail("unbalanced ')'")
        if START not in rules:
            self.fail(f"there is no rule named {START!r}", 0)
        return syntax.Grammar(rules, START, self.text, formats=self.placed_formats)

    def sequence(self) -> syntax.Expression:
        items: list[syntax.Expression] = []
        self.match(_SPACE)
        while not self.at_end and self.peek() not in "|)" and not _NEXT_RULE.match(self.text, self.position):
            item = self._atom()
            self.match(_SPACE)
            while (bounds := self._quantifier()) is not None:
                item = syntax.Repeat(item, *bounds)
                self.match(_SPACE)
            items.append(item)
        return items[0] if len(items) == 1 else syntax.Sequence(tuple(items))

    def _atom(self) -> syntax.Expression:
        begin = self.position
        if self.take('"'):
            return self._literal(begin)
        if self.take("["):
            return self._class(begin)
        if self.take("."):
            return syntax.Characters((charset.ALL,))
        if self.take("("):
            return self.group(")", begin)
        return self.token() or self.reference(_NAME)

    def _quantifier(self) -> tuple[int, int | None] | None:
        begin = self.position
        if self.peek() != "{":
            return self.simple_repeat()
        found = self.match(_BOUNDS)
        if not found or not (found[1] or found[3]):
            self.fail("malformed repetition; write {n}, {n,} or {n,m}", begin)
        return self.bounds(found[1] or "0", found[3] or (None if found[2] else found[1]), begin)

    def _literal(self, begin: int) -> syntax.Expression:
        characters = []
        while not self.take('"'):
            if self.at_end or self.peek() == "\n":
                self.fail("missing '\"'", begin)
            plain = self.match(_PLAIN)
            characters.append(plain[0] if plain else self.character())
        return syntax.literal("".join(characters))

    def _class(self, begin: int) -> syntax.Expression:
        negated = self.take("^")
        intervals: list[tuple[int, int]] = []
        while not self.take("]"):
            if self.at_end:
                self.fail("missing ']'", begin)
            at = self.position
            low = high = self.character()
            if self.peek() == "-" and self.peek(2) not in ("-", "-]"):
                self.take("-")
                high = self.character()
                if high < low:
                    self.fail("character range out of order", at)
            intervals.append((ord(low), ord(high)))
        members = charset.make(intervals)
        return syntax.Characters((charset.complement(members) if negated else members,))

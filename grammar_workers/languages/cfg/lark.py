"""Lark grammars: rules in lower case, TERMINALS in upper case, `start` the language.

    start: select (";" select)*              // also # comments
    select: "select"i columns -> query
    columns: NAME ("," NAME) ~ 0..9 | "*"
    NAME: /[a-z_]\\w*/
    %import common.WS
    %ignore WS

The language is the scannerless one: a text is accepted when its characters can be cut into terminals in *some* way that
the rules allow (as Lark's Earley parser with `lexer='dynamic_complete'` does), with ignored terminals before, between
and after terminals, never inside one. A lexer that takes the longest match first accepts less: with `%ignore WS` and
`"if" NAME`, the text `ifx` is one NAME to a lexer, and `if` `x` here. Priorities, aliases and `?`/`!`/`_` shape
the tree or pick between parses, not the language, and are read over. Templates, `%declare`, `%extend`, `%override`,
imports of anything but `common`, and token references are refused.
"""

from __future__ import annotations

import functools
import re
from typing import ClassVar

from grammar_workers.dfa import charset
from grammar_workers.errors import GrammarError
from grammar_workers.languages.cfg.lark_common import COMMON_TERMINALS
from grammar_workers.languages.cfg.syntax import (
    EMPTY,
    Alternatives,
    Characters,
    Expression,
    Grammar,
    Reference,
    Regular,
    Repeat,
    Rule,
    Sequence,
    literal,
)
from grammar_workers.languages.cfg.text_cursor import TextCursor
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.options import Limits

START = "start"
_IGNORED = "%ignore"
"""The rule for what may stand between two terminals; no rule of a user's can have this name."""
_COMMON = "common."

_INLINE_SPACE = re.compile(r"(?:[ \t]|\\[ ]*\n|//[^\n]*|#[^\n]*)*")
_ANY_SPACE = re.compile(r"(?:\s|\\[ ]*\n|//[^\n]*|#[^\n]*)*")
_NEXT_ALTERNATIVE = re.compile(r"(?:\s|//[^\n]*|#[^\n]*)*(?=\|)")
_LINE_END = re.compile(r"\r?\n|\Z")
_MODIFIERS = re.compile(r"[?!]{0,2}")
_NAME = re.compile(r"_?(?:[a-z][_a-z0-9]*|[A-Z][_A-Z0-9]*)")
_PRIORITY = re.compile(r"\.[+-]?[0-9]+")
_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"(i?)')
_REGEXP = re.compile(r"/(?!/)((?:\\.|[^/\\\n])*)/([imslux]*)")
_TIMES = re.compile(r"[ \t]*([0-9]+)(?:[ \t]*\.\.[ \t]*([0-9]+))?")
_ALIAS = re.compile(r"->[ \t]*!?_?[a-zA-Z][_a-zA-Z0-9]*")
_IMPORT = re.compile(r"%import[ \t]+common[ \t]*")
_IMPORT_ALIAS = re.compile(r"[ \t]*->[ \t]*")
_DIRECTIVE = re.compile(r"%[a-z_]*")


def read_lark(text: str, limits: Limits) -> Grammar:
    """Parse a Lark grammar.

    Raises InvalidSpecificationError, UnsupportedFeatureError or LimitExceededError, each with the position.
    """
    return _Reader(text, limits).read()


@functools.cache
def _common_terminals() -> dict[str, Rule]:
    return _Reader(COMMON_TERMINALS, Limits(), prefix=_COMMON).definitions()


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


class _Reader(TextCursor):
    """Recursive descent. `prefix` goes before the names of what is defined (the common terminals')."""

    escapes: ClassVar = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "\\": "\\", '"': '"'}
    keeps_unknown_escapes = True

    def __init__(self, text: str, limits: Limits, prefix: str = "") -> None:
        super().__init__(text, limits)
        self._prefix = prefix
        self._rules: dict[str, Rule] = {}
        self._ignored: list[Expression] = []
        self._in_terminal = False

    def read(self) -> Grammar:
        self.definitions()
        if START not in self._rules:
            self.fail(f"there is no rule named {START!r}", 0)
        between = Repeat(Alternatives(tuple(self._ignored)), 0, None) if self._ignored else EMPTY
        rules = {**_common_terminals(), **self._rules, _IGNORED: Rule(between, 0)}
        # Ignored text may also come first; after each terminal it is part of what `_terminal` makes.
        first = Sequence((Reference(_IGNORED, 0), Reference(START, self._rules[START].position)))
        return Grammar({**rules, "%start": Rule(first, 0)}, "%start")

    def definitions(self) -> dict[str, Rule]:
        """Read the whole text; the rules and terminals that it defines."""
        self.match(_ANY_SPACE)
        while not self.at_end:
            if self.peek() == "%":
                self._directive()
            else:
                self._definition()
            self.match(_INLINE_SPACE)
            if not self.match(_LINE_END):
                self.fail(f"unexpected {self.peek()!r}")
            self.match(_ANY_SPACE)
        return self._rules

    # -- statements ----------------------------------------------------------------------------------------------

    def _definition(self) -> None:
        self.match(_MODIFIERS)
        begin = self.position
        name = self.match(_NAME)
        if not name:
            self.fail("a rule `name: ...` or a terminal `NAME: ...` is expected here")
        if self.peek() == "{":
            self.refuse(f"the template {name[0]!r} is not supported", begin)
        if self.peek() == "[":
            self.refuse(f"attributes of the rule {name[0]!r} are not supported", begin)
        self.match(_PRIORITY)
        self.match(_INLINE_SPACE)
        if not self.take(":"):
            self.fail(f"`:` is missing after {name[0]!r}")
        self._in_terminal = _is_terminal(name[0])
        self._define(name[0], self.alternatives(), begin)

    def _define(self, name: str, expression: Expression, position: int) -> None:
        if self._prefix + name in self._rules:
            self.fail(f"{name!r} is defined twice", position)
        self._rules[self._prefix + name] = Rule(expression, position)

    def _directive(self) -> None:
        begin = self.position
        word = _DIRECTIVE.match(self.text, begin)
        if word and word[0] == "%ignore":
            self.position += len("%ignore")
            self._in_terminal = True
            self._ignored.append(self.alternatives())
        elif word and word[0] == "%import":
            if not self.match(_IMPORT):
                self.refuse("only `%import common.NAME` and `%import common (NAME, ...)` are supported", begin)
            self._import(begin)
        else:
            self.refuse(f"the directive {word[0] if word else '%'!r} is not supported", begin)

    def _import(self, begin: int) -> None:
        if self.take("."):
            name = self._imported()
            alias = name
            if self.match(_IMPORT_ALIAS):
                found = self.match(_NAME)
                if not found or not _is_terminal(found[0]):
                    self.fail("the new name of an imported terminal is expected here")
                alias = found[0]
            self._define(alias, Reference(_COMMON + name, begin), begin)
        elif self.take("("):
            while True:
                self.match(_ANY_SPACE)
                name = self._imported()
                self._define(name, Reference(_COMMON + name, begin), begin)
                self.match(_ANY_SPACE)
                if not self.take(","):
                    break
            if not self.take(")"):
                self.fail("missing ')'", begin)
        else:
            self.fail("write `%import common.NAME`", begin)

    def _imported(self) -> str:
        begin = self.position
        name = self.match(_NAME)
        if not name or _COMMON + name[0] not in _common_terminals():
            known = ", ".join(sorted(each.removeprefix(_COMMON) for each in _common_terminals()))
            self.refuse(f"no such terminal in `common`; there are {known}", begin)
        return name[0]

    # -- expressions ---------------------------------------------------------------------------------------------

    def sequence(self) -> Expression:
        # A leading `|`, as in a list of alternatives one a line, stands for an empty one in Lark, too.
        items: list[Expression] = []
        while True:
            self._skip()
            if self.at_end or self.peek() in "|)]\r\n":
                break
            if self.match(_ALIAS):
                self._skip()
                break
            items.append(self._repeated())
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _repeated(self) -> Expression:
        item = self._atom()
        self._skip()
        begin = self.position
        if bounds := self.simple_repeat():
            return Repeat(item, *bounds)
        if self.take("~"):
            found = self.match(_TIMES)
            if not found:
                self.fail("a count is expected after `~`")
            return Repeat(item, *self.bounds(found[1], found[2] or found[1], begin))
        return item

    def _atom(self) -> Expression:
        begin = self.position
        for opening, closing in ("()", "[]"):
            if self.take(opening):
                inner = self.group(closing, begin)
                return Repeat(inner, 0, 1) if opening == "[" else inner
        if self.peek() == '"':
            return self._terminal(self._string(begin))
        if self.peek() == "/":
            return self._terminal(self._regexp(begin))
        name = self.reference(_NAME).name
        if self.peek() == "{":
            self.refuse(f"the template {name!r} is not supported", begin)
        reference = Reference(self._prefix + name, begin)
        if _is_terminal(name):
            return self._terminal(reference)
        if self._in_terminal:
            self.fail(f"the rule {name!r} inside a terminal; write its name in upper case", begin)
        return reference

    def _terminal(self, expression: Expression) -> Expression:
        """A terminal where it stands: in a rule, ignored text may follow it."""
        return expression if self._in_terminal else Sequence((expression, Reference(_IGNORED, 0)))

    def _string(self, begin: int) -> Expression:
        found = self.match(_STRING)
        if not found:
            self.fail("missing '\"'", begin)
        text = self._unescaped(found)
        if not self.take(".."):
            return literal(text, ignore_case=bool(found[2]))
        last = self.match(_STRING)
        if not last:
            self.fail("the end of a range is expected after `..`")
        end = self._unescaped(last)
        if len(text) != 1 or len(end) != 1 or end < text:
            self.fail("the ends of a range are two single characters in order", begin)
        return Characters((charset.make([(ord(text), ord(end))]),))

    def _unescaped(self, quoted: re.Match[str]) -> str:
        """What a quoted text, which has just been matched, stands for."""
        self.position = quoted.start(1)
        characters = []
        while self.position < quoted.end(1):
            characters.append(self.character())
        self.position = quoted.end()
        return "".join(characters)

    def _regexp(self, begin: int) -> Expression:
        found = self.match(_REGEXP)
        if not found:
            self.fail("missing '/'", begin)
        # Python's `re` reads every pattern as Unicode, so that flag says nothing.
        flags = "".join(sorted(set(found[2]) - {"u"}))
        opening = f"(?{flags}:" if flags else ""
        pattern = opening + found[1] + (")" if flags else "")
        try:
            return Regular(compile_regex(pattern, search=False, limits=self._limits))
        except GrammarError as error:
            inside = min(max((error.position or 0) - len(opening), 0), len(found[1]))
            at = begin + 1 + inside
            raise type(error)(f"{error.message}{self.place(at)}", position=at) from None

    def _skip(self) -> None:
        """White space and comments; outside groups, line ends only where an alternative follows."""
        if self._depth:
            self.match(_ANY_SPACE)
            return
        self.match(_INLINE_SPACE)
        self.match(_NEXT_ALTERNATIVE)

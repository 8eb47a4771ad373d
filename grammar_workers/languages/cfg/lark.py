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
from grammar_workers.languages.scalar_values import has_surrogate
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
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_WIDTHS = {"x": 2, "u": 4, "U": 8}


def read_lark(text: str, limits: Limits) -> Grammar:
    """Parse a Lark grammar.

    Raises InvalidSpecificationError, UnsupportedFeatureError or LimitExceededError, each with the position.
    """
    return _Reader(TextCursor(text, limits), limits).read()


@functools.cache
def _common_terminals() -> dict[str, Rule]:
    limits = Limits()
    return _Reader(TextCursor(COMMON_TERMINALS, limits), limits, prefix=_COMMON).definitions()


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


class _Reader:
    """Recursive descent. `prefix` goes before the names of what is defined (the common terminals')."""

    def __init__(self, cursor: TextCursor, limits: Limits, prefix: str = "") -> None:
        self._cursor = cursor
        self._limits = limits
        self._prefix = prefix
        self._rules: dict[str, Rule] = {}
        self._ignored: list[Expression] = []
        self._in_terminal = False
        self._groups = 0

    def read(self) -> Grammar:
        self.definitions()
        if START not in self._rules:
            self._cursor.fail(f"there is no rule named {START!r}", 0)
        between = Repeat(Alternatives(tuple(self._ignored)), 0, None) if self._ignored else EMPTY
        rules = {**_common_terminals(), **self._rules, _IGNORED: Rule(between, 0)}
        # Ignored text may also come first; after each terminal it is part of what `_terminal` makes.
        first = Sequence((Reference(_IGNORED, 0), Reference(START, self._rules[START].position)))
        return Grammar({**rules, "%start": Rule(first, 0)}, "%start")

    def definitions(self) -> dict[str, Rule]:
        """Read the whole text; the rules and terminals that it defines."""
        cursor = self._cursor
        cursor.match(_ANY_SPACE)
        while not cursor.at_end:
            if cursor.peek() == "%":
                self._directive()
            else:
                self._definition()
            cursor.match(_INLINE_SPACE)
            if not cursor.match(_LINE_END):
                cursor.fail(f"unexpected {cursor.peek()!r}")
            cursor.match(_ANY_SPACE)
        return self._rules

    # -- statements ----------------------------------------------------------------------------------------------

    def _definition(self) -> None:
        cursor = self._cursor
        cursor.match(_MODIFIERS)
        begin = cursor.position
        name = cursor.match(_NAME)
        if not name:
            cursor.fail("a rule `name: ...` or a terminal `NAME: ...` is expected here")
        if cursor.peek() == "{":
            cursor.refuse(f"the template {name[0]!r} is not supported", begin)
        if cursor.peek() == "[":
            cursor.refuse(f"attributes of the rule {name[0]!r} are not supported", begin)
        cursor.match(_PRIORITY)
        cursor.match(_INLINE_SPACE)
        if not cursor.take(":"):
            cursor.fail(f"`:` is missing after {name[0]!r}")
        self._in_terminal = _is_terminal(name[0])
        self._define(name[0], self._alternatives(), begin)

    def _define(self, name: str, expression: Expression, position: int) -> None:
        if self._prefix + name in self._rules:
            self._cursor.fail(f"{name!r} is defined twice", position)
        self._rules[self._prefix + name] = Rule(expression, position)

    def _directive(self) -> None:
        cursor = self._cursor
        begin = cursor.position
        word = _DIRECTIVE.match(cursor.text, begin)
        if word and word[0] == "%ignore":
            cursor.position += len("%ignore")
            self._in_terminal = True
            self._ignored.append(self._alternatives())
        elif word and word[0] == "%import":
            if not cursor.match(_IMPORT):
                cursor.refuse("only `%import common.NAME` and `%import common (NAME, ...)` are supported", begin)
            self._import(begin)
        else:
            cursor.refuse(f"the directive {word[0] if word else '%'!r} is not supported", begin)

    def _import(self, begin: int) -> None:
        cursor = self._cursor
        if cursor.take("."):
            name = self._imported()
            alias = name
            if cursor.match(_IMPORT_ALIAS):
                found = cursor.match(_NAME)
                if not found or not _is_terminal(found[0]):
                    cursor.fail("the new name of an imported terminal is expected here")
                alias = found[0]
            self._define(alias, Reference(_COMMON + name, begin), begin)
        elif cursor.take("("):
            while True:
                cursor.match(_ANY_SPACE)
                name = self._imported()
                self._define(name, Reference(_COMMON + name, begin), begin)
                cursor.match(_ANY_SPACE)
                if not cursor.take(","):
                    break
            if not cursor.take(")"):
                cursor.fail("missing ')'", begin)
        else:
            cursor.fail("write `%import common.NAME`", begin)

    def _imported(self) -> str:
        cursor = self._cursor
        begin = cursor.position
        name = cursor.match(_NAME)
        if not name or _COMMON + name[0] not in _common_terminals():
            known = ", ".join(sorted(each.removeprefix(_COMMON) for each in _common_terminals()))
            cursor.refuse(f"no such terminal in `common`; there are {known}", begin)
        return name[0]

    # -- expressions ---------------------------------------------------------------------------------------------

    def _alternatives(self) -> Expression:
        cursor = self._cursor
        # A leading `|`, as in a list of alternatives one a line, stands for an empty one in Lark, too.
        branches = [self._sequence()]
        while cursor.take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def _sequence(self) -> Expression:
        cursor = self._cursor
        items: list[Expression] = []
        while True:
            self._skip()
            if cursor.at_end or cursor.peek() in "|)]\r\n":
                break
            if cursor.match(_ALIAS):
                self._skip()
                break
            items.append(self._repeated())
        return items[0] if len(items) == 1 else Sequence(tuple(items)) if items else EMPTY

    def _repeated(self) -> Expression:
        cursor = self._cursor
        item = self._atom()
        self._skip()
        begin = cursor.position
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if cursor.take(symbol):
                return Repeat(item, *bounds)
        if cursor.take("~"):
            found = cursor.match(_TIMES)
            if not found:
                cursor.fail("a count is expected after `~`")
            low = cursor.count(found[1], begin)
            high = cursor.count(found[2], begin) if found[2] else low
            if high < low:
                cursor.fail("repeat bounds out of order", begin)
            return Repeat(item, low, high)
        return item

    def _atom(self) -> Expression:
        cursor = self._cursor
        begin = cursor.position
        for opening, closing in ("()", "[]"):
            if cursor.take(opening):
                inner = self._group(closing, begin)
                return Repeat(inner, 0, 1) if opening == "[" else inner
        if cursor.peek() == '"':
            return self._terminal(self._string(begin))
        if cursor.peek() == "/":
            return self._terminal(self._regexp(begin))
        if cursor.peek() == "<":
            cursor.refuse("a token reference in a grammar is not supported; name its text in quotes")
        name = cursor.match(_NAME)
        if not name:
            cursor.fail(f"unexpected {cursor.peek()!r}")
        if cursor.peek() == "{":
            cursor.refuse(f"the template {name[0]!r} is not supported", begin)
        reference = Reference(self._prefix + name[0], begin)
        if _is_terminal(name[0]):
            return self._terminal(reference)
        if self._in_terminal:
            cursor.fail(f"the rule {name[0]!r} inside a terminal; write its name in upper case", begin)
        return reference

    def _terminal(self, expression: Expression) -> Expression:
        """A terminal where it stands: in a rule, ignored text may follow it."""
        return expression if self._in_terminal else Sequence((expression, Reference(_IGNORED, 0)))

    def _group(self, closing: str, begin: int) -> Expression:
        cursor = self._cursor
        cursor.enter(begin)
        self._groups += 1
        inner = self._alternatives()
        if not cursor.take(closing):
            cursor.fail(f"missing {closing!r}", begin)
        self._groups -= 1
        cursor.leave()
        return inner

    def _string(self, begin: int) -> Expression:
        cursor = self._cursor
        found = cursor.match(_STRING)
        if not found:
            cursor.fail("missing '\"'", begin)
        text = self._unescape(found[1], begin + 1)
        if not cursor.take(".."):
            return literal(text, ignore_case=bool(found[2]))
        last = cursor.match(_STRING)
        if not last:
            cursor.fail("the end of a range is expected after `..`")
        end = self._unescape(last[1], begin + 1)
        if len(text) != 1 or len(end) != 1 or end < text:
            cursor.fail("the ends of a range are two single characters in order", begin)
        return Characters((charset.make([(ord(text), ord(end))]),))

    def _unescape(self, raw: str, begin: int) -> str:
        """What a quoted text stands for; as in Lark, a backslash before any other character is just that."""
        cursor = TextCursor(raw.replace("\0", ""), self._limits)
        result = []
        while not cursor.at_end:
            character = cursor.peek()
            kind = cursor.peek(2)[1:]
            at = begin + cursor.position
            cursor.position += 1
            if has_surrogate(character):
                self._cursor.fail("a lone surrogate", at)
            if character == "\\" and kind in _WIDTHS and kind:
                digits = cursor.text[cursor.position + 1 : cursor.position + 1 + _WIDTHS[kind]]
                cursor.position += 1 + _WIDTHS[kind]
                result.append(self._cursor.scalar(digits, _WIDTHS[kind], at))
            elif character == "\\" and kind and (kind in _CONTROL or kind in '\\"'):
                cursor.position += 1
                result.append(_CONTROL.get(kind, kind))
            else:
                result.append(character)
        return "".join(result)

    def _regexp(self, begin: int) -> Expression:
        cursor = self._cursor
        found = cursor.match(_REGEXP)
        if not found:
            cursor.fail("missing '/'", begin)
        # Python's `re` reads every pattern as Unicode, so that flag says nothing.
        flags = "".join(sorted(set(found[2]) - {"u"}))
        opening = f"(?{flags}:" if flags else ""
        pattern = opening + found[1] + (")" if flags else "")
        try:
            return Regular(compile_regex(pattern, search=False, limits=self._limits))
        except GrammarError as error:
            inside = min(max((error.position or 0) - len(opening), 0), len(found[1]))
            at = begin + 1 + inside
            raise type(error)(f"{error.message}{cursor.place(at)}", position=at) from None

    def _skip(self) -> None:
        """White space and comments; outside groups, line ends only where an alternative follows."""
        if self._groups:
            self._cursor.match(_ANY_SPACE)
            return
        self._cursor.match(_INLINE_SPACE)
        self._cursor.match(_NEXT_ALTERNATIVE)

r"""Reader of Lark grammars. Rules have names in lower case, terminals in upper case. Outputs match the rule `start`.

    start: select (";" select)*              // also # comments
    select: "select"i columns -> query
    columns: NAME ("," NAME) ~ 0..9 | "*"
    NAME: /[a-z_]\w*/
    %import common.WS
    %ignore WS

The language is that of Lark's Earley parser with `lexer='dynamic_complete'`. A text is accepted if its characters can
be split into terminals in *some* way that the rules allow. Ignored terminals may stand before, between and after
terminals, never inside one. A longest-match lexer accepts fewer texts: with `%ignore WS` and `"if" NAME`, it reads the
text `ifx` as one NAME, but here the text is also read as `if` and `x`. Inside a terminal, the semantics of Python's
`re` apply: lazy quantifiers and the order of alternatives count, and look-arounds, `\b`, `^` and `$` see the whole
text. An ignored text is as long as possible.

Templates are expanded. Priorities, aliases and `?`/`!`/`_` have no effect: they change only the parse tree. Terminals
of `%declare` match nothing. `%extend`, `%override` and imports of modules other than `common` are rejected. These
extensions of llguidance are supported: tokens (`<|end|>`, `<[17]>`), `%json {...}`, and rules `name[lazy]: ...`, which
match a text as short as possible.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import ClassVar, TypeVar

from grammar_workers.dfa.dfa import without_longer
from grammar_workers.errors import GrammarError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.cfg.lark_common import COMMON_TERMINALS
from grammar_workers.languages.cfg.lark_templates import Definition, Templates
from grammar_workers.languages.cfg.lark_terminals import COMMON, Terminals
from grammar_workers.languages.cfg.text_cursor import TextCursor
from grammar_workers.options import Limits
from grammar_workers.strict_json import JsonTextError, parse_json
from grammar_workers.tag_formats import JsonSchemaFormat

START = "start"
_Item = TypeVar("_Item")
# The name of the rule for the text between two terminals. No user's rule can have this name.
_IGNORED = "%ignore"

# Possessive: text that was read as a comment must not be read again as grammar.
_INLINE_SPACE = re.compile(r"(?:[ \t]|\\[ ]*\n|//[^\n]*+|#[^\n]*+)*+")
_ANY_SPACE = re.compile(r"(?:\s|\\[ ]*\n|//[^\n]*+|#[^\n]*+)*+")
_NEXT_ALTERNATIVE = re.compile(_ANY_SPACE.pattern + r"(?=\|)")
_LINE_END = re.compile(r"\r?\n|\Z")
_MODIFIERS = re.compile(r"[?!]{0,2}")
_NAME = re.compile(r"_?(?:[a-z][_a-z0-9]*|[A-Z][_A-Z0-9]*)")
_PRIORITY = re.compile(r"\.[+-]?[0-9]+")
_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"(i?)')
_REGEXP = re.compile(r"/(?!/)((?:\\.|[^/\\])*+)/([imslux]*)", re.DOTALL)
_BACKSLASHES = re.compile(r'(\\)\\"|\\.', re.DOTALL)
_TIMES = re.compile(r"[ \t]*([0-9]+)(?:[ \t]*\.\.[ \t]*([0-9]+))?")
_ALIAS = re.compile(r"->[ \t]*!?_?[a-zA-Z][_a-zA-Z0-9]*")
_IMPORT = re.compile(r"[ \t]+common[ \t]*")
_IMPORT_ALIAS = re.compile(r"[ \t]*->[ \t]*")
_LAZY = re.compile(r"\[[ \t]*lazy[ \t]*\]")
# Prefix of the name of the terminal that a lazy rule becomes.
_LAZY_PREFIX = "LAZY "
_DIRECTIVE = re.compile(r"%[a-z_]*")


def read_lark(text: str, limits: Limits) -> syntax.Grammar:
    """Parse a Lark grammar, compile its terminals, and insert the ignored text (`%ignore`) after each terminal.

    An error in the text raises InvalidSpecificationError, UnsupportedFeatureError or LimitExceededError, each with the
    position in `text`.

    Args:
        text: The grammar text.
        limits: Bounds on nesting, repeat counts and terminals.

    Returns:
        The syntax trees of all rules. A generated start rule permits ignored text before the rule `start`.
    """
    return _Reader(text, limits).read()


@functools.cache
def _common_terminals() -> dict[str, syntax.Rule]:
    return _Reader(COMMON_TERMINALS, Limits(), prefix=COMMON).definitions()


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


class _Reader(TextCursor):
    """A recursive descent parser. `prefix` precedes the names of all definitions (of common terminals)."""

    escapes: ClassVar = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "\\": "\\", '"': '"'}
    keeps_unknown_escapes = True
    refused: ClassVar = {
        "&": "send the parts in an `all_of`, or write a look-ahead `(?=...)` in the regular expression",
        "~": "write a negative look-ahead `(?!...)`, or a class of characters such as `[^...]`",
    }

    def __init__(self, text: str, limits: Limits, prefix: str = "") -> None:
        super().__init__(text, limits)
        self._prefix = prefix
        self._rules: dict[str, syntax.Rule] = {}
        self._terminals: dict[str, syntax.Rule] = {}
        self._templates: dict[str, Definition] = {}
        self._ignored: list[syntax.Expression] = []
        self._lazy: dict[str, int] = {}
        self._in_terminal = False

    def read(self) -> syntax.Grammar:
        self.definitions()
        if START not in self._rules:
            self.fail(f"there is no rule named {START!r}", 0)
        rules = self._expanded()
        terminals = Terminals({**_common_terminals(), **self._terminals}, self._limits, self._raise)
        terminals.check(self._terminals)
        compiled = {
            name: syntax.Rule(self._compiled(rule.expression, terminals), rule.position) for name, rule in rules.items()
        }
        used = {one.name: one for rule in compiled.values() for one in syntax.references(rule.expression)}
        for name, reference in used.items():
            if _is_terminal(name):
                terminal = terminals.compile(reference)
                place = self._terminals.get(name, rules[START]).position
                compiled[name] = syntax.Rule(self._shortest(terminal, name) if name in self._lazy else terminal, place)
        # Ignored text may also come first. After each terminal, `_terminal` appends it.
        compiled[_IGNORED] = syntax.Rule(terminals.ignored(self._ignored), 0)
        begin = tuple(syntax.Reference(name, 0) for name in (_IGNORED, START))
        compiled["%start"] = syntax.Rule(syntax.Sequence(begin), rules[START].position)
        context = terminals.contexts.automaton
        if self.placed_formats and context is not None:
            self.refuse(
                "tokens and `%json` beside a condition on the text around a terminal, which ignored text may have, too",
                self.placed_formats[0].position,
            )
        return syntax.Grammar(compiled, "%start", self.text, context, self.placed_formats)

    def _shortest(self, terminal: syntax.Expression, name: str) -> syntax.Expression:
        """Return the texts of a lazy rule that have no proper prefix in the rule."""
        if isinstance(terminal, syntax.Regular):
            return syntax.Regular(without_longer(terminal.automaton))
        if not isinstance(terminal, syntax.Characters):
            self.refuse("a condition on the text around a lazy rule", self._lazy[name])
        return terminal

    def _expanded(self) -> dict[str, syntax.Rule]:
        try:
            return Templates(self._templates, self._limits.max_nesting).expand(self._rules)
        except GrammarError as error:
            self._raise(type(error), error.message, error.position)

    def _compiled(self, expression: syntax.Expression, terminals: Terminals) -> syntax.Expression:
        """Return the expression of a rule with automata in place of strings and regular expressions."""
        if isinstance(expression, syntax.Pattern):
            return terminals.compile(expression)
        return syntax.with_items(expression, lambda item: self._compiled(item, terminals))

    def definitions(self) -> dict[str, syntax.Rule]:
        """Read the whole text and return the terminals that it defines."""
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
        return self._terminals

    # -- statements ----------------------------------------------------------------------------------------------

    def _definition(self) -> None:
        self.match(_MODIFIERS)
        begin = self.position
        name = self.match(_NAME)
        if not name:
            self.fail("a rule `name: ...` or a terminal `NAME: ...` is expected here")
        self._in_terminal = _is_terminal(name[0])
        parameters = self._parameters(name[0], begin) if self.take("{") else None
        if self.peek() == "[":
            if self._in_terminal:
                self.refuse(f"attributes of the terminal {name[0]!r}; rules, in lower case, may be `[lazy]`", begin)
            if not self.match(_LAZY):
                instead = "put the text of `suffix` behind the rule, limits and the rest into the request"
                self.refuse(f"attributes of the rule {name[0]!r} other than `lazy` are not supported; {instead}", begin)
            self._lazy[_LAZY_PREFIX + name[0]] = begin
            self._in_terminal = True
        self.match(_PRIORITY)
        self.match(_INLINE_SPACE)
        if not self.take(":"):
            self.fail(f"`:` is missing after {name[0]!r}")
        expression = self.alternatives()
        if _LAZY_PREFIX + name[0] in self._lazy:
            self._define(_LAZY_PREFIX + name[0], expression, begin)
            self._in_terminal = False
            expression = self._terminal(syntax.Reference(_LAZY_PREFIX + name[0], begin))
        self._define(name[0], expression, begin, parameters)

    def _parameters(self, name: str, begin: int) -> tuple[str, ...]:
        if self._in_terminal:
            self.fail(f"the terminal {name!r} has parameters; only rules, whose names are lower case, may", begin)
        found: dict[str, None] = {}

        def parameter() -> None:
            name = self.match(_NAME)
            if not name or _is_terminal(name[0]) or name[0] in found:
                self.fail("a parameter is expected here: a name in lower case, each once")
            found[name[0]] = None

        self._listed(parameter, "}", begin)
        return tuple(found)

    def _listed(self, item: Callable[[], _Item], closing: str, begin: int) -> tuple[_Item, ...]:
        """Read items separated by commas, and the `closing` bracket. A missing bracket is an error at `begin`."""
        found: list[_Item] = []
        while not found or self.take(","):
            self.match(_ANY_SPACE)
            found.append(item())
            self.match(_ANY_SPACE)
        if not self.take(closing):
            self.fail(f"missing {closing!r}", begin)
        return tuple(found)

    def _define(
        self, name: str, expression: syntax.Expression, position: int, parameters: tuple[str, ...] | None = None
    ) -> None:
        name = self._prefix + name
        if name in self._rules or name in self._terminals or name in self._templates:
            self.fail(f"{name.removeprefix(self._prefix).removeprefix(_LAZY_PREFIX)!r} is defined twice", position)
        if parameters is not None:
            self._templates[name] = Definition(parameters, expression, position)
        elif _is_terminal(name.removeprefix(self._prefix)):
            self._terminals[name] = syntax.Rule(expression, position)
        else:
            self._rules[name] = syntax.Rule(expression, position)

    def _directive(self) -> None:
        begin = self.position
        word = self.match(_DIRECTIVE)
        assert word is not None, "a percent sign comes next"
        if word[0] == "%ignore":
            self._in_terminal = True
            self._ignored.append(self.alternatives())
        elif word[0] == "%import":
            if not self.match(_IMPORT):
                self.refuse("only `%import common.NAME` and `%import common (NAME, ...)` are supported", begin)
            self._import(begin)
        elif word[0] == "%declare":
            while self.match(_INLINE_SPACE) and (name := self.match(_NAME)):
                if not _is_terminal(name[0]):
                    self.refuse("`%declare` of a rule; write its text, as in `name: NAME`", name.start())
                self._define(name[0], syntax.Pattern("(?!)", False, "", begin), begin)
        else:
            self.refuse(f"the directive {word[0]!r} is not supported", begin)

    def _import(self, begin: int) -> None:
        if self.take("."):
            name = alias = self._imported()
            if self.match(_IMPORT_ALIAS):
                found = self.match(_NAME)
                if not found or not _is_terminal(found[0]):
                    self.fail("the new name of an imported terminal is expected here")
                alias = found[0]
            self._define(alias, syntax.Reference(COMMON + name, begin), begin)
        elif self.take("("):
            for name in self._listed(self._imported, ")", begin):
                self._define(name, syntax.Reference(COMMON + name, begin), begin)
        else:
            self.fail("write `%import common.NAME`", begin)

    def _imported(self) -> str:
        begin = self.position
        name = self.match(_NAME)
        if not name or COMMON + name[0] not in _common_terminals():
            known = ", ".join(sorted(each.removeprefix(COMMON) for each in _common_terminals()))
            self.refuse(f"no such terminal in `common`; there are {known}", begin)
        return name[0]

    # -- expressions ---------------------------------------------------------------------------------------------

    def sequence(self) -> syntax.Expression:
        # A leading `|`, as in a list with one alternative per line, is an empty alternative in Lark too.
        items: list[syntax.Expression] = []
        while True:
            self._skip()
            if self.at_end or self.peek() in "|)]\r\n":
                break
            if self.match(_ALIAS):
                self._skip()
                break
            items.append(self._repeated())
        return items[0] if len(items) == 1 else syntax.Sequence(tuple(items))

    def _repeated(self) -> syntax.Expression:
        item = self._atom()
        self._skip()
        begin = self.position
        if bounds := self.simple_repeat():
            return syntax.Repeat(item, *bounds)
        if self.take("~"):
            found = self.match(_TIMES)
            if not found:
                self.fail("a count is expected after `~`")
            return syntax.Repeat(item, *self.bounds(found[1], found[2] or found[1], begin))
        return item

    def _atom(self) -> syntax.Expression:
        begin = self.position
        for opening, closing in ("()", "[]"):
            if self.take(opening):
                inner = self.group(closing, begin)
                return syntax.Repeat(inner, 0, 1) if opening == "[" else inner
        if self.peek() == '"':
            return self._terminal(self._string(begin))
        if self.peek() == "/":
            return self._terminal(self._regexp(begin))
        if found := self.token() or self._json():
            if self._in_terminal:
                self.fail("a token or `%json` inside a terminal; write the name of what holds it in lower case", begin)
            return self._terminal(found)
        name = self.reference(_NAME).name
        if self.take("{"):
            return syntax.Template(name, self._arguments(name, begin), begin)
        reference = syntax.Reference(self._prefix + name, begin)
        if _is_terminal(name):
            return self._terminal(reference)
        if self._in_terminal:
            self.fail(f"the rule {name!r} inside a terminal; write its name in upper case", begin)
        return reference

    def _json(self) -> syntax.Marker | None:
        """Read `%json` and the schema after it, or return None."""
        begin = self.position
        if not self.take("%json"):
            return None
        self.match(_ANY_SPACE)
        try:
            _, end = json.JSONDecoder().raw_decode(self.text, self.position)
            schema = parse_json(self.text[self.position : end])
            json.dumps(schema, allow_nan=False)
            self.position = end
            return self.marker(self.text[begin:end], JsonSchemaFormat(json_schema=schema), begin)
        except (ValueError, RecursionError) as error:
            why = f" ({error})" if isinstance(error, JsonTextError) else ""
            self.fail(f"a JSON Schema, an object or a boolean, is expected after `%json`{why}")

    def _arguments(self, name: str, begin: int) -> tuple[syntax.Expression, ...]:
        if self._in_terminal:
            self.fail(f"the template {name!r} inside a terminal", begin)
        self._deeper(begin)
        found = self._listed(self._atom, "}", begin)
        self._depth -= 1
        return found

    def _terminal(self, expression: syntax.Expression) -> syntax.Expression:
        """Return a terminal as part of a rule, where ignored text may follow it, or as part of another terminal."""
        return expression if self._in_terminal else syntax.Sequence((expression, syntax.Reference(_IGNORED, 0)))

    def _string(self, begin: int) -> syntax.Expression:
        found = self.match(_STRING)
        if not found:
            self.fail("missing '\"'", begin)
        text = self._unescaped(found)
        if not self.take(".."):
            return syntax.Pattern(text, True, found[2], begin + 1)
        last = self.match(_STRING)
        if not last:
            self.fail("the end of a range is expected after `..`")
        end = self._unescaped(last)
        if len(text) != 1 or len(end) != 1 or end < text:
            self.fail("the ends of a range are two single characters in order", begin)
        return syntax.Pattern(f"[{re.escape(text)}-{re.escape(end)}]", False, "", begin)

    def _unescaped(self, quoted: re.Match[str]) -> str:
        """Return the text that a quoted string, which has just been matched, stands for."""
        self.position = quoted.start(1)
        characters = []
        while self.position < quoted.end(1):
            characters.append(self.character())
        self.position = quoted.end()
        return "".join(characters)

    def _regexp(self, begin: int) -> syntax.Expression:
        found = self.match(_REGEXP)
        if not found:
            self.fail("missing '/'", begin)
        if "\n" in found[1] and "x" not in found[2]:
            self.fail("a line end in a regular expression without the flag x; write \\n", begin + found[0].index("\n"))
        # Lark removes one of two backslashes before a quote. The flag u has no effect: patterns are Unicode.
        pattern = _BACKSLASHES.sub(lambda pair: r"\"" if pair[1] else pair[0], found[1])
        return syntax.Pattern(pattern, False, "".join(sorted({*found[2]} - {"u"})), begin + 1)

    def _skip(self) -> None:
        """Skip white space and comments. Outside groups, skip line ends only if an alternative follows."""
        if self._depth:
            self.match(_ANY_SPACE)
            return
        self.match(_INLINE_SPACE)
        self.match(_NEXT_ALTERNATIVE)

"""Compiler of the terminals of a Lark grammar. As in Lark, each one becomes a regular expression for Python's `re`.

    A: "x" | B+           (?:(?:[0-9])+|x)    alternatives by width, the widest first
    B: "0".."9"

A terminal matches the text that a backtracking matcher prefers, because alternatives are tried in order. So `/".*?"/`
ends at the next quote, and `/a|ab/` never matches `ab`. Look-arounds at the beginning or end of a terminal see the
whole text (`lark_context`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, TypeVar

from grammar_workers.budget import budget_of, remembered
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.cfg.lark_context import (
    MARKERS,
    Contexts,
    can_end_anywhere,
    next_characters,
    wrong_texts,
)
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.compile import compile_tree, is_plain
from grammar_workers.languages.regex.longest_first import prefers_longest
from grammar_workers.languages.regex.preferred import preferred_automaton
from grammar_workers.languages.regex.python_dialect import read_python, without_conditions
from grammar_workers.languages.regex.written_out import width
from grammar_workers.options import Limits

# Prefix of the names of terminals of Lark's module `common`.
COMMON = "common."

# A function that raises an error of the given type, with a message and a position in the grammar.
Fail = Callable[[type[GrammarError], str, int], NoReturn]

_Result = TypeVar("_Result")
_OPERATORS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


@dataclasses.dataclass(frozen=True)
class Joined:
    """Lark terminal, or a part of one, as one text or one regular expression.

    Attributes:
        value: The text, or the regular expression.
        is_plain: True if `value` is the text itself, False if it is a regular expression.
        flags: Flags of Python's `re` that apply to all of `value`, as letters. Example: `i`.
        places: Pairs (offset in `value`, position in the grammar text), one for each string or pattern from which
            `value` was made, in order.
    """

    value: str
    is_plain: bool
    flags: str
    places: tuple[tuple[int, int], ...]

    def regex(self) -> Joined:
        """Return this part as a regular expression that includes its flags: `(?i:a)` for `a` with the flag `i`."""
        opening = "".join(f"(?{flag}:" for flag in self.flags)
        value = re.escape(self.value) if self.is_plain else self.value
        places = tuple((offset + len(opening), position) for offset, position in self.places)
        return Joined(opening + value + ")" * len(self.flags), False, "", places)

    def place(self, offset: int) -> int:
        """Return the position in the grammar text from which a character of `value` comes.

        Args:
            offset: Index of the character in `value`.
        """
        found = [(begin, position) for begin, position in self.places if begin <= offset] or [self.places[0]]
        return found[-1][1] + max(offset - found[-1][0], 0)


class Terminals:
    """Compiler of the terminals of one Lark grammar. A terminal is compiled when it is first used.

    Args:
        definitions: Definitions of the terminals by name.
        limits: Bounds on one terminal.
        fail: Function that raises an error. It takes the error type, the message, and the position in the grammar.

    Attributes:
        contexts: Conditions on the text around the compiled terminals (such as look-arounds), and the reserved
            characters that mark these terminals.
    """

    def __init__(self, definitions: Mapping[str, syntax.Rule], limits: Limits, fail: Fail) -> None:
        self._definitions = definitions
        self._limits = limits
        self._fail = fail
        self.contexts = Contexts(limits)
        self._joined: dict[str, Joined | None] = {}
        self._begins: Charset = charset.EMPTY

    def check(self, names: Iterable[str]) -> None:
        """Parse terminals, so that errors are found even in terminals that no rule uses.

        A malformed or too large terminal raises GrammarError with its position.

        Args:
            names: Names of the terminals, which must be defined.
        """
        for name in names:
            self._tree(self._named(syntax.Reference(name, self._definitions[name].position)))

    def compile(self, expression: syntax.Expression) -> syntax.Expression:
        """Compile a terminal that a rule uses.

        A malformed, unsupported or too large terminal raises GrammarError with its position.

        Args:
            expression: Reference to the terminal, or the string or pattern that the rule itself contains.

        Returns:
            Expression of the texts that the terminal matches: characters or a DFA. If the text around the terminal
            matters, marker characters enclose it (see `Contexts`).
        """
        joined = self._join(expression)
        if joined.is_plain and not joined.flags.strip("i"):
            found = syntax.literal(joined.value, ignore_case=bool(joined.flags))
            assert isinstance(found, syntax.Characters)
            self._begins = charset.union(self._begins, *found.charsets[:1])
            return found
        compiled = self._automaton(joined)
        self._begins = charset.union(self._begins, next_characters(compiled.automaton))
        if compiled.is_conditional:
            return self._marked(joined, compiled, shorter=True)
        return syntax.Regular(compiled.automaton)

    def ignored(self, expressions: list[syntax.Expression]) -> syntax.Expression:
        """Compile the text that may stand between terminals (`%ignore`).

        Call this method after all terminals are compiled. A malformed, unsupported or too large terminal raises
        GrammarError with its position.

        Args:
            expressions: The ignored terminals.

        Returns:
            Expression that matches any number of ignored texts. If `expressions` is empty, it matches only the empty
            text.
        """
        if not expressions:
            return syntax.EMPTY
        found = [(joined, self._automaton(joined)) for joined in map(self._join, expressions)]
        items: list[syntax.Expression] = []
        for joined, compiled in found:
            others = [other.automaton for _, other in found if other is not compiled]
            if not compiled.is_conditional and can_end_anywhere(
                compiled.automaton, others, self._begins, budget_of(self._limits)
            ):
                items.append(syntax.Regular(compiled.automaton))
            else:
                items.append(self._marked(joined, compiled, shorter=False))
        return syntax.Repeat(syntax.Alternatives(tuple(items)), 0, None)

    # -- as one regular expression ---------------------------------------------------------------------------------

    def _join(self, expression: syntax.Expression) -> Joined:
        if isinstance(expression, syntax.Pattern):
            return Joined(expression.value, expression.is_plain, expression.flags, ((0, expression.position),))
        if isinstance(expression, syntax.Reference):
            return self._named(expression)
        if isinstance(expression, syntax.Sequence):
            items = [self._join(item) for item in expression.items]
            if len(items) == 1:
                return items[0]
            return self._chain([item.regex() for item in items]) if items else Joined("", True, "", ((0, 0),))
        if isinstance(expression, syntax.Alternatives):
            items = sorted(map(self._join, expression.items), key=self._order)
            bars = [Joined("|", False, "", ((0, item.places[0][1]),)) for item in items]
            parts = [part for bar, item in zip(bars, items, strict=True) for part in (bar, item.regex())]
            return self._group(parts[1:], ")")
        assert isinstance(expression, syntax.Repeat), "a terminal holds nothing else"
        high = "" if expression.high is None else expression.high
        bounds = (expression.low, expression.high)
        return self._group(
            [self._join(expression.item).regex()], f"){_OPERATORS.get(bounds, f'{{{bounds[0]},{high}}}')}"
        )

    def _named(self, reference: syntax.Reference) -> Joined:
        name = reference.name
        if name not in self._definitions:
            self._fail_invalid(f"the terminal {name!r} is not defined", reference.position)
        if name not in self._joined:
            self._joined[name] = None
            self._joined[name] = self._join(self._definitions[name].expression)
        joined = self._joined[name]
        if joined is None:
            self._fail_invalid(
                f"the terminal {name!r} needs itself; only rules, whose names are lower case, may", reference.position
            )
        if name.startswith(COMMON):
            # Its definition is built in, so errors get the position of the reference.
            return dataclasses.replace(joined, places=((0, reference.position),))
        return joined

    def _fail_invalid(self, message: str, position: int) -> NoReturn:
        self._fail(InvalidSpecificationError, f"malformed grammar: {message}", position)

    def _group(self, parts: list[Joined], closing: str) -> Joined:
        place = parts[0].places[0][1]
        return self._chain([Joined("(?:", False, "", ((0, place),)), *parts, Joined(closing, False, "", ((0, place),))])

    def _chain(self, parts: list[Joined]) -> Joined:
        values: list[str] = []
        places: list[tuple[int, int]] = []
        length = 0
        for part in parts:
            places += [(length + offset, position) for offset, position in part.places]
            values.append(part.value)
            length += len(part.value)
            # A character of a pattern is written with a few characters at most. References may double the length.
            most = 16 * self._limits.max_pattern_characters
            if length > most or len(places) > most:
                self._fail(
                    LimitExceededError,
                    f"a terminal is longer than {self._limits.max_pattern_characters} characters once the terminals "
                    "that it names are written out (fixed limit max_regex_states)",
                    places[0][1],
                )
        return Joined("".join(values), False, "", tuple(places))

    def _order(self, joined: Joined) -> tuple[float, float, int]:
        """Return the sort key of an alternative, as in Lark: wider alternatives precede narrower ones."""
        if joined.is_plain:
            low = high = float(len(joined.value))
        else:
            low, high = width(self._tree(joined))
        return -high, -low, -len(joined.value)

    # -- compiled ----------------------------------------------------------------------------------------------------

    def _tree(self, joined: Joined) -> parse.Node:
        return self._placed(joined, lambda pattern: read_python(pattern, self._limits))

    def _automaton(self, joined: Joined) -> _Compiled:
        return self._placed(joined, lambda pattern: _compiled(pattern, self._limits))

    def _marked(self, joined: Joined, compiled: _Compiled, *, shorter: bool) -> syntax.Expression:
        return self._placed(joined, lambda _: self.contexts.marked(compiled.automaton, compiled.tree, shorter=shorter))

    def _placed(self, joined: Joined, work: Callable[[str], _Result]) -> _Result:
        """Call `work` on a part as a regular expression. Errors get the position in the grammar."""
        regex = joined.regex()
        try:
            return work(regex.value)
        except GrammarError as error:
            self._fail(type(error), error.message, regex.place(error.position or 0))


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """The texts that a terminal matches; a superset of them if the surrounding text matters (`is_conditional`)."""

    automaton: Dfa
    tree: parse.Node
    is_conditional: bool


@remembered(maxsize=4096)
def _compiled(pattern: str, limits: Limits) -> _Compiled:
    tree = read_python(pattern, limits)
    if is_plain(tree):
        if prefers_longest(tree, budget_of(limits)):
            return _Compiled(compile_tree(tree, search=False, limits=limits), tree, False)
    elif wrong_texts(tree, *MARKERS[0], limits, shorter=True) is not None:
        return _Compiled(compile_tree(without_conditions(tree), search=False, limits=limits), tree, True)
    return _Compiled(preferred_automaton(tree, limits), tree, False)

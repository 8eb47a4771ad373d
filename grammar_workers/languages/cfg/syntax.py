"""Syntax trees of context-free grammars, as the readers of both notations (GBNF and Lark) produce them.

`list: "[" "x"* "]"` becomes Sequence(Characters("["), Repeat(Characters("x"), 0, None), Characters("]")), here with
texts in place of character sets. All positions are character offsets in the grammar text.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from grammar_workers.budget import limits_at
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.tag_formats import Format


@dataclasses.dataclass(frozen=True)
class Characters:
    """Expression that matches a fixed number of characters: one character of each set, in order.

    A literal text has one set per character. A character class is a single set.
    """

    charsets: tuple[Charset, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Regular:
    """Expression that matches the texts of a DFA, such as a regular expression inside a grammar."""

    automaton: Dfa


@dataclasses.dataclass(frozen=True)
class Pattern:
    """String or regular expression inside a Lark terminal, before the terminal is compiled.

    Attributes:
        value: The text of the string if `is_plain`, else a regular expression.
        is_plain: True for a string, False for a regular expression.
        flags: Letters of flags of Python's `re`, such as `i`.
        position: Offset in the grammar text. Equal patterns may have different positions.
    """

    value: str
    is_plain: bool
    flags: str
    position: int = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Marker:
    """Expression that matches one marker: a reserved character that no generated text contains.

    A marker stands for the edge of a terminal (`Grammar.context`), or for a token or JSON value (`Grammar.formats`).
    """

    code_point: int


@dataclasses.dataclass(frozen=True)
class Template:
    """Use of a template in a Lark grammar, before the template is expanded to a rule.

    Attributes:
        name: Name of the template.
        arguments: Expressions for the parameters of the template, in order.
        position: Offset of the use in the grammar text.
    """

    name: str
    arguments: tuple[Expression, ...]
    position: int


@dataclasses.dataclass(frozen=True)
class Reference:
    """Expression that matches the texts of a named rule or terminal.

    References to one name are equal, even if their positions differ.

    Attributes:
        name: Name of the rule or terminal.
        position: Offset of the reference in the grammar text.
    """

    name: str
    position: int = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Sequence:
    """Expression that matches one text of each item, one after the other. Without items it matches the empty text."""

    items: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Alternatives:
    """Expression that matches a text if at least one of its items matches the text."""

    items: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Repeat:
    """Expression that matches from `low` to `high` texts of `item`, one after the other. `high` None: no maximum."""

    item: Expression
    low: int
    high: int | None


Expression = Characters | Regular | Pattern | Marker | Template | Reference | Sequence | Alternatives | Repeat

# The empty text.
EMPTY = Sequence(())


@dataclasses.dataclass(frozen=True)
class Rule:
    """Definition of a grammar rule: its expression, and the offset of the definition in the grammar text."""

    expression: Expression
    position: int


FIRST_FORMAT, LAST_FORMAT = 0x10F000, 0x10FFFF
# Characters that stand for formats (tokens and JSON values): the end of the last plane for private use.
#
# A grammar with formats cannot generate these characters.
FORMAT_CHARACTERS: Charset = ((FIRST_FORMAT, LAST_FORMAT),)


class PlacedFormat(NamedTuple):
    """Token or JSON value in a grammar text.

    Attributes:
        format: The token or JSON value as a format of a structural tag.
        position: Its offset in the grammar text.
    """

    format: Format
    position: int


@dataclasses.dataclass(frozen=True)
class Grammar:
    """Parsed context-free grammar.

    Attributes:
        rules: Rules by name.
        start: Name of the rule that outputs must match.
        text: The grammar text, for the line and column in errors.
        context: DFA that accepts a text if the conditions of all terminals hold, such as look-aheads. The rules enclose
            a terminal that has a condition in reserved characters (markers), and the DFA reads texts with these markers
            (see `lark_context`). None: there are no conditions, and no markers.
        formats: Tokens and JSON values in the grammar. Character `FIRST_FORMAT + i` stands for `formats[i]`.
    """

    rules: dict[str, Rule]
    start: str
    text: str
    context: Dfa | None = None
    formats: tuple[PlacedFormat, ...] = ()

    def named(self, name: str) -> RuleName:
        """Return a rule's name together with its position, for messages.

        Args:
            name: Name of a rule of this grammar. An unknown name raises KeyError.
        """
        position = self.rules[name].position
        return RuleName(name, position, line_and_column(self.text, position))


class RuleName(NamedTuple):
    """Name and position of a grammar rule, for messages.

    Attributes:
        name: Name of the rule.
        position: Offset of its definition in the grammar text. None: unknown.
        place: Line and column of its definition, as `line_and_column` formats them. Empty: unknown.
    """

    name: str
    position: int | None = None
    place: str = ""

    def limits(self) -> AbstractContextManager[None]:
        """Return a context that adds the position of the rule to each LimitExceededError raised in its block."""
        return limits_at(position=self.position, place=self.place)


def line_and_column(text: str, position: int) -> str:
    """Return a position in a grammar text as ` (line 3, column 5)`, with the leading space, for messages.

    Args:
        text: The grammar text.
        position: Offset in `text`, from 0. Line and column count from 1.
    """
    line = text.count("\n", 0, position) + 1
    return f" (line {line}, column {position - text.rfind(chr(10), 0, position)})"


def literal(text: str, *, ignore_case: bool = False) -> Expression:
    """Return the expression that matches exactly one text.

    Args:
        text: The text.
        ignore_case: True to match each character also in lower case and in upper case.
    """
    return Characters(tuple(_variants(character, ignore_case) for character in text))


@functools.lru_cache(maxsize=4096)
def _variants(character: str, ignore_case: bool) -> Charset:
    # Case variants that are not one character (the capital of a sharp s) are not variants here.
    variants = [character.lower(), character.upper()] if ignore_case else []
    return charset.of([character, *(variant for variant in variants if len(variant) == 1)])


def with_items(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return a copy of an expression in which each direct part is replaced.

    Args:
        expression: A sequence, alternatives or a repetition; not changed. Any other expression is returned unchanged,
            because it has no parts that are replaced.
        change: Function from a part to its replacement.
    """
    if isinstance(expression, Sequence | Alternatives):
        return type(expression)(tuple(map(change, expression.items)))
    if isinstance(expression, Repeat):
        return Repeat(change(expression.item), expression.low, expression.high)
    return expression


def references(expression: Expression) -> Iterator[Reference]:
    """Yield every reference to a rule or terminal inside an expression, in order.

    Args:
        expression: The expression. Templates, their arguments, and patterns are not searched.
    """
    if isinstance(expression, Reference):
        yield expression
    elif isinstance(expression, Sequence | Alternatives):
        for item in expression.items:
            yield from references(item)
    elif isinstance(expression, Repeat):
        yield from references(expression.item)

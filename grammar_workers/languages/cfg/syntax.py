"""Grammars as both readers produce them: rules that are trees of expressions over characters.

`list: "[" "x"* "]"` is Sequence(Characters("["), Repeat(Characters("x"), 0, None), Characters("]")).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from grammar_workers.budget import limits_at
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.tag_formats import Format


@dataclasses.dataclass(frozen=True)
class Characters:
    """One character of each set, in order: a literal, or a single class."""

    charsets: tuple[Charset, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Regular:
    """A text that the automaton accepts (a regular expression inside a grammar)."""

    automaton: Dfa


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A string or a regular expression inside a terminal, until the terminal is compiled as one.

    `value` is the text of the string where `is_plain`, else a regular expression; `flags` are letters of Python's `re`.
    It stands at `position` of the grammar.
    """

    value: str
    is_plain: bool
    flags: str
    position: int


@dataclasses.dataclass(frozen=True)
class Marker:
    """A character that no text has; see `Grammar.context` and `Grammar.formats`."""

    code_point: int


@dataclasses.dataclass(frozen=True)
class Template:
    """A text of the rule that a template makes of `arguments`."""

    name: str
    arguments: tuple[Expression, ...]
    position: int


@dataclasses.dataclass(frozen=True)
class Reference:
    """A text of the named rule; `position` is where the grammar says so."""

    name: str
    position: int


@dataclasses.dataclass(frozen=True)
class Sequence:
    """Texts of the items, one after the other; none is the empty text."""

    items: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Alternatives:
    """A text of one of the items."""

    items: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Repeat:
    """`low` to `high` texts of the item, one after the other (None: no maximum)."""

    item: Expression
    low: int
    high: int | None


Expression = Characters | Regular | Pattern | Marker | Template | Reference | Sequence | Alternatives | Repeat

EMPTY = Sequence(())


@dataclasses.dataclass(frozen=True)
class Rule:
    """A named expression and where its definition begins in the text."""

    expression: Expression
    position: int


FIRST_FORMAT, LAST_FORMAT = 0x10F000, 0x10FFFF
FORMATS: Charset = ((FIRST_FORMAT, LAST_FORMAT),)
"""Characters that stand for formats: the end of the last plane for private use, which a grammar with
formats has not."""


class PlacedFormat(NamedTuple):
    """A format of structural tags in a grammar, and where the grammar writes it."""

    format: Format
    position: int


@dataclasses.dataclass(frozen=True)
class Grammar:
    """Rules by name, read from `text`; the language is that of `start`.

    The rules may write characters of `markers` around terminals. Then `context` is the automaton of the texts with
    markers whose terminals stand where they may, and the language is that of the texts without the markers. Characters
    from `FIRST_FORMAT` on stand for `formats`, in order: tokens, and JSON values.
    """

    rules: dict[str, Rule]
    start: str
    text: str
    markers: Charset = charset.EMPTY
    context: Dfa | None = None
    formats: tuple[PlacedFormat, ...] = ()

    def named(self, name: str) -> RuleName:
        """Return the name of a rule with its place."""
        position = self.rules[name].position
        return RuleName(name, position, line_and_column(self.text, position))


class RuleName(NamedTuple):
    """The name of a rule and where its definition begins, for messages; `place` as in `line_and_column`."""

    name: str
    position: int | None = None
    place: str = ""

    def limits(self) -> AbstractContextManager[None]:
        """Return the context in which limits that are exceeded get the rule's place."""
        return limits_at(position=self.position, place=self.place)


def line_and_column(text: str, position: int) -> str:
    """Return what a person looks for: ` (line 3, column 5)`."""
    line = text.count("\n", 0, position) + 1
    return f" (line {line}, column {position - text.rfind(chr(10), 0, position)})"


def literal(text: str, *, ignore_case: bool = False) -> Expression:
    """Exactly `text`; with `ignore_case`, each character in either case."""
    return Characters(tuple(_variants(character, ignore_case) for character in text))


@functools.lru_cache(maxsize=4096)
def _variants(character: str, ignore_case: bool) -> Charset:
    # Case variants that are not one character (the capital of a sharp s) are not variants here.
    variants = [character.lower(), character.upper()] if ignore_case else []
    return charset.of([character, *(variant for variant in variants if len(variant) == 1)])


def references(expression: Expression) -> Iterator[Reference]:
    """Every reference inside, in order."""
    if isinstance(expression, Reference):
        yield expression
    elif isinstance(expression, Sequence | Alternatives):
        for item in expression.items:
            yield from references(item)
    elif isinstance(expression, Repeat):
        yield from references(expression.item)

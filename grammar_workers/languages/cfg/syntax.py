"""Grammars as both readers produce them: rules that are trees of expressions over characters.

`list: "[" "x"* "]"` is Sequence(Characters("["), Repeat(Characters("x"), 0, None), Characters("]")).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import Dfa


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
    """A character that no text has; see `Grammar.context`."""

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


@dataclasses.dataclass(frozen=True)
class Grammar:
    """Rules by name; the language is that of `start`.

    The rules may write characters of `markers` around terminals. Then `context` is the automaton of the texts with
    markers whose terminals stand where they may, and the language is that of the texts without the markers.
    """

    rules: dict[str, Rule]
    start: str
    markers: Charset = charset.EMPTY
    context: Dfa | None = None


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

"""What is not chased, each with its reason: cases in which a judge is known to be wrong, or which are documented.

An exclusion silences one judge (the others still speak), or the demand that a text be accepted (`COMPLETENESS`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from grammar_workers.languages.json_schema.read.formats import STRING_FORMATS
from tests.grammar_workers.fuzz.spelling import is_extreme, numbers_in

JSONSCHEMA = "jsonschema"
JSONSCHEMA_RS = "jsonschema-rs"
COMPLETENESS = "completeness"

_RELIABLE_DIGITS = 15
_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const")
_PARTIAL_FORMATS = frozenset(name for name, found in STRING_FORMATS.items() if found.wider is not None)


@dataclasses.dataclass(frozen=True)
class Question:
    """What a judge is asked: a schema, its draft, a text. `keywords` are all the keys anywhere in the schema."""

    schema: Any
    draft: int
    text: str
    keywords: frozenset[str]
    schema_text: str
    notes: tuple[str, ...] = ()
    asserts_formats: bool = True


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """`judge` is not heard where `applies`."""

    judge: str
    reason: str
    applies: Callable[[Question], bool]


def _unevaluated(question: Question) -> bool:
    return any(keyword.startswith("unevaluated") for keyword in question.keywords)


def _has_long_numbers(text: str) -> bool:
    return any(map(_is_long, numbers_in(text)))


def _is_long(literal: str) -> bool:
    if is_extreme(literal) or sum(map(str.isdecimal, literal)) > _RELIABLE_DIGITS:
        return True
    return abs(Decimal(literal).adjusted()) > _RELIABLE_DIGITS


def _formats(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("format"), str):
            yield schema["format"]
        for part in schema.values():
            yield from _formats(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _formats(part)


EXCLUSIONS = (
    Exclusion(
        JSONSCHEMA,
        "2019-09: `contains` evaluates no items there, but does for both validators",
        lambda q: q.draft == 2019 and "contains" in q.keywords and _unevaluated(q),
    ),
    Exclusion(
        JSONSCHEMA_RS,
        "2019-09: `contains` evaluates no items there, but does for both validators",
        lambda q: q.draft == 2019 and "contains" in q.keywords and _unevaluated(q),
    ),
    Exclusion(
        JSONSCHEMA,
        "2019-09: takes what `additionalProperties` and `additionalItems` have evaluated for unevaluated",
        lambda q: q.draft == 2019 and _unevaluated(q) and any(k.startswith("additional") for k in q.keywords),
    ),
    Exclusion(
        JSONSCHEMA,
        "2019-09: raises TypeError for `items: true` beside `unevaluatedItems`",
        lambda q: q.draft == 2019 and "unevaluatedItems" in q.keywords and "items" in q.keywords,
    ),
    Exclusion(
        JSONSCHEMA,
        "takes URI templates whose literals RFC 6570 forbids, which matters where a schema asks that there be none",
        lambda q: q.asserts_formats and "uri-template" in _formats(q.schema),
    ),
    Exclusion(
        JSONSCHEMA,
        "takes durations that RFC 3339 does not know: a number without its unit (P1Y2T3S), a unit passed over (P1Y1D)",
        lambda q: q.asserts_formats and "duration" in _formats(q.schema),
    ),
    Exclusion(JSONSCHEMA, "wrong about relative JSON pointers", lambda q: "relative-json-pointer" in q.schema_text),
    Exclusion(
        JSONSCHEMA_RS,
        "numbers of more than 15 digits are compared as doubles",
        lambda q: _has_long_numbers(q.text) or _has_long_numbers(q.schema_text),
    ),
    Exclusion(
        JSONSCHEMA_RS,
        "patterns are those of a third dialect, to which marks, for example, are word characters",
        lambda q: (
            not q.keywords.isdisjoint(["pattern", "patternProperties"])
            and not (q.text.isascii() and "\\u" not in q.text and q.schema_text.isascii())
        ),
    ),
    Exclusion(
        COMPLETENESS,
        "formats of which docs/features.md lists what is left out",
        lambda q: q.asserts_formats and not _PARTIAL_FORMATS.isdisjoint(_formats(q.schema)),
    ),
    Exclusion(
        COMPLETENESS,
        "formats that older drafts do not define are asserted there, too; to the validators they mean nothing",
        lambda q: q.asserts_formats and q.draft < 2019 and any(_formats(q.schema)),
    ),
    Exclusion(
        COMPLETENESS,
        "noted by the automaton: objects whose undeclared properties may repeat a name",
        lambda q: "{" in q.text and any(note.startswith("some objects are left out") for note in q.notes),
    ),
    Exclusion(
        COMPLETENESS,
        "documented: no exponents beside bounds, multiples and listed numbers",
        lambda q: not q.keywords.isdisjoint(_NUMERIC) and any("e" in literal.lower() for literal in numbers_in(q.text)),
    ),
    Exclusion(
        COMPLETENESS,
        "documented: integers have no exponents",
        lambda q: '"integer"' in q.schema_text and any("e" in literal.lower() for literal in numbers_in(q.text)),
    ),
)


EXCLUDED_PATTERNS = (
    (
        "V8: misses matches of groups with flags, such as `/(?i:ſ)/u` in S or `/^(?:[^b]bb|b){2}(?i:b{2,4}B)$/u` in "
        "[bbubbbbb; `/ſ/iu` matches S",
        re.compile(r"\(\?[ims]+:"),
    ),
)
"""Patterns about which V8 is not asked."""


def is_excluded(judge: str, question: Question) -> bool:
    return any(exclusion.judge == judge and exclusion.applies(question) for exclusion in EXCLUSIONS)

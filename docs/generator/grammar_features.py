"""Page of the features of the compiler, generated from the tables of the compiler."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable, Sequence

from docs.generator.schema_tables import fields, table
from grammar_workers.errors import GrammarError
from grammar_workers.languages.json_schema.read import formats
from grammar_workers.languages.json_schema.read.keywords import DRAFTS, KEYWORDS, RESTRICTIONS
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.specification import GrammarSpecification

_DRAFT_NAMES = {2019: "2019-09", 2020: "2020-12"}
_PATTERNS = [
    ("characters and escapes", r"a\n\x41\u00e9\/"),
    ("any character except line breaks", r"."),
    ("classes, ranges, negated classes", r"[a-z_][^0-9]"),
    ("shorthand classes (common subset)", r"\d\D\w\W\s\S"),
    ("Unicode properties", r"\p{Letter}\P{Lu}\p{Script=Greek}"),
    ("alternation", "a|b|"),
    ("groups, named groups", "(a)(?:b)(?<n>c)(?P<m>d)"),
    ("quantifiers, with counts", "a*b+c?d{2}e{2,}f{2,3}"),
    ("lazy quantifiers", "a*?b+?c{2,3}?"),
    ("anchors", "^a$"),
    ("word boundaries", r"\ba\B"),
    ("look-ahead", "(?=a)(?!ab)"),
    ("look-behind", "(?<=a)(?<!b)"),
    ("case-insensitive", "(?i)straße"),
    ("case-insensitive group", "(?i:a)"),
    ("dot matches line breaks", "(?s)."),
    ("back-references", r"(a)\1"),
    ("possessive quantifiers", "a*+"),
    ("atomic groups", "(?>a)"),
    ("conditional groups", "(a)?(?(1)b|c)"),
    ("NUL as an escape", r"\0"),
]
"""Syntax -> an example. The generator compiles the example to determine whether the syntax is supported."""


def reference() -> str:
    """Return the page as Markdown."""
    sections = [
        (
            "# Features",
            "This page lists the constraints, options, limits, JSON Schema keywords, formats and regular expressions\n"
            "that the compiler supports. [Structured outputs](constraints.md) shows how to use them. `make reference`\n"
            "generates this page from the tables of the compiler.",
        ),
        ("## Specifications", table(["type", "allowed output"], _specifications())),
        ("## Options", fields(GrammarOptions.model_json_schema())),
        ("## Limits", table(["limit", "default", "meaning"], _limits())),
        (
            "## JSON Schema keywords",
            "`$schema` selects the draft; the default is 2020-12. Draft 3 is rejected.\n\n"
            "- *asserted*: the output always satisfies the keyword, or the schema is rejected with the JSON Pointer of "
            "the keyword.\n"
            "- *understood*: the keyword identifies or locates schemas, or is an extension of Turnstile.\n"
            "- *annotation*: the keyword has no effect on the output.\n"
            "- `-`: the draft does not define the keyword. Turnstile ignores the keyword, as it ignores unknown "
            "keywords, and lists it in `TokenFSM.notes`.\n\n"
            + table(["keyword", *map(_draft, DRAFTS.values()), "limit"], _keywords()),
        ),
        (
            "## Formats",
            "Turnstile asserts these formats of JSON Schema in all drafts, unless the option `format` is `annotate`. "
            "Any other format is an annotation, and `TokenFSM.notes` lists it. Some valid texts of a format are never "
            "generated. The table lists them. `not: {format: ...}` also excludes these texts, and texts that have the "
            "format only in a later draft.\n\n" + table(["format", "valid texts that are not generated"], _formats()),
        ),
        (
            "## Regular expressions",
            "The dialect is the common subset of ECMA-262 (flag `u`) and Python's `re`. A `pattern` in a schema "
            "matches anywhere in the string. A `regex` specification matches the whole output.\n\n"
            + table(["syntax", "example", "supported"], _regex_syntax()),
        ),
    ]
    return "\n\n".join(f"{title}\n\n{text}" for title, text in sections) + "\n"


# -- rows ----------------------------------------------------------------------------------------------------------


def _specifications() -> Iterable[Sequence[str]]:
    union, *_ = typing.get_args(GrammarSpecification)
    for model in typing.get_args(union):
        yield f"`{model.model_fields['type'].default}`", inspect.getdoc(model) or ""


def _limits() -> Iterable[Sequence[str]]:
    descriptions = _attribute_docstrings(Limits)
    for field in dataclasses.fields(Limits):
        yield f"`{field.name}`", f"{field.default:,}", descriptions[field.name]


def _keywords() -> Iterable[Sequence[str]]:
    for name, keyword in sorted(KEYWORDS.items()):
        meaning = (
            "annotation" if not keyword.asserts else "understood" if "core" in keyword.vocabularies else "asserted"
        )
        cells = [meaning if draft in keyword.drafts else "-" for draft in DRAFTS.values()]
        yield f"`{name}`", *cells, RESTRICTIONS.get(name, "")


def _formats() -> Iterable[Sequence[str]]:
    for name in sorted(formats.STRING_FORMATS):
        yield f"`{name}`", formats.STRING_FORMATS[name].narrower


def _regex_syntax() -> Iterable[Sequence[str]]:
    for name, example in _PATTERNS:
        try:
            compile_regex(example, search=False, limits=Limits())
            supported = "yes"
        except GrammarError as error:
            supported = f"no: {error.message}"
        shown = ascii(example)[1:-1].replace("\\\\", "\\")
        yield name, f"`{shown}`", supported


# -- text ----------------------------------------------------------------------------------------------------------


def _draft(number: int) -> str:
    return _DRAFT_NAMES.get(number, str(number))


def _attribute_docstrings(kind: type) -> dict[str, str]:
    """Return the description of each attribute, from the section `Attributes:` of the docstring."""
    section = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}

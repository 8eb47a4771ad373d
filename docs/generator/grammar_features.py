"""The reference of supported features, made from the tables that the compiler itself works with."""

from __future__ import annotations

import ast
import dataclasses
import inspect
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
    ("any character but line ends", r"."),
    ("classes, ranges, negated classes", r"[a-z_][^0-9]"),
    ("shorthands, what both dialects agree on", r"\d\D\w\W\s\S"),
    ("Unicode properties", r"\p{Letter}\P{Lu}\p{Script=Greek}"),
    ("alternation", "a|b|"),
    ("groups, named groups", "(a)(?:b)(?<n>c)(?P<m>d)"),
    ("quantifiers, counted ones", "a*b+c?d{2}e{2,}f{2,3}"),
    ("lazy quantifiers", "a*?b+?c{2,3}?"),
    ("anchors", "^a$"),
    ("word boundaries", r"\ba\B"),
    ("look-ahead", "(?=a)(?!ab)"),
    ("look-behind", "(?<=a)(?<!b)"),
    ("case-insensitive", "(?i)straße"),
    ("case-insensitive group", "(?i:a)"),
    ("dot matches line ends", "(?s)."),
    ("back-references", r"(a)\1"),
    ("possessive quantifiers", "a*+"),
    ("atomic groups", "(?>a)"),
    ("conditional groups", "(a)?(?(1)b|c)"),
    ("NUL as an escape", r"\0"),
]
"""Syntax -> an example; whether it is supported is found out by compiling it."""


def reference() -> str:
    """The whole document, as Markdown."""
    sections = [
        (
            "# Supported features",
            "Made by `make reference` from the tables that the compiler works with; a test keeps it current.",
        ),
        ("## Specifications", table(["type", "what it means"], _specifications())),
        ("## Options", fields(GrammarOptions.model_json_schema())),
        ("## Limits", table(["limit", "default", "what it bounds"], _limits())),
        (
            "## JSON Schema keywords",
            "The draft is that of `$schema`, 2020-12 without one. Draft 3 is refused. A keyword that a draft does not "
            "define (-) is ignored and listed in `TokenFSM.notes`, as unknown keywords are. *asserted*: generated text "
            "always satisfies it, or compilation is refused with the JSON Pointer of the keyword.\n\n"
            + table(["keyword", *map(_draft, DRAFTS.values()), "limited to"], _keywords()),
        ),
        (
            "## Formats",
            "Asserted unless the option `format` says `annotate`, also in drafts that do not define them; any other "
            "name is an annotation and noted. What is left out, or only a later draft defines, is not taken for a "
            "text that is *not* of the format, either.\n\n"
            + table(["format", "left out (never generated, not accepted)"], _formats()),
        ),
        (
            "## Regular expressions",
            "The common ground of ECMA-262 (flag `u`) and Python's `re`; where they differ, what both agree on. "
            "`pattern` in a schema searches, a `regex` specification matches the whole text.\n\n"
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
    for name in sorted(formats.FORMATS):
        yield f"`{name}`", formats.FORMATS[name].narrower


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
    """Attribute -> the string literal that follows it in the class body."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            assert isinstance(statement.target, ast.Name) and isinstance(following.value, ast.Constant)
            found[statement.target.id] = str(following.value.value)
    return found

"""The keywords of JSON Schema: which drafts and vocabularies define them, and which of them only annotate."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.json_schema.solve.number_dfa import MAX_DIGITS
from grammar_workers.near_names import NearNames

DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
"""Meta-schema (without an empty fragment) -> the number that stands for the draft."""
NEWEST = 2020

SUBSCHEMAS = frozenset(
    ["additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames"]
    + ["unevaluatedItems", "unevaluatedProperties"]
)
"""Keywords whose value is a schema (`items` may also be an array of them)."""
SCHEMA_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
"""Keywords whose value is an array of schemas."""
REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")
"""Keywords whose value names a schema."""
SCHEMA_MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"])
"""Keywords whose value maps names to schemas."""


@dataclasses.dataclass(frozen=True, slots=True)
class Keyword:
    """The drafts that define a keyword, and the vocabularies that hold it in drafts that have such (2019-09, 2020-12).

    A keyword that does not assert anything is an annotation: it does not change the key.
    """

    vocabularies: frozenset[str]
    drafts: frozenset[int]
    asserts: bool


_ALL = frozenset(DRAFTS.values())


def _since(draft: int) -> frozenset[int]:
    return frozenset(other for other in _ALL if other >= draft)


def _until(draft: int) -> frozenset[int]:
    return frozenset(other for other in _ALL if other <= draft)


_ROWS: list[tuple[str, str, frozenset[int], bool]] = [
    ("$ref $defs definitions", "core", _ALL, True),
    ("id", "core", frozenset([4]), True),
    ("$id", "core", _since(6), True),
    ("$anchor $vocabulary", "core", _since(2019), True),
    ("$recursiveRef $recursiveAnchor", "core", frozenset([2019]), True),
    ("$dynamicRef $dynamicAnchor", "core", _since(2020), True),
    ("$schema $comment", "core", _ALL, False),
    ("x-turnstile", "core", _ALL, True),
    ("type enum required minItems maxItems minLength maxLength pattern minimum maximum", "validation", _ALL, True),
    ("exclusiveMinimum exclusiveMaximum multipleOf minProperties maxProperties", "validation", _ALL, True),
    ("uniqueItems", "validation", _ALL, True),
    ("const", "validation", _since(6), True),
    ("dependentRequired minContains maxContains", "validation", _since(2019), True),
    ("properties additionalProperties patternProperties items", "applicator", _ALL, True),
    ("allOf anyOf oneOf not", "applicator", _ALL, True),
    # Defined up to draft 7; kept for compatibility in all later ones.
    ("dependencies", "applicator", _ALL, True),
    ("additionalItems", "applicator", _until(2019), True),
    ("contains propertyNames", "applicator", _since(6), True),
    ("if then else", "applicator", _since(7), True),
    ("dependentSchemas", "applicator", _since(2019), True),
    ("unevaluatedProperties unevaluatedItems", "applicator unevaluated", _since(2019), True),
    ("prefixItems", "applicator", _since(2020), True),
    ("format", "format format-annotation format-assertion", _ALL, True),
    ("title description default examples deprecated readOnly writeOnly", "meta-data", _ALL, False),
    ("contentEncoding contentMediaType contentSchema", "content", _ALL, False),
]
KEYWORDS = {
    name: Keyword(frozenset(vocabularies.split()), drafts, asserts)
    for names, vocabularies, drafts, asserts in _ROWS
    for name in names.split()
}
"""Every keyword that some draft defines; annotations of newer drafts are known to all of them."""
NEAR_KEYWORDS = NearNames(name for name, keyword in KEYWORDS.items() if keyword.asserts)
_SHORTEST_MISSPELT = 6
"""Letters of a keyword that another letter makes a mistake; shorter ones are nearly `note`, `when` and `count`."""


def misspelt(name: str) -> str | None:
    """Return the keyword that a name in a schema is a mistake for, or None.

    Such a keyword asserts something, and the name differs from it in upper and lower case and underscores alone, or
    also in a letter.
    """
    # Who writes `_uniqueItems` or `x-format` has taken the keyword out.
    if name.startswith("_"):
        return None
    near = NEAR_KEYWORDS.find(name) if name.replace("_", "").isalpha() and name not in KEYWORDS else None
    alike = near is not None and near.casefold() == name.casefold().replace("_", "")
    certain = alike or (near is not None and len(near) >= _SHORTEST_MISSPELT and "_" not in name)
    return near if certain and KEYWORDS[near or ""].vocabularies != {"core"} else None


def schemas_in(keyword: str, value: Any) -> list[tuple[tuple[str | int, ...], Any]]:
    """Return the schemas that a keyword holds, each with the name or index below the keyword, () where it is the value.

    What a keyword holds that must be an object of schemas, but is none, has none.
    """
    if keyword in SCHEMA_MAPS:
        return [((name,), part) for name, part in value.items()] if isinstance(value, dict) else []
    if keyword not in SUBSCHEMAS and keyword not in SCHEMA_LISTS:
        return []
    return [((index,), part) for index, part in enumerate(value)] if isinstance(value, list) else [((), value)]


ANNOTATIONS = frozenset(name for name, keyword in KEYWORDS.items() if not keyword.asserts)

MAX_UNIQUE = 16
"""Listed values that nodes of an array can tell apart: there may be one for each set of values that have come."""
PLAIN_NUMBERS = f"numbers are then written without an exponent, with at most {MAX_DIGITS} digits before the point"
RESTRICTIONS = {
    "uniqueItems": "where every array that is valid at its place has unique items, no other specification restricts "
    "the whole text, and another value is left wherever another item must come; elsewhere (under `not`, in one of "
    f"several alternatives that allow arrays) with items out of at most {MAX_UNIQUE} values that the "
    "same subschema lists (`items` with `enum`), as far as max_steps allows",
    "minProperties": "from 2 on undeclared names are distinct, unless another specification restricts the whole text: "
    "then up to one more than the declared properties",
    "maxProperties": "where it is excluded, as `minProperties` of one more",
    "multipleOf": f"divisors whose remainders fit into the limit max_regex_states; {PLAIN_NUMBERS}",
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), PLAIN_NUMBERS),
    **dict.fromkeys(
        ("enum", "const"), f"where a listed number must not come (under `not`, in `oneOf`), {PLAIN_NUMBERS}"
    ),
    "$ref": "schemas at hand: the document, `resources` and the meta-schemas; nothing is downloaded",
    "dependencies": "kept in every draft",
    "x-turnstile": "no keyword of JSON Schema; `substring_of` says which text a string is a span of, and anything else "
    "is ignored",
}
"""Keyword -> the limits within which it is supported; anything else is refused with its JSON Pointer."""

_VOCABULARY_URIS = {
    f"https://json-schema.org/draft/{draft}/vocab/{name}": name
    for draft in ("2019-09", "2020-12")
    for name in frozenset[str]().union(*(keyword.vocabularies for keyword in KEYWORDS.values()))
}


@dataclasses.dataclass(frozen=True)
class Dialect:
    """A draft, and which of its vocabularies apply (None: all)."""

    draft: int
    vocabularies: frozenset[str] | None = None

    @functools.cached_property
    def keywords(self) -> frozenset[str]:
        """Those that mean anything here; all others are unknown, so they are annotations."""
        applies = self.vocabularies
        return frozenset(
            name
            for name, keyword in KEYWORDS.items()
            if self.draft in keyword.drafts and (applies is None or not applies.isdisjoint(keyword.vocabularies))
        )

    @property
    def asserts_format(self) -> bool:
        """True if the meta-schema insists on `format` as an assertion."""
        return self.vocabularies is not None and "format-assertion" in self.vocabularies

    def limited(self, vocabularies: Mapping[str, bool], pointer: str) -> Dialect:
        """This dialect with the vocabularies that a meta-schema names (URI -> whether they must be understood).

        Raises UnsupportedFeatureError for one that must be understood and is not.
        """
        for uri, required in vocabularies.items():
            if required and uri not in _VOCABULARY_URIS:
                raise UnsupportedFeatureError(f"the meta-schema requires the vocabulary {uri!r}", pointer=pointer)
        known = {_VOCABULARY_URIS[uri] for uri in vocabularies if uri in _VOCABULARY_URIS}
        return dataclasses.replace(self, vocabularies=frozenset(known | {"core"}))


@functools.cache
def standard(draft: int) -> Dialect:
    """The dialect of a draft itself."""
    return Dialect(draft)


def dialect_of(uri: str) -> Dialect | None:
    """The dialect of a standard meta-schema."""
    draft = DRAFTS.get(uri.removesuffix("#"))
    return None if draft is None else standard(draft)

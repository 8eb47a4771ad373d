"""The keywords of JSON Schema: the drafts and vocabularies that define them, and their restrictions in Turnstile."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.json_schema.solve.number_dfa import MAX_DIGITS
from grammar_workers.near_names import NearNames

# URI of a meta-schema, without an empty fragment -> number of the draft.
DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
# Number of the newest draft, which applies without `$schema`.
NEWEST = 2020

# Keywords whose value is a schema (`items` may also be an array of them).
SUBSCHEMAS = frozenset(
    ["additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames"]
    + ["unevaluatedItems", "unevaluatedProperties"]
)
# Keywords whose value is an array of schemas.
SCHEMA_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
# Keywords whose value refers to a schema.
REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")
# Keywords whose value maps names to schemas.
SCHEMA_MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"])


@dataclasses.dataclass(frozen=True, slots=True)
class Keyword:
    """Definition of a keyword of JSON Schema.

    Attributes:
        vocabularies: Names of the vocabularies that contain the keyword. They matter from draft 2019-09 on.
        drafts: Numbers of the drafts that define the keyword, as in `DRAFTS`.
        asserts: False for an annotation, which does not change the cache key of a grammar.
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
# Every keyword that some draft defines. Annotations are accepted in all drafts.
KEYWORDS = {
    name: Keyword(frozenset(vocabularies.split()), drafts, asserts)
    for names, vocabularies, drafts, asserts in _ROWS
    for name in names.split()
}
NEAR_KEYWORDS = NearNames(name for name, keyword in KEYWORDS.items() if keyword.asserts)
# Length of the shortest keyword of which a name that differs by one letter is a misspelling.
#
# Shorter keywords are similar to common names: `note`, `when` and `count`. Swapped letters are a sign only if
# they are adjacent: `menu` has the letters of `enum`.
_SHORTEST_MISSPELT = 6


def misspelt(name: str) -> str | None:
    """Return the keyword that an unknown name in a schema probably misspells. None if no keyword is similar.

    A similar keyword differs from the name in case and underscores, by one letter, or by two swapped adjacent letters.
    Annotations and keywords of the vocabulary `core` are not considered.

    Args:
        name: The unknown name.
    """
    # A keyword is often disabled by a prefix: `_uniqueItems` or `x-format`.
    if name.startswith("_"):
        return None
    near = NEAR_KEYWORDS.find(name) if name.replace("_", "").isalpha() and name not in KEYWORDS else None
    alike = near is not None and near.casefold() == name.casefold().replace("_", "")
    swapped = near is not None and _has_swapped_letters(name.casefold(), near.casefold())
    certain = alike or swapped or (near is not None and len(near) >= _SHORTEST_MISSPELT and "_" not in name)
    return near if certain and KEYWORDS[near or ""].vocabularies != {"core"} else None


def _has_swapped_letters(name: str, near: str) -> bool:
    """Return whether two near names differ only by two swapped adjacent letters."""
    return sorted(name) == sorted(near) and sum(one != other for one, other in zip(name, near, strict=True)) == 2


def schemas_in(keyword: str, value: Any) -> list[tuple[tuple[str | int, ...], Any]]:
    """Return the schemas in the value of a keyword.

    Args:
        keyword: Name of the keyword.
        value: Value of the keyword, which need not be valid.

    Returns:
        Pairs (path, schema). The path leads from the keyword to the schema: (name,), (index,), or () if the value
        itself is the schema. The list is empty if the keyword has no schemas, or if its value should be an object of
        schemas but is not an object.
    """
    if keyword in SCHEMA_MAPS:
        return [((name,), part) for name, part in value.items()] if isinstance(value, dict) else []
    if keyword not in SUBSCHEMAS and keyword not in SCHEMA_LISTS:
        return []
    return [((index,), part) for index, part in enumerate(value)] if isinstance(value, list) else [((), value)]


# The keywords that only annotate.
ANNOTATIONS = frozenset(name for name, keyword in KEYWORDS.items() if not keyword.asserts)

# Largest number of listed values for which the nodes of an array may distinguish all sets of seen values.
MAX_UNIQUE = 16
# Restriction of numbers where bounds or multiples apply, for messages and documentation.
PLAIN_NUMBERS = f"numbers are written without an exponent, with at most {MAX_DIGITS} digits before the point"
# Keyword -> the limits within which it is supported.
#
# Beyond them, the schema is rejected with the JSON Pointer of the keyword.
RESTRICTIONS = {
    "uniqueItems": f"Supported if `items` of the same subschema has an `enum` of at most {MAX_UNIQUE} values and the "
    "compilation does not exceed `max_steps`. Also supported without such an `enum` if three conditions hold: only "
    "arrays with unique items are allowed at this position; no other specification restricts the whole text; and an "
    "unused value is allowed whenever another item is required",
    "minProperties": "If another specification restricts the whole text, the value may be at most the number of "
    "declared properties + 1. Otherwise, if the value is at least 2, an object never repeats an undeclared name",
    "maxProperties": "Under `not`, the limits of `minProperties` apply",
    "multipleOf": "The DFA, which has states for each remainder of the divisor, must not exceed `max_regex_states`; "
    f"{PLAIN_NUMBERS}",
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), PLAIN_NUMBERS),
    **dict.fromkeys(("enum", "const"), f"If a listed number is excluded (under `not`, in `oneOf`): {PLAIN_NUMBERS}"),
    "$ref": "The target must be in the document, in `resources` or in the meta-schemas. Nothing is downloaded",
    "dependencies": "Supported in every draft",
    "x-turnstile": "This keyword is not part of JSON Schema. `substring_of` has the text of which the string is a "
    "span. No other field is allowed",
}

_VOCABULARY_URIS = {
    f"https://json-schema.org/draft/{draft}/vocab/{name}": name
    for draft in ("2019-09", "2020-12")
    for name in frozenset[str]().union(*(keyword.vocabularies for keyword in KEYWORDS.values()))
}


@dataclasses.dataclass(frozen=True)
class Dialect:
    """A draft of JSON Schema with the vocabularies that apply.

    Attributes:
        draft: Number of the draft, as in `DRAFTS`.
        vocabularies: Names of the vocabularies that apply; None for all.
    """

    draft: int
    vocabularies: frozenset[str] | None = None

    @functools.cached_property
    def keywords(self) -> frozenset[str]:
        """Names of the keywords that the dialect defines. Other names in a schema are not enforced."""
        applies = self.vocabularies
        return frozenset(
            name
            for name, keyword in KEYWORDS.items()
            if self.draft in keyword.drafts and (applies is None or not applies.isdisjoint(keyword.vocabularies))
        )

    @property
    def asserts_format(self) -> bool:
        """True if the dialect has the vocabulary that makes `format` an assertion."""
        return self.vocabularies is not None and "format-assertion" in self.vocabularies

    def limited(self, vocabularies: Mapping[str, bool], pointer: str) -> Dialect:
        """Return a copy of this dialect with only the vocabularies of a meta-schema, and the vocabulary `core`.

        Args:
            vocabularies: Value of `$vocabulary`: URI of a vocabulary -> True if a reader must support it.
            pointer: JSON Pointer of `$schema`, for the error.

        Raises:
            UnsupportedFeatureError: A vocabulary that must be supported is unknown.
        """
        for uri, required in vocabularies.items():
            if required and uri not in _VOCABULARY_URIS:
                raise UnsupportedFeatureError(f"the meta-schema requires the vocabulary {uri!r}", pointer=pointer)
        known = {_VOCABULARY_URIS[uri] for uri in vocabularies if uri in _VOCABULARY_URIS}
        return dataclasses.replace(self, vocabularies=frozenset(known | {"core"}))


# Number of a draft, as in `DRAFTS` -> its dialect with all vocabularies.
STANDARD = {draft: Dialect(draft) for draft in DRAFTS.values()}


def dialect_of(uri: str) -> Dialect | None:
    """Return the dialect of the standard meta-schema at `uri`. None if `uri` names no standard meta-schema."""
    draft = DRAFTS.get(uri.removesuffix("#"))
    return None if draft is None else STANDARD[draft]

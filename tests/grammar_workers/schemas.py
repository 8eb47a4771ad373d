"""Random JSON Schemas, values that nearly fit them, and the validator that decides: nothing here knows the compiler."""

from __future__ import annotations

import decimal
import itertools
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import jsonschema
from hypothesis import assume
from hypothesis import strategies as st

import tests.grammar_workers.other_formats  # noqa: F401 - registers the checkers of formats

Schema = dict[str, Any] | bool

NAMES = ("a", "b", "ab", "é")
"""Property names; one is a prefix of another, and one needs two bytes."""
TEXTS = ("", "a", "b", "ab", "aa", "abc", "é", "😀", 'a"b', "a\\b", "\n", "\x01", "aaaa")
NUMBERS = (0, 1, -1, 2, 3, 7, 10, 12, 100, -12, 0.5, -0.5, 1.25, 99.75, -7.5)
PATTERNS = ("^a", "b$", "^[a-c]*$", "a|é", "^.{2,3}$", "^(ab|a)+$", "[^a]", "^a?b?$", "é")
"""Patterns with the same meaning for Python on all of `TEXTS`."""

_bounds = st.sampled_from(NUMBERS)
_counts = st.integers(0, 3)
_scalars = st.sampled_from([None, True, False, *NUMBERS, *TEXTS])
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=4,
)


def _keywords(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any subset of these keywords."""
    return st.fixed_dictionaries({}, optional=optional)


_strings = _keywords(minLength=_counts, maxLength=_counts, pattern=st.sampled_from(PATTERNS))
_numbers = _keywords(minimum=_bounds, maximum=_bounds, exclusiveMinimum=_bounds, exclusiveMaximum=_bounds)
_leaves: st.SearchStrategy[Schema] = st.one_of(
    st.booleans(),
    st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"]).map(lambda t: {"type": t}),
    _strings.map(lambda keywords: {"type": "string", **keywords}),
    _numbers.flatmap(lambda keywords: st.sampled_from(["integer", "number"]).map(lambda t: {"type": t, **keywords})),
    _strings,
    _numbers,
    st.lists(_scalars, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    _values.map(lambda value: {"const": value}),
    st.lists(st.sampled_from(["null", "integer", "string", "object"]), min_size=1, unique=True).map(
        lambda types: {"type": types}
    ),
    st.sampled_from(["#", "#/$defs/one", "#/$defs/two"]).map(lambda ref: {"$ref": ref}),
)


def _branches(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    objects = _keywords(
        properties=st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        required=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        additionalProperties=inner | st.just(False),
    )
    arrays = _keywords(
        items=inner | st.just(False), prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=_counts,
        maxItems=_counts,
    )  # fmt: skip
    return st.one_of(
        objects.map(lambda keywords: {"type": "object", **keywords}),
        objects,
        arrays.map(lambda keywords: {"type": "array", **keywords}),
        arrays,
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        st.tuples(objects, st.lists(inner, min_size=1, max_size=2)).map(lambda p: {**p[0], "anyOf": p[1]}),
    )


def _wild_branches(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    patterns = st.sampled_from(["^a", "b$", "é", "^a?b?$"])
    objects = _keywords(
        properties=st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
        required=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        additionalProperties=inner | st.just(False),
        patternProperties=st.dictionaries(patterns, inner, min_size=1, max_size=2),
        propertyNames=st.sampled_from(
            [{"maxLength": 1}, {"pattern": "^a"}, {"enum": ["a", "é"]}, {"minLength": 2}, False]
        ),
        minProperties=_counts,
        maxProperties=_counts,
        dependentRequired=st.just({"a": ["b"]}) | st.just({"é": ["a", "ab"]}),
        dependentSchemas=inner.map(lambda part: {"a": part}),
        unevaluatedProperties=st.just(False) | inner,
    )
    arrays = _keywords(
        items=inner, prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=_counts, maxItems=_counts,
        contains=inner, minContains=st.integers(0, 2), maxContains=_counts, uniqueItems=st.just(True),
        unevaluatedItems=st.just(False),
    )  # fmt: skip
    parts = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        _branches(inner),
        objects,
        arrays,
        objects.map(lambda keywords: {"type": "object", **keywords}),
        arrays.map(lambda keywords: {"type": "array", **keywords}),
        st.sampled_from([1, 2, 3, 0.5, 0.25, 10]).map(lambda number: {"type": "number", "multipleOf": number}),
        parts.map(lambda schemas: {"allOf": schemas}),
        parts.map(lambda schemas: {"oneOf": schemas}),
        inner.map(lambda schema: {"not": schema}),
        _keywords(**{"then": inner, "else": inner}).flatmap(
            lambda keywords: inner.map(lambda schema: {"if": schema, **keywords})
        ),
        st.tuples(objects, st.sampled_from(["allOf", "oneOf", "anyOf"]), parts).map(lambda p: {**p[0], p[1]: p[2]}),
    )


@st.composite
def schemas(draw: st.DrawFn, *, wild: bool = False) -> Schema:
    """Schemas of the keywords that are always supported, or of any (`wild`), with references that may recurse."""
    branches = _wild_branches if wild else _branches
    inner = st.recursive(_leaves, branches, max_leaves=5)
    schema = draw(st.one_of(branches(inner), inner))
    if isinstance(schema, bool):
        return schema
    schema = {**schema, "$defs": {"one": draw(inner), "two": draw(branches(inner))}}
    assume(not _leads_to_itself(schema, schema, frozenset()))
    return schema


def _leads_to_itself(schema: Schema, root: dict[str, Any], passed: frozenset[str]) -> bool:
    """Whether a reference leads back to itself without describing any part of a value: that means nothing."""
    if isinstance(schema, bool):
        return False
    ref = schema.get("$ref")
    if ref in passed:
        return True
    if ref is not None and _leads_to_itself(resolve(ref, root), root, passed | {ref}):
        return True
    beside = [part for keyword in ("anyOf", "allOf", "oneOf") for part in schema.get(keyword, [])]
    beside += [schema[keyword] for keyword in ("not", "if", "then", "else") if keyword in schema]
    beside += schema.get("dependentSchemas", {}).values()
    if any(_leads_to_itself(part, root, passed) for part in beside):
        return True
    if passed:
        return False
    below = [part for keyword in _SCHEMA_MAPS for part in schema.get(keyword, {}).values()]
    below += [schema[keyword] for keyword in _SUBSCHEMAS if keyword in schema] + schema.get("prefixItems", [])
    return any(_leads_to_itself(part, root, frozenset()) for part in below)


_SCHEMA_MAPS = ("properties", "$defs", "patternProperties")
_SUBSCHEMAS = (
    "items",
    "additionalProperties",
    "contains",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
)


def resolve(ref: str, root: Any) -> Schema:
    """The schema that a reference within the document points to."""
    for part in ref.split("/")[1:]:
        root = root[part]
    return root  # type: ignore[no-any-return]


def values_near(schema: Schema, root: Schema, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that have a fair chance to be valid under `schema`, and a fair chance not to be."""
    if isinstance(schema, bool) or depth > 4:
        return _values
    if "$ref" in schema:
        return values_near(resolve(schema["$ref"], root), root, depth + 1)
    for keyword in ("anyOf", "allOf", "oneOf"):
        if keyword in schema:
            return st.one_of([values_near(part, root, depth + 1) for part in schema[keyword]])
    if "if" in schema:
        return st.one_of(
            [values_near(schema[keyword], root, depth + 1) for keyword in ("if", "then", "else") if keyword in schema]
        )
    if "const" in schema:
        return st.just(schema["const"]) | _values
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | _values
    choices = [_values]
    if schema.get("type") in ("integer", "number") or "multipleOf" in schema or _numbers_in(schema):
        choices += [st.sampled_from(NUMBERS), st.integers(-20, 120)]
    if schema.get("type") == "string" or {"minLength", "maxLength", "pattern"} & schema.keys():
        choices += [st.sampled_from(TEXTS), st.text("abé😀", max_size=4)]
    if schema.get("type") == "array" or {"items", "prefixItems", "minItems", "maxItems", "contains"} & schema.keys():
        choices += [_arrays_near(schema, root, depth)] * 2
    if schema.get("type") == "object" or any("ropert" in keyword or "equired" in keyword for keyword in schema):
        choices += [_objects_near(schema, root, depth)] * 2
    return st.one_of(choices)


def _numbers_in(schema: dict[str, Any]) -> bool:
    return any(keyword.endswith("imum") for keyword in schema)


@st.composite
def _arrays_near(draw: st.DrawFn, schema: dict[str, Any], root: Schema, depth: int) -> list[Any]:
    prefix = schema.get("prefixItems", [])
    least, most = sorted([schema.get("minItems", 0), min(schema.get("maxItems", 4), 4)])
    length = draw(st.integers(least, most + 1))
    others = [schema.get("items", True), *([schema["contains"]] if "contains" in schema else [])]
    parts = [prefix[i] if i < len(prefix) else draw(st.sampled_from(others)) for i in range(length)]
    return [draw(values_near(part, root, depth + 1)) for part in parts]


@st.composite
def _objects_near(draw: st.DrawFn, schema: dict[str, Any], root: Schema, depth: int) -> dict[str, Any]:
    declared = schema.get("properties", {})
    wanted = [*schema.get("required", []), *draw(st.lists(st.sampled_from(NAMES), max_size=2))]
    names = sorted(set(wanted), key=[*declared, *wanted].index)
    others = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties", True)]
    return {
        name: draw(values_near(declared.get(name, draw(st.sampled_from(others))), root, depth + 1)) for name in names
    }


# -- the oracle ----------------------------------------------------------------------------------------------------


_PRECISION = 400
"""Digits for remainders of numbers up to the largest double."""


def exact(text: str) -> Any:
    """JSON with exact decimals: binary rounding would blur comparisons with bounds."""
    return json.loads(text, parse_float=Decimal)


def is_valid(schema: Schema, text: str) -> bool:
    """What `jsonschema` says of the JSON text `text`, by the schema's draft (2020-12 when it names none)."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    with decimal.localcontext(prec=_PRECISION):
        return bool(kind(exact(json.dumps(schema)), format_checker=kind.FORMAT_CHECKER).is_valid(exact(text)))


def write(value: Any) -> str:
    """The reference spelling of a value."""
    return json.dumps(value, ensure_ascii=False)


def orders(value: Any) -> Iterator[Any]:
    """The value with its properties in every order, at every depth (as spelled: property order is a policy)."""
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for parts in itertools.product(*(list(orders(value[name])) for name in names)):
                yield dict(zip(names, parts, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(orders(item)) for item in value)))
    else:
        yield value

"""Grammar keys: equal exactly where the language and the vocabulary are."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import GrammarError, GrammarOptions, Vocabulary, compile_grammar, grammar_key, keys
from grammar_workers.errors import LimitExceededError
from grammar_workers.keys import canonical_bytes, parse_specification
from grammar_workers.specification import SPECIFICATION
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.schemas import Schema, schemas
from tests.grammar_workers.vocabularies import bytes_vocabulary, characters_vocabulary

FINGERPRINT = "0" * 64
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "title": {"type": "integer"},
        "examples": {"type": "array", "items": {"enum": [1, 2]}},
    },
    "required": ["name", "title"],
    "anyOf": [{"minProperties": 1}, {"$ref": "#/$defs/d"}],
    "$defs": {"d": {"type": "object"}},
}


def key(schema: Schema, options: GrammarOptions = GrammarOptions(), fingerprint: str = FINGERPRINT) -> str:  # noqa: B008
    return grammar_key({"type": "json_schema", "schema": schema}, fingerprint, options)


_NESTED = {
    "one": ["items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"]
    + ["unevaluatedItems", "unevaluatedProperties", "additionalItems"],
    "list": ["allOf", "anyOf", "oneOf", "prefixItems"],
    "map": ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"],
}
_NOTES = {"title": "T", "description": "D", "default": [1], "examples": [{}], "$comment": "C", "deprecated": True}


def annotated(schema: Any, rng: random.Random) -> Any:
    """The schema with annotations strewn in wherever a schema stands, and its keywords in another order."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _NESTED["map"]:
            value = {name: annotated(part, rng) for name, part in value.items()}
        elif keyword in _NESTED["list"]:
            value = [annotated(part, rng) for part in value]
        elif keyword in _NESTED["one"]:
            value = annotated(value, rng)
        result[keyword] = value
    result.update((name, [_NOTES[name], rng.random()]) for name in rng.sample(sorted(_NOTES), 3))
    items = list(result.items())
    rng.shuffle(items)
    return dict(items)


def _positions() -> list[Any]:
    """A schema with one subschema in each place that can hold one, as a function of that subschema."""
    return [
        *(lambda part, keyword=keyword: {keyword: part} for keyword in _NESTED["one"]),
        *(lambda part, keyword=keyword: {keyword: [True, part]} for keyword in _NESTED["list"]),
        *(lambda part, keyword=keyword: {keyword: {"title": part}} for keyword in _NESTED["map"]),
        lambda part: {"dependencies": {"title": part, "b": ["title", "default"]}},
        lambda part: {"$schema": "http://json-schema.org/draft-07/schema#", "items": [True, part]},
    ]


@pytest.mark.parametrize("place", _positions())
def test_annotations_do_not_matter_in_any_place(place: Any) -> None:
    plain = place({"type": "integer"})
    assert key(place({"title": "a", "type": "integer", "examples": [1], "readOnly": True})) == key(plain)
    assert key(place({"type": "string"})) != key(plain)
    assert key(place({"type": "integer", "const": {"title": "a"}})) != key(plain)
    # What is called like an annotation and stands where a name does is a name.
    assert key(place({"type": "integer", "properties": {"title": True}})) != key(plain)


@settings(PROPERTY, max_examples=80)
@given(schemas(wild=True), st.randoms(use_true_random=False))
def test_annotations_do_not_matter_whatever_the_schema(schema: Schema, rng: random.Random) -> None:
    assert key(annotated(schema, rng)) == key(schema)
    assert key(annotated(annotated(schema, rng), rng)) == key(schema)


@settings(PROPERTY, max_examples=60)
@given(st.lists(st.text(max_size=3), min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_properties_matters(names: list[str], rng: random.Random) -> None:
    parts = {name: {"const": number} for number, name in enumerate(names)}
    shuffled = rng.sample(names, len(names))
    schema = {"items": {"properties": parts}}
    other = {"items": {"properties": {name: parts[name] for name in shuffled}}}
    assert (key(schema) == key(other)) == (names == shuffled)


@settings(PROPERTY, max_examples=15)
@given(schemas(), st.randoms(use_true_random=False))
def test_equal_keys_mean_equal_automata(schema: Schema, rng: random.Random) -> None:
    vocabulary = bytes_vocabulary()
    try:
        first = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    except GrammarError:
        return
    second = compile_grammar({"type": "json_schema", "schema": annotated(schema, rng)}, vocabulary)
    assert first.key == second.key
    assert first.to_bytes() == second.to_bytes()


@settings(PROPERTY, max_examples=60)
@given(schemas(), st.randoms(use_true_random=False))
def test_annotations_and_the_order_of_keywords_do_not_matter(schema: Schema, rng: random.Random) -> None:
    assert key(schema) == key(annotated(schema, rng))
    assert key(schema) == key(copy.deepcopy(schema))


@settings(PROPERTY, max_examples=60)
@given(schemas(), schemas())
def test_different_schemas_have_different_keys(first: Schema, second: Schema) -> None:
    same = json.dumps(first, sort_keys=False) == json.dumps(second, sort_keys=False)
    assert not same or key(first) == key(second)
    if json.dumps(first, sort_keys=True) != json.dumps(second, sort_keys=True):
        assert key(first) != key(second)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["properties"].update(name=s["properties"].pop("name")),  # the order of properties
        lambda s: s["properties"]["name"].update(maxLength=6),
        lambda s: s["properties"]["examples"]["items"].update(enum=[2, 1]),
        lambda s: s["properties"].pop("title"),
        lambda s: s["properties"].pop("examples"),
        lambda s: s.update(required=["name"]),
        lambda s: s["anyOf"].reverse(),
        lambda s: s["$defs"]["d"].update(type="array"),
        lambda s: s.update({"$schema": "http://json-schema.org/draft-07/schema#"}),
        lambda s: s.update(additionalProperties=False),
        lambda s: s["properties"].update(other={"title": "only a name"}),
    ],
)
def test_what_changes_the_language_changes_the_key(change: Any) -> None:
    changed = copy.deepcopy(SCHEMA)
    change(changed)
    assert key(changed) != key(SCHEMA)


def test_values_are_no_schemas() -> None:
    """Names and values that look like annotations are part of the language."""
    assert key({"const": {"title": "a"}}) != key({"const": {"title": "b"}})
    assert key({"enum": [{"description": 1}]}) != key({"enum": [{}]})
    assert key({"properties": {"title": {"type": "null"}}}) != key({"properties": {}})
    assert key({"const": {"a": 1, "b": 2}}) != key({"const": {"b": 2, "a": 1}})
    assert key({"const": 1}) != key({"const": 1.0})
    assert key({"const": 1}) != key({"const": True})
    assert key({"const": "1"}) != key({"const": 1})


def test_vocabulary_and_options_are_part_of_the_key() -> None:
    every = [
        key(SCHEMA),
        key(SCHEMA, fingerprint="1" * 64),
        key(SCHEMA, GrammarOptions(whitespace="flexible")),
        key(SCHEMA, GrammarOptions(whitespace="flexible", whitespace_limit=9)),
        key(SCHEMA, GrammarOptions(additional_properties=False)),
        grammar_key({"type": "json_object"}, FINGERPRINT),
        grammar_key({"type": "regex", "pattern": "a"}, FINGERPRINT),
        grammar_key({"type": "choice", "choices": ["a"]}, FINGERPRINT),
        grammar_key({"type": "choice", "choices": ["a", "b"]}, FINGERPRINT),
        grammar_key({"type": "choice", "choices": ["ab"]}, FINGERPRINT),
    ]
    assert len(set(every)) == len(every)
    assert all(len(one) == 64 and set(one) <= set("0123456789abcdef") for one in every)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda schema: {"type": "all_of", "specifications": [{"type": "json_schema", "schema": schema}]},
        lambda schema: {
            "type": "structural_tag",
            "triggers": ["<"],
            "tags": [{"begin": "<f>", "content": {"type": "json_schema", "schema": schema}, "end": "</f>"}],
        },
    ],
)
def test_schemas_inside_of_other_specifications_are_normalised(wrap: Any) -> None:
    def inner(schema: Schema) -> str:
        return grammar_key(wrap(schema), FINGERPRINT)

    assert inner(SCHEMA) == inner(annotated(SCHEMA, random.Random(1)))
    assert inner(SCHEMA) != inner({**SCHEMA, "required": ["name"]})
    assert inner(SCHEMA) != key(SCHEMA)


def test_how_words_are_compared_is_part_of_the_key() -> None:
    words: dict[str, Any] = {"type": "banned_words", "words": ["a", "b"]}
    tag: dict[str, Any] = {"begin": "<f", "content": {"type": "json_object"}, "end": ""}
    tags: dict[str, Any] = {"type": "structural_tag", "triggers": ["<f"], "tags": [tag]}
    every = [
        words,
        {**words, "case_sensitive": True},
        {**words, "whole_words": True},
        {**words, "words": ["a"]},
        {"type": "all_of", "specifications": [words]},
        {"type": "all_of", "specifications": [words, {"type": "json_object"}]},
        tags,
        {**tags, "at_least_one": True},
        {**tags, "stop_after_first": True},
        {**tags, "tags": [{**tag, "end": ">"}]},
        {**tags, "tags": [{**tag, "content": words}]},
    ]
    assert len({grammar_key(one, FINGERPRINT) for one in every}) == len(every)
    assert grammar_key(words, FINGERPRINT) == grammar_key({**words, "case_sensitive": False}, FINGERPRINT)


def test_the_compiler_version_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(SCHEMA)
    monkeypatch.setattr(keys, "COMPILER_VERSION", keys.COMPILER_VERSION + 1)
    assert key(SCHEMA) != before


def test_models_and_plain_data_have_the_same_key() -> None:
    for data in (
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object"},
        {"type": "regex", "pattern": "a+"},
        {"type": "choice", "choices": ["x", "y"]},
    ):
        assert grammar_key(SPECIFICATION.validate_python(data), FINGERPRINT) == grammar_key(data, FINGERPRINT)


def test_an_automaton_knows_its_key() -> None:
    vocabulary = bytes_vocabulary()
    specification = {"type": "json_schema", "schema": {"type": "integer"}}
    options = GrammarOptions(whitespace="flexible")
    fsm = compile_grammar(specification, vocabulary, options=options)
    assert fsm.key == grammar_key(specification, vocabulary.fingerprint, options)
    assert fsm.key != compile_grammar(specification, characters_vocabulary(), options=options).key


def test_keys_are_the_same_in_every_process() -> None:
    script = (
        "import json, sys; from grammar_workers import grammar_key; "
        "print(grammar_key({'type': 'json_schema', 'schema': json.loads(sys.argv[1])}, '0' * 64))"
    )
    command = [sys.executable, "-c", script, json.dumps(SCHEMA)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": "7"})
    assert found.stdout.strip() == key(SCHEMA)


@pytest.mark.parametrize(
    "bad", [{}, {"type": "regex"}, {"type": "json_schema", "schema": {"const": float("nan")}}, {"x": 1}]
)
def test_malformed_specifications_have_no_key(bad: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        grammar_key(bad, FINGERPRINT)


def test_fingerprints_tell_vocabularies_apart() -> None:
    tokens = [b"a", b"b", b"ab", b"", None]
    every = [
        Vocabulary(tokens, [3]),
        Vocabulary(tokens, [4]),
        Vocabulary(tokens, [3, 4]),
        Vocabulary(tokens, [3], size=6),
        Vocabulary([b"b", b"a", b"ab", b"", None], [3]),
        Vocabulary([b"a", b"ba", b"b", b"", None], [3]),
        Vocabulary(tokens, [3], {"<x>": 4}),
        Vocabulary(tokens, [3], {"<y>": 4}),
        Vocabulary([*tokens, b"c"], [3]),
    ]
    assert len({vocabulary.fingerprint for vocabulary in every}) == len(every)
    assert Vocabulary(list(tokens), (3,)).fingerprint == every[0].fingerprint
    # None and b"" mean the same.
    assert Vocabulary([b"a", b"b", b"ab", None, b""], [3]).fingerprint == every[0].fingerprint


@pytest.mark.parametrize(
    ("reference", "holder"),
    [
        ("#/examples/0", {"examples": [None]}),
        ("#/%65xamples/0", {"examples": [None]}),
        ("#/default", {"default": None}),
        ("#/properties/a/examples/0", {"properties": {"a": {"examples": [None]}}}),
        ("#anchor", {"contentSchema": {"$anchor": "anchor", "not": None}}),
        ("#/indirect", {"indirect": {"$ref": "#/examples/0"}, "examples": [None]}),
    ],
)
def test_what_a_reference_leads_to_is_part_of_the_key(reference: str, holder: dict[str, Any]) -> None:
    """Equal keys share one automaton, so an annotation that is used as a schema is none."""

    def specification(referred: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps({"$ref": reference, **holder}).replace("null", json.dumps(referred))
        return {"type": "json_schema", "schema": json.loads(text)}

    fsms = [compile_grammar(specification({"type": kind}), bytes_vocabulary()) for kind in ("integer", "string")]
    allowed = [sorted(fsm.allowed_tokens(fsm.initial_state)) for fsm in fsms]
    assert allowed[0] != allowed[1] and fsms[0].key != fsms[1].key


def test_the_size_is_known_before_all_of_a_specification_is_looked_at() -> None:
    """What is counted is never more than there is, and stops a specification that has twenty times too much."""
    for schema in ({"enum": [1] * 10_000}, {"allOf": [{}] * 10_000}, {"x": [[[]]] * 10_000}, {"const": "x" * 50_000}):
        specification = parse_specification({"type": "json_schema", "schema": schema})
        size = len(canonical_bytes(specification, 1 << 20))
        assert canonical_bytes(specification, size)
        with pytest.raises(LimitExceededError, match="max_specification_bytes"):
            canonical_bytes(specification, size - 1)
        normalization = keys._Normalization(size // 10)
        with pytest.raises(LimitExceededError):
            normalization.specification(specification)


@given(schemas())
def test_a_size_that_is_counted_is_never_more_than_there_is(schema: Schema) -> None:
    normalization = keys._Normalization(1 << 20)
    content = normalization.specification(parse_specification({"type": "json_schema", "schema": schema}))
    assert normalization._bytes <= len(json.dumps(content, separators=(",", ":")))

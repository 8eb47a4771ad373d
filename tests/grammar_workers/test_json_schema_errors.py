"""Malformed schemas and specifications: the right error, at the right place, whatever comes in."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import TokenFSM, compile_grammar
from grammar_workers.errors import GrammarError, InvalidSpecificationError, UnsatisfiableError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.schemas import Schema, is_valid
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, text_of


def compiled(schema: Schema) -> TokenFSM:
    return compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "text"}, "/type"),
        ({"type": 3}, "/type"),
        ({"type": []}, "/type"),
        ({"type": ["string", 1]}, "/type"),
        ({"enum": 1}, "/enum"),
        ({"properties": []}, "/properties"),
        ({"properties": {"a": 1}}, "/properties/a"),
        ({"properties": {"a/b~": {"minLength": -1}}}, "/properties/a~1b~0/minLength"),
        ({"required": "a"}, "/required"),
        ({"required": [1]}, "/required"),
        ({"items": 3}, "/items"),
        ({"prefixItems": []}, "/prefixItems"),
        ({"prefixItems": [{"items": None}]}, "/prefixItems/0/items"),
        ({"minItems": "1"}, "/minItems"),
        ({"maxLength": 1.5}, "/maxLength"),
        ({"minLength": True}, "/minLength"),
        ({"minimum": "3"}, "/minimum"),
        ({"maximum": True}, "/maximum"),
        ({"pattern": 1}, "/pattern"),
        ({"items": {"pattern": "("}}, "/items/pattern"),
        ({"anyOf": []}, "/anyOf"),
        ({"anyOf": {}}, "/anyOf"),
        ({"anyOf": [True, 1]}, "/anyOf/1"),
        ({"$ref": 1}, "/$ref"),
        ({"$ref": "#/$defs/missing"}, "/$ref"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}}, "$ref": "#/$defs/a"}, "/$defs/a/$ref"),
        ({"anyOf": [{"$ref": "#/anyOf/7"}]}, "/anyOf/0/$ref"),
        ({"additionalProperties": 0}, "/additionalProperties"),
        ({"$id": "http://["}, "/$id"),
        ({"items": {"$id": "//[x"}}, "/items/$id"),
    ],
)
def test_malformed_schemas_are_refused_where_they_are_malformed(schema: Schema, pointer: str) -> None:
    with pytest.raises(InvalidSpecificationError) as caught:
        compiled(schema)
    assert caught.value.pointer == pointer
    assert caught.value.to_dict()["pointer"] == pointer
    assert pointer in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {
            "properties": {
                "x": {"$defs": {"y": {"anyOf": [{"$ref": "#/properties/x"}]}}, "$ref": "#/properties/x/$defs/y"}
            }
        },
    ],
)
def test_references_that_only_lead_in_circles_end(schema: Schema) -> None:
    """Nothing is described by a schema that is only itself: refused or without effect, never endless."""
    try:
        fsm = compiled(schema)
    except GrammarError:
        return
    assert accepts(fsm, "null") or accepts(fsm, "{}")


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"$ref": "#"}, ""),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, ""),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "items": {"$ref": "#/$defs/a"}},
            "/$defs/b",
        ),
        ({"properties": {"x": {"not": {"$ref": "#/properties/x"}}}}, "/properties/x"),
    ],
)
def test_a_cycle_that_consumes_nothing_is_named(schema: Schema, pointer: str) -> None:
    with pytest.raises(InvalidSpecificationError, match="cycle") as caught:
        compiled(schema)
    assert caught.value.pointer == pointer


CLOSED = {"type": "object", "properties": {"b": {}}, "required": ["b", "a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        (False, "", "# is false"),
        ({"enum": []}, "/enum", "/enum is []"),
        (
            CLOSED,
            "/additionalProperties",
            '/additionalProperties is false, /required is ["b", "a"] and /type is "object"',
        ),
        (
            {
                "type": "array",
                "minItems": 2,
                "items": {"$ref": "#/$defs/x"},
                "$defs": {"x": {"type": "object", **CLOSED}},
            },
            "/$defs/x/additionalProperties",
            '/$defs/x/additionalProperties is false, /$defs/x/required is ["b", "a"], /$defs/x/type is "object", '
            '/items/$ref is "#/$defs/x", /minItems is 2 and /type is "array"',
        ),
        (
            {"type": "object", "properties": {"a": False, "c": {"type": "null"}}, "required": ["a"]},
            "/properties/a",
            '/properties/a is false, /required is ["a"] and /type is "object"',
        ),
        (
            {"type": ["string", "null"], "enum": [1, False, {}]},
            "/enum",
            '/enum is [1, false, {}] and /type is ["string", ',
        ),
        (
            {"type": "integer", "minimum": 1.1, "maximum": 1.9, "title": "x"},
            "/maximum",
            '/maximum is 1.9, /minimum is 1.1 and /type is "integer"',
        ),
        # Either contradiction alone would leave values.
        (
            {
                "type": ["object", "array"],
                "properties": {"a": {"const": 1, "not": {"const": 1}}},
                "required": ["a"],
                "minItems": 1,
                "items": False,
            },
            "/items",
            "/items is false, /minItems is 1, /properties/a/const is 1, /properties/a/not is",
        ),
        (
            {
                "type": "object",
                "required": ["shape"],
                "properties": {
                    "shape": {
                        "type": "object",
                        "required": ["a", "b"],
                        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                    }
                },
            },
            "/properties/shape/oneOf",
            '/properties/shape/oneOf is [{"required": ["a"]}, {"required": ["b"]}], /properties/shape/required is',
        ),
        (
            {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}},
            "/properties/next/$ref",
            '/properties/next/$ref is "#", /required is ["next"] and /type is "object"',
        ),
        (
            {"allOf": [{"type": "string", "pattern": "^a"}, {"minLength": 2}, {"pattern": "^b"}]},
            "/allOf/0/pattern",
            '/allOf/0/pattern is "^a", /allOf/0/type is "string" and /allOf/2/pattern is "^b"',
        ),
    ],
)
def test_keywords_that_exclude_each_other_are_named(schema: Schema, pointer: str, reason: str) -> None:
    with pytest.raises(UnsatisfiableError) as caught:
        compiled(schema)
    assert caught.value.pointer == pointer
    assert str(caught.value).startswith(f"no value satisfies the schema: {reason}")


def test_the_keywords_of_several_schemas_are_named() -> None:
    parts = [{"type": "json_schema", "schema": {"type": one}} for one in ("integer", "null")]
    with pytest.raises(UnsatisfiableError) as caught:
        compile_grammar({"type": "all_of", "specifications": parts}, bytes_vocabulary())
    assert caught.value.pointer == "/specifications/0/schema/type"
    assert '/specifications/0/type is "integer" and /specifications/1/type is "null"' in caught.value.message


def test_each_named_keyword_is_needed() -> None:
    """`jsonschema` has values as soon as one of them is missing, and none with all of them."""
    rng = random.Random(1)
    values = [None, True, 0, 1, 2, 3, "", "a", "ab", "b", [], [1], [1, 1], {}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}]
    keywords: list[Any] = [
        *({"type": one} for one in ("integer", "string", "object", "array")),
        *({"minimum": 2}, {"maximum": 1}, {"minLength": 2}, {"maxLength": 1}, {"pattern": "^a"}, {"pattern": "^b"}),
        *({"required": ["a"]}, {"additionalProperties": False}, {"properties": {"a": {"type": "string"}}}),
        *({"minItems": 2}, {"uniqueItems": True, "items": {"enum": [1]}}, {"const": 1}, {"enum": ["a", {}]}),
        *({"not": {"type": "integer"}}, {"maxProperties": 0}, {"minProperties": 1}),
    ]
    explained = 0
    for _ in range(400):
        schema = {"allOf": rng.sample(keywords, rng.randrange(2, 6))}
        try:
            compiled(schema)
        except UnsatisfiableError as error:
            named = re.findall(r"/allOf/(\d+)((?:/\w+)+) is ", error.message)
            assert named, error
            core = {"allOf": [{} for _ in schema["allOf"]]}
            for index, path in named:
                name = path.split("/")[1]
                core["allOf"][int(index)][name] = schema["allOf"][int(index)][name]
            assert not any(jsonschema.Draft202012Validator(core).is_valid(value) for value in values), (schema, error)
            compiled_parts = {(int(index), path.split("/")[1]) for index, path in named}
            for index, name in compiled_parts:
                without = copy.deepcopy(core)
                del without["allOf"][index][name]
                compiled(without)
                explained += 1
        except GrammarError:
            pass
    assert explained > 200


MODELS: Any = {
    "$defs": {
        name: {
            "type": "object",
            "properties": {name: {"type": "integer"}},
            "required": [name],
            "additionalProperties": False,
        }
        for name in ("a", "b")
    }
}
BOTH = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]


@pytest.mark.parametrize(
    "schema",
    [
        {**MODELS, "allOf": BOTH},
        {"properties": {"x": {"allOf": [*MODELS["$defs"].values()]}}, "required": ["x"], "type": "object", **MODELS},
        {**MODELS, "allOf": BOTH[:1], "properties": {"b": True}, "required": ["b"], "type": "object"},
    ],
)
def test_closed_parts_of_all_of_name_the_way_out(schema: Schema) -> None:
    with pytest.raises(UnsatisfiableError, match="`unevaluatedProperties: false` beside `allOf`"):
        compiled(schema)


def test_closed_parts_of_all_of_that_leave_something_are_noted() -> None:
    closed = [{"properties": {name: True}, "additionalProperties": False} for name in "ab"]
    (note,) = compiled({"properties": {"x": {"allOf": closed}}}).notes
    assert note.startswith("/properties/x/allOf: ") and "unevaluatedProperties" in note
    opened = [{"properties": {name: True}} for name in "ab"]
    assert not compiled({"allOf": opened, "unevaluatedProperties": False}).notes
    assert not compiled({"allOf": [closed[0], closed[0]]}).notes


@pytest.mark.parametrize("uri", [None, "https://json-schema.org/draft/2020-12/schema"])
def test_tuples_of_older_drafts_name_the_way_out(uri: str | None) -> None:
    schema = {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}
    for said in ("`prefixItems`", r"`\$schema`"):
        with pytest.raises(InvalidSpecificationError, match=said) as caught:
            compiled({"$schema": uri, "properties": {"x": schema}} if uri else {"properties": {"x": schema}})
        assert caught.value.pointer == "/properties/x/items"
    assert accepts(compiled({**schema, "$schema": "http://json-schema.org/draft-07/schema#"}), b'[1, "a"]')


def test_a_path_into_the_document_is_read_as_a_fragment() -> None:
    """As LiteLLM writes references; a resource of this name comes first."""
    schema = {"$defs": {"W": {"type": "integer"}}, "type": "array", "items": {"$ref": "/$defs/W"}}
    fsm = compiled(schema)
    assert accepts(fsm, b"[1]") and not accepts(fsm, b'["a"]')
    assert fsm.notes == ["/items/$ref: '/$defs/W' is read as '#/$defs/W'"]
    nested = compiled({"properties": {"x": {"$id": "http://x/y", **schema}}, "required": ["x"], "type": "object"})
    assert accepts(nested, b'{"x": [1]}') and not accepts(nested, b'{"x": ["a"]}')
    texts = {"http://x/$defs/W": {"type": "string"}}
    other = compile_grammar(
        {"type": "json_schema", "schema": {**schema, "$id": "http://x/y"}}, bytes_vocabulary(), resources=texts
    )
    assert accepts(other, b'["a"]') and not accepts(other, b"[1]") and not other.notes
    with pytest.raises(GrammarError, match="not at hand"):
        compiled({"$ref": "/$defs/missing"})


def test_a_resource_of_its_own_changes_what_a_fragment_means() -> None:
    schema = {"$defs": {"a": {"$id": "part", "$ref": "#/$defs/b"}, "b": True}, "$ref": "#/$defs/a"}
    with pytest.raises(InvalidSpecificationError, match=r"\$id") as caught:
        compiled(schema)
    assert caught.value.pointer == "/$defs/a/$ref"


def test_the_id_of_an_older_draft_makes_no_resource_within_a_newer_one() -> None:
    part: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "part",
        "definitions": {"b": {"enum": [1]}},
    }
    part["properties"] = {"b": {"$ref": "#/definitions/part/definitions/b"}, "part": {"$ref": "#/definitions/part"}}
    schema: dict[str, Any] = {"definitions": {"part": part}, "properties": {"part": {"$ref": "#/definitions/part"}}}
    fsm = compiled(schema)
    for value in ({"b": 1}, {"b": 2}, {"part": {"b": 1}}, {"part": {"b": 2}}):
        text = json.dumps({"part": value})
        assert accepts(fsm, text) == is_valid(schema, text)
    with pytest.raises(InvalidSpecificationError, match="id"):
        compiled({**schema, "$schema": part["$schema"]})


@pytest.mark.parametrize(
    ("specification", "pointer"),
    [
        ({}, ""),
        ({"type": "nothing"}, ""),
        ({"type": "regex"}, "/pattern"),
        ({"type": "regex", "pattern": 3}, "/pattern"),
        ({"type": "choice", "choices": []}, "/choices"),
        ({"type": "choice", "choices": ["a", 1]}, "/choices/1"),
        ({"type": "json_schema", "schema": {}, "extra": True}, "/extra"),
        ({"type": "json_schema", "schema": {}, "strict": 1}, "/strict"),
    ],
)
def test_malformed_specifications_are_refused(specification: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidSpecificationError) as caught:
        compile_grammar(specification, bytes_vocabulary())
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"a", object()])
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSpecificationError):
        compiled({"const": value})
    with pytest.raises(InvalidSpecificationError):
        compiled({"minimum": value})


@pytest.mark.parametrize("schema", [{"const": "\ud800"}, {"enum": ["a", "\udc00b"]}, {"properties": {"\ud800": True}}])
def test_lone_surrogates_have_no_utf8(schema: Schema) -> None:
    with pytest.raises(GrammarError):
        compiled(schema)
    with pytest.raises(GrammarError):
        compile_grammar({"type": "choice", "choices": ["\ud800"]}, bytes_vocabulary())


@settings(PROPERTY, max_examples=200)
@given(
    st.recursive(
        st.sampled_from([None, True, False, 0, -1, 1.5, "", "string", "#", "^a"]),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems"]
                    + [
                        "minItems",
                        "maxItems",
                        "minLength",
                        "maxLength",
                        "pattern",
                        "minimum",
                        "maximum",
                        "anyOf",
                        "$ref",
                    ]
                    + [
                        "allOf",
                        "oneOf",
                        "not",
                        "if",
                        "then",
                        "format",
                        "multipleOf",
                        "uniqueItems",
                        "contains",
                        "$defs",
                    ]
                    + [
                        "patternProperties",
                        "propertyNames",
                        "minProperties",
                        "dependentRequired",
                        "dependencies",
                        "$id",
                    ]
                    + ["additionalItems", "$anchor", "$schema", "unevaluatedProperties"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    ).filter(lambda schema: isinstance(schema, dict))
)
def test_any_json_is_compiled_or_refused(schema: Any) -> None:
    """However malformed: an automaton without a dead end, or a typed error."""
    try:
        fsm = compiled(schema)
    except GrammarError as error:
        assert error.pointer is None or error.pointer == "" or error.pointer.startswith("/")
        return
    text = text_of(fsm.vocabulary, fsm.shortest_completion(fsm.initial_state))
    assert accepts(fsm, text)
    json.loads(text)


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("#/$defs/Adress", "is '#/$defs/Address' meant?"),
        ("#/components/schemas/Pet", "define it under `$defs`"),
        ("#none", "define it under `$defs`, or by an anchor"),
    ],
)
def test_a_reference_to_nothing_says_what_may_be_meant(reference: str, hint: str) -> None:
    schema = {"$defs": {"Address": {"type": "null"}}, "$ref": reference}
    with pytest.raises(InvalidSpecificationError, match=re.escape(hint)) as error:
        compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    assert error.value.pointer == "/$ref"

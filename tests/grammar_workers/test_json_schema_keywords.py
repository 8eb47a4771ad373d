"""JSON Schema keyword by keyword, with the texts that each accepts and rejects; `jsonschema` confirms both."""

from __future__ import annotations

from typing import Any

import pytest

from grammar_workers import GrammarOptions, TokenFSM, compile_grammar
from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError, UnsupportedFeatureError
from tests.grammar_workers.schemas import Schema, is_valid
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

DRAFT_4, DRAFT_7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"


def compiled(schema: Schema, **options: Any) -> TokenFSM:
    specification = {"type": "json_schema", "schema": schema}
    return compile_grammar(specification, bytes_vocabulary(), options=GrammarOptions(**options))


TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CARD = {
    "anyOf": [
        {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
        {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind", "y"]},
    ]
}
CASES: list[tuple[Schema, list[str], list[str]]] = [
    (
        True,
        ["1", "null", "true", '"a"', "[]", "{}", '{"a": [1, {"b": null}]}'],
        ["", "tru", "[1,2]", "{'a': 1}", "[1, ]"],
    ),
    ({}, ["1", "[null]"], ["nul"]),
    ({"type": "null"}, ["null"], ["true", "0", '"null"', "Null"]),
    ({"type": "boolean"}, ["true", "false"], ["0", "null", '"true"', "True"]),
    ({"type": ["integer", "null"]}, ["1", "null"], ["1.5", "true", '"1"']),
    ({"type": ["integer", "number"]}, ["1", "1.5"], ["true"]),
    ({"minimum": 3}, ["3", '"a"', "null", "[1]", '{"a": 1}'], ["2", "2.9"]),
    ({"maxLength": 1}, ['"a"', "12", "[]"], ['"ab"']),
    ({"minItems": 1}, ["[1]", "{}", "0"], ["[]"]),
    ({"required": ["a"]}, ['{"a": 1}', '{"a": 1, "b": 2}', "[]", "1"], ["{}", '{"b": 1}']),
    ({"properties": {"a": {"type": "null"}}}, ["1", "{}", '{"a": null}', '{"b": 1}'], ['{"a": 1}']),
    (
        {"type": "array", "items": {"type": "integer"}},
        ["[]", "[1]", "[1, 2, 3]"],
        ["[1.5]", "[1, null]", "[1 , 2]", "[,1]"],
    ),
    ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    (
        {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 3},
        ["[1, 1]", "[1, 1, 1]"],
        ["[1]", "[1, 1, 1, 1]"],
    ),
    (
        {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}]},
        ["[]", "[1]", "[1, 2]", "[1, 2, null]"],
        ["[2]", "[1, 1]"],
    ),
    ({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 0}}, ["[1]", "[1, 0, 0]"], ["[0]", "[1, 1]"]),
    ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, ["[]", "[1]"], ["[1, 1]"]),
    ({"type": "array", "prefixItems": [True, False], "items": True}, ["[]", "[1]"], ["[1, 1]", "[1, 1, 1]"]),
    ({"type": "array", "prefixItems": [{"const": 1}], "minItems": 3}, ["[1, 0, 0]"], ["[1]", "[1, 0]", "[0, 0, 0]"]),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a": 1}']),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        ["{}", '{"a": 1, "b": 2}'],
        ['{"a": null}', "{a: 1}"],
    ),
    (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": True}, "required": ["b"]},
        ['{"b": 2}', '{"a": 1, "b": 2}', '{"b": 2, "z": 1}', '{"a": 1, "b": 2, "c": 0, "d": 0}'],
        ["{}", '{"a": 1}', '{"a": 2, "b": 2}', '{"b": 2, "b": 2}', '{"z": 1}', '{"b": 2,"z": 1}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"const": 1}},
            "required": ["z", "a"],
            "additionalProperties": {"const": 0},
        },
        ['{"a": 1, "z": 0}', '{"a": 1, "z": 0, "y": 0}'],
        ['{"a": 1}', '{"z": 0}', '{"a": 1, "z": 1}'],
    ),
    ({"type": "object", "properties": {"a": False}}, ["{}", '{"b": 1}', '{"aa": 1}'], ['{"a": 1}']),
    ({"type": "object", "properties": {"": {"const": 1}}}, ["{}", '{"": 1}', '{"x": 2}'], ['{"": 2}']),
    ({"type": "object", "properties": {'a"\\\n': {"const": 1}}}, ['{"a\\"\\\\\\n": 1}'], ['{"a\\"\\\\\\n": 2}']),
    (
        {"enum": [1, "a", None, [1, "b"], {"a": {"b": 2}}]},
        ["1", '"a"', "null", '[1, "b"]', '{"a": {"b": 2}}'],
        ["2", "[1]", "{}"],
    ),
    ({"enum": [True]}, ["true"], ["1", "false"]),
    ({"enum": [[], {}]}, ["[]", "{}"], ["[1]", '{"a": 1}']),
    ({"enum": [{"a": 1, "b": 2}]}, ['{"a": 1, "b": 2}'], ['{"b": 2, "a": 1}', '{"a": 1}']),
    ({"enum": ["a", 1], "type": "string"}, ['"a"'], ["1"]),
    ({"const": "ab"}, ['"ab"'], ['"a"', '"abc"']),
    ({"const": None}, ["null"], ["0"]),
    ({"const": {"a": [1]}, "minimum": 5}, ['{"a": [1]}'], ['{"a": [2]}']),
    ({"const": [1, 2], "items": {"maximum": 1}, "type": ["array", "null"], "anyOf": [True]}, [], ["[1, 2]", "null"]),
    ({"anyOf": [{"type": "integer"}, {"minLength": 2}]}, ["1", '"ab"', "null", "1.5"], ['"a"']),
    ({"anyOf": [{"minimum": 5}, {"maximum": 1}], "type": "integer"}, ["5", "1", "0"], ["3", '"a"']),
    ({"type": "string", "anyOf": [{"pattern": "^a"}, {"maxLength": 1}]}, ['"ab"', '"b"', '""'], ['"bb"']),
    ({"anyOf": [False, {"const": 1}]}, ["1"], ["2"]),
    (
        {
            "anyOf": [
                {"type": "array", "items": {"const": 1}, "minItems": 2},
                {"type": "array", "items": {"maximum": 1}, "maxItems": 1},
            ]
        },
        ["[]", "[0]", "[1]", "[1, 1]", "[1, 1, 1]"],
        ["[0, 1]", "[1, 0]", "[2]"],
    ),
    (
        CARD,
        [
            '{"kind": "a", "x": 1}',
            '{"kind": "b", "y": "q"}',
            '{"kind": "a", "x": 1, "y": 2}',
            '{"kind": "b", "x": null, "y": ""}',
        ],
        [
            '{"kind": "a", "y": "q"}',
            '{"kind": "b", "x": 1}',
            '{"kind": "b", "x": 1, "y": 2}',
            '{"kind": "c", "x": 1}',
            "{}",
        ],
    ),
    (
        TREE,
        ['{"v": 1}', '{"v": 1, "kids": [{"v": 2}, {"v": 3, "kids": []}]}'],
        ['{"kids": []}', '{"v": 1, "kids": [{}]}', '{"v": 1, "kids": [1]}'],
    ),
    ({"items": {"$ref": "#"}, "type": "array"}, ["[]", "[[], [[]]]"], ["[1]", "[[1]]"]),
    ({"$defs": {"a/b~c d": {"const": 1}}, "$ref": "#/$defs/a~1b~0c%20d"}, ["1"], ["2"]),
    ({"$ref": "#/$defs/one", "$defs": {"one": {"$ref": "#/$defs/two"}, "two": {"const": 2}}}, ["2"], ["1"]),
    ({"$ref": "#/$defs/n", "minimum": 2, "$defs": {"n": {"type": "integer"}}}, ["2"], ["1", "2.5", '"a"']),
    (
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"const": 1}}},
        ['{"a": 1}', '{"a": 1, "b": 1}'],
        ['{"a": 2}'],
    ),
    ({"anyOf": [{"const": 0}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]}, ["0", "[0, 0]"], ["[[0]]"]),
    # Parts that nothing satisfies: an optional property is dropped, an array stays empty.
    ({"type": "object", "properties": {"a": {"enum": []}, "b": {"const": 1}}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    ({"type": "array", "items": {"type": "integer", "minimum": 2, "maximum": 1}}, ["[]"], ["[1]", "[2]"]),
    (
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        ["null", '{"a": {"a": null}}'],
        ["{}"],
    ),
    (
        {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"const": 0}]},
        ['{"a": 0}', "0"],
        ["{}"],
    ),
    # Annotations and unknown keywords assert nothing.
    (
        {"title": "t", "description": 1, "default": 5, "x-unknown": {"type": 3}, "const": 1, "examples": [2]},
        ["1"],
        ["2", "5"],
    ),
]


@pytest.mark.parametrize(("schema", "accepted", "rejected"), CASES)
def test_keyword(schema: Schema, accepted: list[str], rejected: list[str]) -> None:
    if not accepted:
        with pytest.raises(UnsatisfiableError):
            compiled(schema)
        return
    fsm = compiled(schema)
    for text in accepted:
        assert accepts(fsm, text), text
        assert is_valid(schema, text), text
    for text in rejected:
        assert not accepts(fsm, text), text


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "string", "const": 1},
        {"anyOf": [False, {"type": "string", "enum": [1]}]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {
            "$defs": {"a": {"required": ["b"], "type": "object", "properties": {"b": {"$ref": "#"}}}},
            "$ref": "#/$defs/a",
        },
    ],
)
def test_schemas_that_nothing_satisfies(schema: Schema) -> None:
    with pytest.raises(UnsatisfiableError):
        compiled(schema)


# -- no assertion is ignored ---------------------------------------------------------------------------------------

ASSERTIONS: list[tuple[str, dict[str, Any], str, str]] = [
    ("allOf", {"allOf": [{"minimum": 2}, {"maximum": 3}]}, "2", "4"),
    ("oneOf", {"oneOf": [{"minimum": 2}, {"maximum": 3}], "type": "integer"}, "1", "2"),
    ("not", {"not": {"type": "string"}}, "1", '"a"'),
    ("if", {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": "string"}}, "2", "1"),
    ("dependentRequired", {"dependentRequired": {"a": ["b"]}}, '{"a": 1, "b": 1}', '{"a": 1}'),
    ("dependentSchemas", {"dependentSchemas": {"a": {"required": ["b"]}}}, '{"b": 1}', '{"a": 1}'),
    ("dependencies", {"dependencies": {"a": ["b"]}, "$schema": DRAFT_7}, "{}", '{"a": 1}'),
    ("patternProperties", {"patternProperties": {"^a": {"type": "integer"}}}, '{"ab": 1}', '{"ab": ""}'),
    ("propertyNames", {"propertyNames": {"maxLength": 1}}, '{"a": 1}', '{"ab": 1}'),
    ("minProperties", {"properties": {"a": {}, "b": {}}, "minProperties": 2}, '{"a": 1, "b": 1}', '{"a": 1}'),
    ("maxProperties", {"maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 1}'),
    ("contains", {"contains": {"const": 1}}, "[0, 1]", "[0]"),
    ("minContains", {"contains": {"const": 1}, "minContains": 2}, "[1, 0, 1]", "[0, 1]"),
    ("maxContains", {"contains": {"const": 1}, "maxContains": 1}, "[1, 0]", "[1, 1]"),
    ("uniqueItems", {"uniqueItems": True, "items": {"enum": [1, 2]}}, "[1, 2]", "[1, 1]"),
    ("multipleOf", {"multipleOf": 3}, "9", "10"),
    ("format", {"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-29"'),
    ("format", {"type": "string", "format": "ipv4"}, '"127.0.0.1"', '"127.0.0.256"'),
    ("additionalItems", {"items": [{"const": 1}], "additionalItems": False, "$schema": DRAFT_7}, "[1]", "[1, 2]"),
    ("items", {"items": [{"const": 1}], "$schema": DRAFT_7}, "[1]", "[2]"),
    ("unevaluatedProperties", {"properties": {"a": True}, "unevaluatedProperties": False}, '{"a": 1}', '{"b": 1}'),
    ("unevaluatedItems", {"prefixItems": [True], "unevaluatedItems": False}, "[1]", "[1, 1]"),
    ("unevaluatedItems", {"dependentSchemas": {"a": {"items": True}}, "unevaluatedItems": False}, "[]", "[1]"),
    ("$anchor", {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "const": 1}}}, "1", "2"),
    ("$dynamicRef", {"$dynamicRef": "#here", "$defs": {"a": {"$dynamicAnchor": "here", "const": 1}}}, "1", "2"),
    ("$ref", {"$ref": "item", "$id": "http://example.com/root", "$defs": {"a": {"$id": "item", "const": 1}}}, "1", "2"),
    (
        "$ref",
        {"$schema": DRAFT_7, "$ref": "#/definitions/a", "minimum": 5, "definitions": {"a": {"type": "integer"}}},
        "1",
        '"a"',
    ),
    ("exclusiveMinimum", {"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True}, "2", "1"),
]
"""(keyword, schema, a valid text, an invalid one)."""


@pytest.mark.parametrize(("keyword", "schema", "valid", "invalid"), ASSERTIONS)
def test_an_assertion_is_enforced_or_refused(keyword: str, schema: dict[str, Any], valid: str, invalid: str) -> None:
    """Never ignored, neither at the root nor below it; a refusal names the place."""
    assert is_valid(schema, valid)
    assert not is_valid(schema, invalid)
    # Identifiers and drafts belong to a root.
    nested = {"properties": {"x": schema}, "$defs": schema.get("$defs", {})}
    for prefix, outer in [("", schema)] if {"$id", "$schema"} & schema.keys() else [("", schema), ('{"x": ', nested)]:
        try:
            fsm = compiled(outer)
        except (UnsupportedFeatureError, InvalidSpecificationError) as error:
            assert error.pointer is not None
            assert any(f"/{name}" in error.pointer for name in schema)
            continue
        closing = "}" if prefix else ""
        assert accepts(fsm, prefix + valid + closing)
        assert not accepts(fsm, prefix + invalid + closing)


@pytest.mark.parametrize(
    "schema",
    [
        {
            "patternProperties": {".*": {"type": ["integer", "null"]}},
            "properties": {"a": {"type": ["integer", "string"]}},
        },
        {"patternProperties": {"^x*": {"type": "integer"}, "b$": {"minimum": 2}}, "properties": {"a": {}}},
        {"patternProperties": {"": False}, "properties": {"a": True}},
        {"patternProperties": {"y*": {"minimum": 2}}, "additionalProperties": {"type": "null"}},
        {"not": {"patternProperties": {".*": {"type": "integer"}}}, "properties": {"a": {"enum": [1, "s"]}}},
        {"propertyNames": {"pattern": "b*"}, "patternProperties": {"x?": {"type": "integer"}, "^[ab]": {"minimum": 2}}},
    ],
)
@pytest.mark.parametrize("order", ["declared", "any"])
def test_patterns_that_every_name_matches(schema: dict[str, Any], order: str) -> None:
    schema = {"type": "object", **schema}
    fsm = compiled(schema, property_order=order)
    values = ["1", "3", "null", '"s"']
    objects = ["{}", *(f'{{"{name}": {value}}}' for name in ("a", "b", "ab") for value in values)]
    objects += [f'{{"a": {one}, "b": {other}}}' for one in values for other in values]
    for text in objects:
        assert accepts(fsm, text) == is_valid(schema, text), text


def test_a_pattern_that_every_text_matches_leaves_lengths_as_they_are() -> None:
    free = compiled({"type": "string", "maxLength": 500_000})
    for pattern in (".*", "", r"^[\s\S]*$"):
        assert compiled({"type": "string", "maxLength": 500_000, "pattern": pattern}).nbytes == free.nbytes


def test_a_meta_schema_that_names_itself_selects_its_vocabularies() -> None:
    uri = "https://example.com/meta"
    vocabularies = {f"https://json-schema.org/draft/2020-12/vocab/{name}": True for name in ("core", "applicator")}
    specification = {"type": "json_schema", "schema": {"$schema": uri, "type": "integer"}}
    meta_schema = {"$id": uri, "$schema": uri, "$vocabulary": vocabularies}
    fsm = compile_grammar(specification, bytes_vocabulary(), resources={uri: meta_schema})
    assert accepts(fsm, b'"text"')  # `type` is a keyword of another vocabulary

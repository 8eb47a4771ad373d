"""`on_unsupported: report`: what cannot be enforced is named, all else is enforced, nothing valid is forbidden."""

from __future__ import annotations

import decimal
import json
import random
from typing import Any

import jsonschema
import pytest
import referencing
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import GrammarOptions, TokenFSM, compile_grammar, grammar_key
from grammar_workers.errors import GrammarError, LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.schemas import Schema, exact, orders, schemas, values_near, write
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, random_walk, text_of

REPORT = GrammarOptions(on_unsupported="report")
ABSENT = "https://example.com/absent"
AT_HAND = {ABSENT: {"properties": {"a": {"type": "string"}}, "maxProperties": 2, "maxItems": 2, "maximum": 9}}
"""What the judge knows and the compiler does not."""
TWICE = r"^(a|b)\1$"
TWINS = {"type": "array", "items": {"type": "string", "pattern": TWICE}}


def compiled(schema: Schema, **options: Any) -> TokenFSM:
    specification = {"type": "json_schema", "schema": schema}
    return compile_grammar(specification, bytes_vocabulary(), options=REPORT.model_copy(update=options))


def reported(schema: Schema, **options: Any) -> list[str]:
    return [keyword["pointer"] for keyword in compiled(schema, **options).unenforced]


def without(schema: Schema, pointers: list[str]) -> Schema:
    """The schema with the keywords at these pointers taken away; what was `oneOf` is `anyOf`."""
    schema = json.loads(json.dumps(schema))
    for pointer in sorted(pointers, key=len, reverse=True):
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        holder: Any = schema
        for part in way:
            holder = holder[int(part) if isinstance(holder, list) else part]
        value = holder.pop(last)
        if last == "oneOf":
            holder["allOf"] = [*holder.get("allOf", []), {"anyOf": value}]
    return schema


def is_valid(schema: Schema, text: str) -> bool:
    registry = referencing.Registry().with_contents(
        AT_HAND.items(), default_specification=referencing.jsonschema.DRAFT202012
    )
    with decimal.localcontext(prec=400):
        kind = jsonschema.Draft202012Validator
        return bool(kind(exact(json.dumps(schema)), registry=registry).is_valid(exact(text)))


@st.composite
def schemas_and_values(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    """Random schemas in which keywords that are not supported stand anywhere."""
    schema = draw(schemas(wild=True).filter(lambda schema: isinstance(schema, dict)))
    schema = _spoiled(draw, json.loads(json.dumps(schema)), 0)
    return schema, draw(st.lists(values_near(_known(schema), _known(schema)), min_size=4, max_size=4))


def _spoiled(draw: st.DrawFn, schema: Any, depth: int) -> Any:
    if not isinstance(schema, dict):
        return schema
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties", "$defs", "dependentSchemas"):
            schema[keyword] = {name: _spoiled(draw, part, depth + 1) for name, part in value.items()}
        elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            schema[keyword] = [_spoiled(draw, part, depth + 1) for part in value]
        elif keyword not in ("const", "enum", "dependentRequired"):
            schema[keyword] = _spoiled(draw, value, depth + 1)
    additions: list[dict[str, Any]] = [
        {"pattern": TWICE},
        {"patternProperties": {**schema.get("patternProperties", {}), TWICE: {"type": "integer"}, "^(é)\\1": False}},
        {"uniqueItems": True},
        {"minProperties": 6},
        {"not": {"properties": {"b": {"pattern": TWICE}}, "required": ["b"]}},
    ]
    if "$ref" not in schema:
        additions.append({"$ref": ABSENT})
    if draw(st.integers(0, 3)) == 0:
        schema |= draw(st.sampled_from(additions))
    return schema


def _known(schema: Any) -> Any:
    """The schema without references to what only the judge knows."""
    if isinstance(schema, dict):
        return {name: _known(value) for name, value in schema.items() if value != ABSENT}
    return [_known(part) for part in schema] if isinstance(schema, list) else schema


_SIMPLE: list[Schema] = [True, False, {"type": "string"}, {"type": "array"}, {"minItems": 2}, {"required": ["b"]}]
_HARD: list[Schema] = [{"pattern": TWICE}, TWINS, {"uniqueItems": True}, {"$ref": ABSENT}, {"minProperties": 4}]


def small_schema(rng: random.Random) -> Schema:
    """A schema about a handful of values; inner ones stand where less is more, or where what they evaluate matters."""
    definitions: dict[str, Any] = {}

    def around(depth: int) -> dict[str, Any]:
        def inner() -> Schema:
            return around(depth - 1) if depth and rng.random() < 0.7 else rng.choice(_HARD)

        def part() -> Schema:
            return inner() if rng.random() < 0.5 else rng.choice(_SIMPLE)

        def defined() -> Schema:
            name = str(len(definitions))
            definitions[name] = True
            definitions[name] = inner()
            return {"$ref": f"#/$defs/{name}"}

        schema: dict[str, Any] = rng.choice(
            [
                lambda: {"not": inner()},
                lambda: {"not": defined()},
                lambda: {"if": inner(), "then": part(), "else": part()},
                lambda: {"if": part(), "then": inner(), "else": part()},
                lambda: {"oneOf": [inner(), part()]},
                lambda: {"oneOf": [part(), defined()]},
                lambda: {"anyOf": [part(), inner()]},
                lambda: {"contains": inner(), "minContains": rng.randrange(2), "maxContains": rng.randrange(3)},
                lambda: {"items": inner()},
                lambda: {"properties": {"a": inner()}},
                lambda: {"dependentSchemas": {"a": inner()}},
                lambda: defined(),
                lambda: {"patternProperties": {TWICE: part()}, "additionalProperties": part()},
            ]
        )()
        return {**schema, **rng.choice([{}, {}, {"unevaluatedProperties": False}, {"unevaluatedItems": False}])}

    return {**around(2), "$defs": definitions}


_TEXTS = ["aa", "ab", 1]
_ARRAYS = [[], ["aa"], ["ab"], ["aa", "aa"], ["aa", "ab"], ["ab", "ab"], [1], [["aa", "aa"]], [{"a": "aa"}]]
_PARTS = [*_TEXTS, *_ARRAYS[:5], {"a": "aa"}]
_OBJECTS = [{}, *({name: part} for name in ("a", "b", "aa") for part in _PARTS), {"a": "ab", "b": 1}, {"b": 1, "aa": 1}]
VALUES = [*_TEXTS, *_ARRAYS, *_OBJECTS]


def check(schema: Schema, values: list[Any], rng: random.Random) -> None:
    """What `jsonschema` says of the schema without what is named, and of the whole."""
    try:
        fsm = compiled(schema)
    except LimitExceededError:
        return
    except UnsupportedFeatureError as error:
        assert "no value is certain" in error.message
        return
    except UnsatisfiableError:
        assert not any(is_valid(schema, write(value)) for value in values)
        return
    left = without(schema, [keyword["pointer"] for keyword in fsm.unenforced])
    for _ in range(4):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng, longest=rng.randrange(25))).decode()
        assert is_valid(left, text), text
    for value in values:
        accepted = any(accepts(fsm, write(ordered)) for ordered in orders(value))
        assert accepted or not is_valid(schema, write(value)), write(value)
        assert accepted == is_valid(left, write(value)), write(value)


@settings(PROPERTY, max_examples=100)
@given(schemas_and_values(), st.integers(0, 1 << 30).map(random.Random))
def test_all_else_is_enforced_and_nothing_valid_is_forbidden(
    case: tuple[Schema, list[Any]], rng: random.Random
) -> None:
    check(*case, rng)


@pytest.mark.parametrize("seed", range(8))
def test_what_stands_around_is_not_stricter_for_it(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        check(small_schema(rng), VALUES, rng)


@pytest.mark.parametrize(
    ("schema", "pointers"),
    [
        ({"type": "integer"}, []),
        (TWINS, ["/items/pattern"]),
        ({"properties": {"a/b": TWINS}}, ["/properties/a~1b/items/pattern"]),
        ({"pattern": TWICE, "minLength": 2}, ["/pattern"]),
        ({"type": "object", "minProperties": 7}, []),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, []),
        ({"not": {"uniqueItems": True}}, ["/not"]),
        ({"properties": {"a": {"$ref": ABSENT}}, "unevaluatedProperties": False}, ["/properties/a/$ref"]),
        # Below these, to ask less of a part would be to ask more of the whole.
        ({"not": {"items": {"not": TWINS}}}, ["/not"]),
        ({"if": TWINS, "then": {"minItems": 1}}, ["/if"]),
        ({"if": {"type": "array"}, "then": TWINS}, ["/then/items/pattern"]),
        ({"oneOf": [TWINS, {"type": "string"}]}, ["/oneOf", "/oneOf/0/items/pattern"]),
        ({"anyOf": [TWINS, {"type": "string"}]}, ["/anyOf/0/items/pattern"]),
        ({"contains": TWINS, "minContains": 2}, ["/contains/items/pattern"]),
        ({"contains": TWINS, "maxContains": 2}, ["/contains/items/pattern", "/maxContains"]),
        (
            {"patternProperties": {TWICE: {}, "^c": TWINS}, "additionalProperties": False},
            [f"/patternProperties/{TWICE}", "/additionalProperties", "/patternProperties/^c/items/pattern"],
        ),
        ({"$ref": ABSENT, "unevaluatedProperties": False}, ["/$ref", "/unevaluatedProperties"]),
        ({"anyOf": [{"$ref": ABSENT}], "unevaluatedItems": False}, ["/anyOf/0/$ref", "/unevaluatedItems"]),
        (
            {"allOf": [{"if": {"properties": {"a": TWINS}}, "then": {"properties": {"b": {}}}}]}
            | {"unevaluatedProperties": False},
            ["/allOf/0/if", "/unevaluatedProperties"],
        ),
        # Through references, also such as are read later.
        (
            {"$defs": {"u": {"items": {"$ref": "#/$defs/v"}}, "v": TWINS}, "not": {"$ref": "#/$defs/u"}},
            ["/not"],
        ),
        (
            {"$defs": {"u": TWINS}, "properties": {"a": {"$ref": "#/$defs/u"}, "b": {"not": {"$ref": "#/$defs/u"}}}},
            ["/$defs/u/items/pattern", "/properties/b/not"],
        ),
        (
            {"$defs": {"d": {"$ref": ABSENT}}}
            | {"properties": {name: {"$ref": "#/$defs/d", "unevaluatedProperties": False} for name in "ab"}},
            ["/$defs/d/$ref", "/properties/a/unevaluatedProperties", "/properties/b/unevaluatedProperties"],
        ),
        # A pointer within a resource of its own counts from the document.
        (
            {"$ref": "inner", "$defs": {"i": {"$id": "inner", "$ref": "#/$defs/u", "$defs": {"u": TWINS}}}},
            ["/$defs/i/$defs/u/items/pattern"],
        ),
    ],
)
def test_what_is_named(schema: Schema, pointers: list[str]) -> None:
    assert sorted(reported(schema)) == sorted(pointers)
    if pointers:
        with pytest.raises(UnsupportedFeatureError):
            compiled(schema, on_unsupported="reject")


def test_one_of_that_is_not_exclusive_is_still_any_of() -> None:
    fsm = compiled({"oneOf": [TWINS, {"type": "array", "items": {"type": "string"}, "maxItems": 1}]})
    assert accepts(fsm, '["a"]') and accepts(fsm, '["a", "a"]') and not accepts(fsm, "[1]") and not accepts(fsm, "1")


def test_undeclared_properties_are_not_closed_beside_an_unknown_pattern() -> None:
    fsm = compiled({"properties": {"c": {}}, "patternProperties": {TWICE: {}}}, additional_properties=False)
    assert accepts(fsm, '{"aa": 1}')


def test_what_is_malformed_is_still_refused() -> None:
    for schema in ({"pattern": "("}, {"uniqueItems": True, "minItems": -1}, {"$ref": "#/nowhere"}):
        with pytest.raises(GrammarError) as caught:
            compiled(schema)
        assert caught.value.code == "invalid_grammar"


def test_more_than_an_answer_can_name_is_refused() -> None:
    with pytest.raises(LimitExceededError, match="too many to name"):
        compiled({"properties": {f"a{number:0200}": TWINS for number in range(500)}})


def test_places_in_a_larger_specification() -> None:
    parts = [{"type": "json_schema", "schema": schema} for schema in ({"type": "array"}, TWINS)]
    both = {"type": "all_of", "specifications": parts}
    fsm = compile_grammar(both, bytes_vocabulary(), options=REPORT)
    assert [keyword["pointer"] for keyword in fsm.unenforced] == ["/specifications/1/schema/items/pattern"]


def test_the_artifact_says_it() -> None:
    fsm = compiled(TWINS)
    again = TokenFSM.from_bytes(fsm.to_bytes(), bytes_vocabulary())
    assert again.unenforced == fsm.unenforced and "back-reference" in fsm.unenforced[0]["reason"]


def test_only_what_is_asked_for_has_another_key() -> None:
    """The keys of grammars that are stored already."""
    specification = {"type": "json_schema", "schema": TWINS}
    assert "on_unsupported" not in GrammarOptions().key_text() and "on_unsupported" in REPORT.key_text()
    assert grammar_key(specification, "fp", REPORT) != grammar_key(specification, "fp")

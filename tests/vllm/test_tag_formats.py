"""Our structural tags against XGrammar's: the same language, and the same masks where both are exact."""

from __future__ import annotations

import random
import typing
from typing import Any

import pytest
import xgrammar.structural_tag
from pydantic import BaseModel

from grammar_workers import tag_formats
from tests.vllm.tag_formats import END, TOKENS, Format, Pair, Writer

FORMATS = 400
WALKS, STEPS = 4, 12

OBJECT = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
JSON = {"type": "json_schema", "json_schema": OBJECT}
ANY = {"type": "any_text"}
TOKEN = TOKENS.index(b"<a>")
OTHER = TOKENS.index(b"</a>")


def const(value: str) -> Format:
    return {"type": "const_string", "value": value}


def tag(begin: Any, content: Format, end: Any) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def token(number: int) -> Format:
    return {"type": "token", "token": number}


def test_every_class_and_field_of_the_language_is_known() -> None:
    theirs = {
        name: model
        for name, model in vars(xgrammar.structural_tag).items()
        if isinstance(model, type) and issubclass(model, BaseModel) and name.endswith("Format")
    }
    ours = {
        model.model_fields["type"].default: model for model in typing.get_args(typing.get_args(tag_formats.Format)[0])
    }
    assert len(theirs) >= 21
    for model in theirs.values():
        kind = model.model_fields["type"].default
        assert kind in ours, f"{kind} is a format that we do not know"
        assert set(model.model_fields) <= set(ours[kind].model_fields), kind
    (styles,) = (typing.get_args(theirs["JSONSchemaFormat"].model_fields["style"].annotation),)
    assert set(styles) <= set(typing.get_args(tag_formats.Style))


ARGUMENTS = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "ab": {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False},
        "x": {"type": "array", "items": {"enum": [0, "a"]}},
    },
    "required": ["a", "ab"],
    "additionalProperties": False,
}
STYLES = ("qwen_xml", "minimax_xml", "deepseek_xml", "deepseek_v4_1_xml", "glm_xml", "kimi_k3_xml")

NESTED = {
    "type": "object",
    "properties": {
        "a b": {"type": "string"},
        "b": {"$ref": "#/$defs/number"},
        "n": {
            "type": "object",
            "properties": {
                "a": {"type": ["null", "boolean"]},
                "x": {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
            },
            "required": ["a"],
            "additionalProperties": False,
        },
        "x": {"type": "array", "items": {"$ref": "#/$defs/number"}, "minItems": 1},
        "e": {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": False},
    },
    "required": ["a b", "n"],
    "additionalProperties": False,
    "$defs": {"number": {"type": "integer"}},
}

EXAMPLES: list[Format] = [
    {"type": "json_schema", "json_schema": NESTED, "style": "cohere_xml"},
    {"type": "json_schema", "json_schema": NESTED, "style": "minimax_m3_xml"},
    *({"type": "json_schema", "json_schema": ARGUMENTS, "style": style} for style in STYLES),
    {"type": "qwen_xml_parameter", "json_schema": ARGUMENTS},
    const("Let us see."),
    JSON,
    {**JSON, "max_whitespace_cnt": 2},
    {"type": "grammar", "grammar": 'root ::= ("yes" | "no")'},
    {"type": "regex", "pattern": "[A-Z]{3}-[0-9]{4}"},
    {"type": "any_text", "excludes": ["<f="]},
    tag("<think>", {"type": "any_text", "excludes": ["</think>"], "max_chars": 512}, "</think>"),
    tag("<", {"type": "any_text", "max_tokens": 3}, ">"),
    tag(token(TOKEN), {"type": "any_text", "max_tokens": 3, "max_chars": 5}, token(OTHER)),
    {"type": "sequence", "elements": [const("Answer: "), JSON]},
    {"type": "or", "elements": [const("yes"), const("no")]},
    {"type": "optional", "content": const("first ")},
    {"type": "plus", "content": const("item")},
    {"type": "star", "content": const("x")},
    {"type": "repeat", "min": 1, "max": 3, "content": const("item")},
    tag("<r>", JSON, ["</r>", "</a>"]),
    {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [tag("<f=a>", JSON, "</f>"), tag("<f=b>", ANY, "</f>")],
        "at_least_one": False,
        "stop_after_first": False,
    },
    {"type": "tags_with_separator", "tags": [tag("<i>", JSON, "</i>")], "separator": ","},
    {"type": "dispatch", "rules": [["<f=a>", JSON], ["<f=b>", const("x")]], "loop": True, "excludes": ["</e>"]},
    tag("<r>", {"type": "dispatch", "rules": [["<f>", JSON]], "loop": True, "excludes": ["</r>"]}, "</r>"),
    token(42),
    {"type": "token", "token": "</a>"},
    {"type": "exclude_token", "exclude_tokens": [TOKEN, "</a>"]},
    {"type": "any_tokens", "exclude_tokens": ["</a>"]},
    {"type": "any_tokens", "exclude_tokens": [TOKEN], "max_tokens": 2},
    {
        "type": "token_triggered_tags",
        "trigger_tokens": ["<a>"],
        "tags": [tag(token(TOKEN), JSON, token(OTHER))],
        "exclude_tokens": [TOKENS.index(b"ab")],
        "at_least_one": False,
        "stop_after_first": False,
    },
    {"type": "token_dispatch", "rules": [[TOKEN, const("x")], ["</a>", JSON]], "loop": True, "exclude_tokens": ["ab"]},
    {
        "type": "sequence",
        "elements": [
            tag(token(TOKEN), {"type": "any_tokens"}, token(OTHER)),
            {
                "type": "token_triggered_tags",
                "trigger_tokens": [TOKEN],
                "tags": [tag(token(TOKEN), JSON, token(OTHER))],
                "at_least_one": True,
            },
        ],
    },
    {
        "type": "sequence",
        "elements": [
            tag("<think>", ANY, "</think>"),
            {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag("<f=a>", JSON, "</f>")]},
        ],
    },
]
"""One example of each form, as its documentation shows it, and its recipes."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["type"])
def test_documented_forms_have_the_same_masks(example: Format) -> None:
    pair = Pair(example)
    assert pair.refusals == [None, None]
    rng = random.Random(1)
    for _ in range(20):
        assert pair.walk(rng, 30) is None


def test_random_formats_have_the_same_masks() -> None:
    same = refused = 0
    for number in range(FORMATS):
        rng = random.Random(number)
        written = Writer(rng).format(rng.randint(0, 3))
        pair = Pair(written)
        if pair.ours is None:
            # What is refused is said to be, never compiled to something else.
            assert (pair.refusals[0] or "").startswith("UnsupportedFeatureError"), (written, pair.refusals)
            refused += 1
            continue
        assert pair.theirs is not None, (written, pair.refusals)
        for _ in range(WALKS):
            assert (difference := pair.walk(rng, STEPS)) is None, (written, difference)
        same += 1
    assert same > 10 * refused


DIFFERENT: list[tuple[Format, str, list[bytes], list[bytes]]] = [
    # An excluded text that holds a trigger: XGrammar lets the text go on towards it although the trigger has come.
    (
        {
            "type": "triggered_tags",
            "triggers": ["<"],
            "tags": [tag("<1", const(""), "")],
            "excludes": ["<ba"],
        },
        "<",
        [],
        [b"b"],
    ),
    # The last token that text may have may begin its end: XGrammar lets the text go on instead, with one token more.
    (tag("<", {"type": "any_text", "max_tokens": 1}, "</"), "<b<", [], [b"<"]),
    # Two alternatives of one token each: XGrammar forbids what either excludes.
    (
        {
            "type": "or",
            "elements": [
                {"type": "exclude_token", "exclude_tokens": [TOKEN]},
                {"type": "exclude_token", "exclude_tokens": []},
            ],
        },
        "",
        [b"<a>"],
        [],
    ),
    # A repeated token: XGrammar forgets what is excluded.
    (
        {"type": "repeat", "min": 2, "max": 3, "content": {"type": "exclude_token", "exclude_tokens": [TOKEN]}},
        "",
        [],
        [b"<a>"],
    ),
    # Repeated text without a character of several bytes: XGrammar lets two repetitions have a part of it each.
    ({"type": "plus", "content": {"type": "any_text", "excludes": ["é"]}}, "", [], ["é".encode(), "éa".encode()]),
]
"""Minimal cases in which XGrammar 0.2.8 is wrong: the text so far, and what only we and only they allow then."""


@pytest.mark.parametrize(("written", "text", "ours", "theirs"), DIFFERENT)
def test_known_differences(written: Format, text: str, ours: list[bytes], theirs: list[bytes]) -> None:
    pair = Pair(written)
    assert pair.refusals == [None, None]
    mine, yours = pair.masks(text.encode())
    assert sorted(TOKENS[one] for one in mine - yours - {END}) == sorted(ours)
    assert sorted(TOKENS[one] for one in yours - mine - {END}) == sorted(theirs)

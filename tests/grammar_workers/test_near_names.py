"""Names that may be meant: those one edit away, and no others."""

from __future__ import annotations

import random

import pytest

from grammar_workers.languages.json_schema.read.keywords import NEAR_KEYWORDS
from grammar_workers.near_names import NearNames
from tests.grammar_workers.test_json_schema_errors import compiled


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maxLenght", "maxLength"),
        ("requierd", "required"),
        ("minlength", "minLength"),
        ("patern", "pattern"),
        ("enumm", "enum"),
        ("example", None),
        ("x-order", None),
        ("ifs", None),
        ("maxLength" * 10_000, None),
        ("", None),
    ],
)
def test_a_mistyped_keyword(name: str, meant: str | None) -> None:
    assert NEAR_KEYWORDS.find(name) == meant


def test_each_single_edit_is_found() -> None:
    rng = random.Random(1)
    known = NearNames(["additionalProperties"])
    for _ in range(500):
        name = list("additionalProperties")
        place, letter = rng.randrange(len(name) - 1), rng.choice("abcxyz")
        match rng.randrange(4):
            case 0:
                del name[place]
            case 1:
                name.insert(place, letter)
            case 2:
                name[place] = letter
            case _:
                name[place : place + 2] = reversed(name[place : place + 2])
        assert known.find("".join(name)) == "additionalProperties"
    assert known.find("additionPropertys") is None


def test_the_note_of_an_ignored_keyword_says_which_may_be_meant() -> None:
    notes = compiled({"properties": {"a": {"type": "string", "maxLenght": 4}}, "x-a": 1}).notes
    assert notes == ["#: ignored keyword 'x-a'", "/properties/a: ignored keyword 'maxLenght' (is 'maxLength' meant?)"]


def test_a_keyword_of_another_draft_is_not_said_to_be_meant() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": []}
    assert compiled(schema).notes == ["#: ignored keyword 'prefixItems'"]

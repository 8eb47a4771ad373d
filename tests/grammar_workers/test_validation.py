"""Places of errors, and the bounds of what pydantic looks at."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, StrictInt, Tag, TypeAdapter, ValidationError

from grammar_workers.strict_json import Place
from grammar_workers.validation import FailFast, StrictModel, at_most, by_json_type, place_of, pointer


class Text(StrictModel):
    type: Literal["text"]
    text: int


class Regex(StrictModel):
    type: Literal["regex"]
    regex: int
    again: Annotated[list[Part], FailFast()] = Field([], max_length=2)


Part = Annotated[Text | Regex, Field(discriminator="type")]


class Body(StrictModel):
    part: Part | None = Field(None, alias="text")
    either: (
        Annotated[Annotated[str, Tag("string")] | Annotated[list[Text], FailFast(), Tag("array")], by_json_type("this")]
        | None
    ) = None
    pairs: list[tuple[str, StrictInt]] = Field([])
    numbers: Annotated[dict[int, StrictInt], at_most(3)] = Field({})


def first(value: Any) -> tuple[Place, str]:
    """Place and type of the first error."""
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(value)
    error = caught.value.errors()[0]
    return place_of(Body.__pydantic_core_schema__, error["loc"])[0], error["type"]


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        (5, (), "model_type"),
        ({"text": {"type": "text", "text": "x"}}, ("text", "text"), "int_parsing"),
        ({"text": {"type": "regex", "regex": 1, "text": 1}}, ("text", "text"), "extra_forbidden"),
        ({"text": {"type": "regex"}}, ("text", "regex"), "missing"),
        ({"text": {"type": "regex", "regex": {"regex": 1}}}, ("text", "regex"), "int_type"),
        ({"text": {"type": "regex", "regex": 1, "again": [{"type": "text"}]}}, ("text", "again", 0, "text"), "missing"),
        ({"text": {"type": "other"}}, ("text",), "union_tag_invalid"),
        ({"text": []}, ("text",), "model_attributes_type"),
        ({"either": 5}, ("either",), "wrong_type"),
        ({"either": [{"type": "text", "text": None}]}, ("either", 0, "text"), "int_type"),
        ({"pairs": [["a", 1], ["a", "b"]]}, ("pairs", 1, 1), "int_type"),
        ({"pairs": [["a"]]}, ("pairs", 0, 1), "missing"),
        ({"numbers": {"x": 1}}, ("numbers", "x"), "int_parsing"),
        ({"numbers": {"5": "x"}}, ("numbers", "5"), "int_type"),
        ({"numbers": {"1": 1, "2": 2, "3": 3, "4": "x"}}, ("numbers",), "too_many"),
        ({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, (), "unknown_field"),
    ],
)
def test_places_have_no_names_of_types(value: Any, place: Place, kind: str) -> None:
    assert first(value) == (place, kind)


def test_names_in_places_of_specifications_are_those_of_the_client() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Part)
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python({"type": "regex", "regex": 1, "again": [{"type": "regex", "regex": ""}]})
    place, wanted = place_of(adapter.core_schema, caught.value.errors()[0]["loc"])
    assert pointer(place) == "/again/0/regex" and wanted["type"] == "int"


def test_pointers_escape() -> None:
    assert pointer(("a/b", 0, "~")) == "/a~1b/0/~0" and pointer(()) == ""

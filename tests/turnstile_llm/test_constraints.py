"""Constraints as Python programmers have them, and the specifications that they become."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

import turnstile_llm
from grammar_workers import compile_grammar
from grammar_workers.errors import InvalidSpecificationError, UnsupportedFeatureError
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary
from turnstile_llm import GBNF, AllOf, BannedWords, Choice, Lark, Regex, StructuralTag, compile
from turnstile_llm.constraints import specification_of


class Person(BaseModel):
    name: str
    age: Annotated[int, Field(ge=0, le=150)]


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Options(TypedDict):
    verbose: bool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CASES: list[tuple[Any, list[str], list[str]]] = [
    (Person, ['{"name": "a", "age": 3}'], ['{"name": "a", "age": 151}', '{"name": "a"}']),
    (TypeAdapter(list[Person]), ['[{"name": "a", "age": 3}]', "[]"], ['{"name": "a", "age": 3}']),
    (Point, ['{"x": 1, "y": 2}'], ['{"x": 1}']),
    (Options, ['{"verbose": true}'], ['{"verbose": 1}']),
    (Color, ['"red"', '"blue"'], ['"green"', "red"]),
    (Literal["yes", 2], ['"yes"', "2"], ['"no"', "3"]),
    (dict[str, int], ['{"a": 1}'], ['{"a": "b"}']),
    (PERSON, ['{"name": "a"}'], ["{}"]),
    (json.dumps(PERSON), ['{"name": "a"}'], ["{}"]),
    (False | True, ["1", "[]"], ["a"]),
    ({"type": "regex", "pattern": "a+"}, ["aa"], ["b", '"a"']),
    (Regex("[ab]+"), ["ab"], ["c", ""]),
    (Choice(["yes", "no"]), ["yes"], ["maybe"]),
    (Lark('start: "a" start | "b"'), ["aab"], ["aa"]),
    (GBNF('root ::= "(" root ")" | "x"'), ["((x))"], ["((x)"]),
    (BannedWords(["ab"]), ["a b"], ["xAB"]),
    (BannedWords(["ab"], case_sensitive=True, whole_words=True), ["xab AB"], ["ab"]),
    (AllOf(Regex("[a-z]+"), BannedWords(["ab"])), ["ba"], ["cab", "A"]),
    (AllOf(Person, {"properties": {"name": {"const": "b"}}}), ['{"name": "b", "age": 1}'], ['{"name": "a", "age": 1}']),
    (
        StructuralTag([{"begin": "<p>", "content": Person, "end": "</p>"}], triggers=["<p>"]),
        ['hi <p>{"name": "a", "age": 3}</p>', "hi"],
        ["<p>3</p>"],
    ),
    (
        StructuralTag([{"begin": "<p>", "content": Regex("a"), "end": "!"}], triggers=["<"], at_least_one=True),
        ["<p>a!"],
        ["hi"],
    ),
    (StructuralTag(format={"type": "const_string", "value": "ab"}), ["ab"], ["a"]),
]


@pytest.mark.parametrize(("constraint", "valid", "invalid"), CASES, ids=[repr(case[0])[:40] for case in CASES])
def test_a_constraint_allows_what_it_says(constraint: Any, valid: list[str], invalid: list[str]) -> None:
    fsm = compile(constraint, bytes_vocabulary()).automaton()
    for text in valid:
        assert accepts(fsm, text), text
    for text in invalid:
        assert not accepts(fsm, text), text


@pytest.mark.parametrize("constraint", [Person, PERSON, Regex("a+"), CASES[19][0]])
def test_keys_are_those_of_the_cluster(constraint: Any) -> None:
    plain = json.loads(specification_of(constraint).model_dump_json(by_alias=True))
    assert compile(constraint, bytes_vocabulary()).key == compile_grammar(plain, bytes_vocabulary()).key


@pytest.mark.parametrize(
    ("make", "message", "pointer"),
    [
        (lambda: Regex(3), "malformed specification", "/pattern"),  # type: ignore[arg-type]
        (lambda: Choice([]), "malformed specification", "/choices"),
        (lambda: BannedWords(["a"], whole_word=True), "Extra inputs are not permitted", "/whole_word"),
        (lambda: StructuralTag([{"begin": "<a>", "end": ""}], triggers=["<a>"]), "malformed", "/tags/0/content"),
        (lambda: specification_of('{"a": 1, "a": 2}'), "stands twice", "/a"),
        (lambda: specification_of("{"), "the text is not JSON", None),
        (lambda: specification_of(object()), "pydantic makes no JSON Schema of <object", None),
        (lambda: specification_of(TypeAdapter(type)), "pydantic makes no JSON Schema", None),
        (lambda: specification_of(7), "pydantic makes no JSON Schema of 7", None),
    ],
)
def test_a_malformed_constraint_is_a_typed_error(make: Any, message: str, pointer: str | None) -> None:
    with pytest.raises(InvalidSpecificationError, match=message) as caught:
        make()
    assert caught.value.pointer == pointer and isinstance(caught.value, turnstile_llm.GrammarError)


def test_an_error_of_the_compiler_has_its_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(a|b)\1"}}}
    with pytest.raises(UnsupportedFeatureError) as caught:
        compile(schema, bytes_vocabulary())
    assert caught.value.pointer == "/properties/a/pattern"

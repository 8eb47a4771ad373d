"""What compiling costs at each place, and that what is said to change there makes it cheaper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from grammar_workers import Limits, budget, compile_grammar
from grammar_workers import costs as told
from grammar_workers.costs import most_expensive
from tests.grammar_workers.vocabularies import bytes_vocabulary


@pytest.fixture(autouse=True)
def every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps stand for seconds: no machine takes longer for the cheaper place."""

    def steps() -> float:
        found = budget._RUNNING.budget
        return 0.0 if found is None else float(found.steps)

    monkeypatch.setattr(told, "LEAST_S", 0)
    monkeypatch.setattr(budget, "time", SimpleNamespace(thread_time=steps))


def costs(specification: dict[str, Any]) -> list[Any]:
    fsm = compile_grammar(specification, bytes_vocabulary(), limits=Limits())
    return [*most_expensive(fsm.costs, specification)]


def test_the_most_expensive_place_comes_first_with_what_to_change() -> None:
    names = {f"name{n}": {"type": "string"} for n in range(40)}
    few = {name: names[name] for name in [*names][:20]}
    schema = {"properties": {"cheap": {"type": "null"}, "dear/0": {"pattern": "^(([a-z]{1,9}[0-9]?){1,90},)*$"}}}
    first, *_ = costs({"type": "json_schema", "schema": schema})
    assert first["place"] == "/properties/dear~10" and first["seconds"] > 0
    for properties, change in ((few, "set `additionalProperties: false`"), (names, "have fewer properties")):
        items = {"type": "object", "properties": properties}
        found = costs({"type": "json_schema", "schema": {"type": "array", "items": items, "uniqueItems": True}})
        told = {one["place"]: one["change"] for one in found}
        assert told["#"].startswith("drop `uniqueItems`") and told["/items"].startswith(change)
        assert len(found) <= 3
    settled = {"type": "object", "properties": few, "additionalProperties": False}
    assert costs({"type": "json_schema", "schema": settled})[0]["change"].startswith("have fewer properties")


def test_no_place_with_a_length_is_told_to_have_one() -> None:
    schema = {"type": "string", "pattern": "^(([a-z]{1,9}[0-9]?){1,90},)*$", "maxLength": 900}
    (found,) = costs({"type": "json_schema", "schema": schema})
    assert "or `maxLength`" not in found["change"] and "smaller counts" in found["change"]


def test_a_rule_of_a_grammar_is_a_place() -> None:
    text = 'root ::= "x" item\nitem ::= [ab]* "a" [ab]{9}'
    found = {one["place"]: one["change"] for one in costs({"type": "grammar", "syntax": "gbnf", "text": text})}
    assert found["line 2, column 1"] == "use smaller counts and fewer alternatives"


def test_costs_do_not_stay_for_the_next_compilation() -> None:
    costs({"type": "json_schema", "schema": {"properties": {"a": {"enum": [1, 2, 3]}}}})
    assert all(one["place"] != "/properties/a" for one in costs({"type": "json_schema", "schema": {"type": "null"}}))


def test_advice_fits_the_alternatives_and_cheap_places_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for alternatives, advice in (
        ([{"format": "email"}, {"format": "uri"}], "have fewer alternatives"),
        ([{"properties": {"a": {"type": "null"}}}, {"type": "object"}], "declare a property with a `const` first"),
    ):
        schema = {
            "anyOf": [{"type": "string", **one} for one in alternatives]
            if "format" in alternatives[0]
            else alternatives
        }
        found = {one["place"]: one["change"] for one in costs({"type": "json_schema", "schema": schema})}
        assert found["#"].startswith(advice)
    monkeypatch.setattr(told, "LEAST_S", 1e9)
    assert costs({"type": "json_schema", "schema": {"type": "string"}}) == []

"""Every model of a body stops at the first few errors: nothing in it may have a million of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from deployments.openai.protocol import ChatCompletionBody, CompletionBody
from deployments.openai.responses.body import ResponsesBody
from deployments.routing.grammars import GrammarBody
from grammar_workers.validation import StrictModel

BODIES: list[type[BaseModel]] = [ChatCompletionBody, CompletionBody, ResponsesBody, GrammarBody]


def parts(schema: Any, around: str = "") -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every schema inside of pydantic's core schema, with the type of the one around it."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("type"), str):
            yield schema, around
            around = schema["type"]
        for key, value in schema.items():
            if key not in ("metadata", "serialization"):
                yield from parts(value, around)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from parts(value, around)


@pytest.mark.parametrize("body", BODIES)
def test_nothing_in_a_body_is_without_a_bound(body: type[BaseModel]) -> None:
    found = list(parts(body.__pydantic_core_schema__))
    kinds = [part["type"] for part, _ in found]
    assert {"list", "tagged-union", "model-fields"} <= set(kinds)
    for part, around in found:
        match part["type"]:
            case "list":
                assert part["fail_fast"], part
                anything = part.get("items_schema", {"type": "any"})["type"] == "any"  # has no errors
                assert anything or "max_length" in part, part
            case "tuple":
                assert part.get("fail_fast") or "variadic_item_index" not in part, part
            case "dict":
                # Without a check before it all entries would be looked at.
                assert part.get("values_schema", {"type": "any"})["type"] == "any" or around == "function-before", part
            case "model":
                assert issubclass(part["cls"], StrictModel), part["cls"]
            case "union":
                # Members are tried one after the other, so it is one error that is told.
                assert "custom_error_message" in part, part
            case "int":
                assert part.get("strict"), part
            case "bool" | "float":
                assert part.get("strict"), part


@pytest.mark.parametrize("body", BODIES)
def test_integers_have_bounds(body: type[BaseModel]) -> None:
    for part, around in parts(body.__pydantic_core_schema__):
        if part["type"] == "int" and around != "union":  # a position's token id: whatever it is, there is no such one
            assert {"le", "lt"} & part.keys(), part

"""What is wrong with a body, as clients of OpenAI's API expect it: `messages[0].content`, and what is allowed there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from deployments.http.errors import ApiError
from deployments.http.fields import contradiction
from deployments.validation_messages import MESSAGES, message_of, unknown_place
from grammar_workers.errors import shortened
from grammar_workers.strict_json import JsonTextError, Place
from grammar_workers.validation import place_of, pointer, unknown_field

MAX_PROBLEMS = 8
MAX_NAME, MAX_PLACE = 64, 200
"""Characters: of a key, and of what leads to it."""

_PLAIN_NAME = re.compile(r"[\w$-]+")

_NO_MEMBER = ("union_tag_invalid", "union_tag_not_found")

Model = TypeVar("Model", bound=BaseModel)
Problem = Mapping[str, Any]
"""One of pydantic's errors; `loc` begins at the body."""


def of_validation(problems: Sequence[Problem], model: type[BaseModel]) -> ApiError:
    """The 400 of a body that is not as `model` wants it: the first place at fault, and what is wrong with a few."""
    first = problems[0]
    if not first["loc"] and first["type"] in ("missing", "model_attributes_type", "model_type"):
        return ApiError(400, "the body must be a JSON object, sent as Content-Type: application/json")
    lines = [_line(problem, model) for problem in problems[:MAX_PROBLEMS]]
    return ApiError(
        400,
        "; ".join(dict.fromkeys(lines)),
        param=shown_place(place_of_problem(first, model)) or None,
        code="invalid_value" if unknown_field(first) is None else "unknown_field",
        pointer=pointer(first["ctx"]["place"]) or None if first["type"] == "json_text" else None,
    )


def inner_body(model: type[Model], fields: dict[str, Any], moved: Callable[[Place], Place]) -> Model:
    """The body that another one is made into.

    Raises PydanticCustomError for its first error; `moved`: the place in the outer body for a place in `model`.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = moved(place_of_problem(problem, model))
        raise contradiction(shown_place(place), _message(problem, model), place) from None


_BESIDE_MEMBERS = {
    "response_format": "; `choice` and other kinds are fields of `structured_outputs`",
    "tools": "; this server runs no tools: declare a function, and run it yourself",
}
"""First field of a place -> what to add where a union has no member of the kind that was sent."""


def of_json(error: JsonTextError) -> ApiError:
    """The 400 of a body that is not JSON, or has a key twice."""
    if not error.place:
        return ApiError(400, f"the body cannot be read as JSON: {error}", code="invalid_json")
    where = shown_place(error.place)
    return ApiError(400, f"`{where}`: {error}", param=where, code="duplicate_key")


def place_of_problem(problem: Problem, model: type[BaseModel]) -> Place:
    """Where in the body one of pydantic's errors is."""
    place, _ = place_of(model.__pydantic_core_schema__, problem["loc"])
    context = problem.get("ctx", {})
    if problem["type"] == "contradiction":
        return (*place, *context["place"])
    if problem["type"] == "unknown_field":
        return (*place, context["param"])
    if problem["type"] in _NO_MEMBER and isinstance(problem["input"], dict):
        return (*place, "type")
    return place


def shown_place(place: Place) -> str:
    """A place as OpenAI writes it, such as `messages[0].content`; long keys are cut."""
    shown = ""
    for part in place:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif _PLAIN_NAME.fullmatch(part):
            shown += f"{'.' if shown else ''}{shortened(part, MAX_NAME)}"
        else:
            shown += f"[{json.dumps(shortened(part, MAX_NAME), ensure_ascii=False)}]"
        if len(shown) > MAX_PLACE:
            break
    return shortened(shown, MAX_PLACE)


def _line(problem: Problem, model: type[BaseModel]) -> str:
    place = shown_place(place_of_problem(problem, model))
    if (instead := problem.get("ctx", {}).get("instead")) is not None:
        return f"unknown field `{place}`: send " + (instead if "`" in instead else f"`{instead}`")
    if (unknown := unknown_place(problem, model.__pydantic_core_schema__)) is not None:
        return f"unknown field `{place}`" + (f"; is `{near}` meant?" if (near := unknown[1]) else "")
    message = _message(problem, model)
    return f"`{place}`: {message}" if place else message


def _message(problem: Problem, model: type[BaseModel]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "contradiction":
        return str(context["message"])
    if kind in _NO_MEMBER:
        if not isinstance(problem["input"], dict):
            return MESSAGES["model_type"]
        _, union = place_of(model.__pydantic_core_schema__, problem["loc"])
        *others, last = map(repr, union["choices"])
        beside = _BESIDE_MEMBERS.get(str(problem["loc"][0]), "")
        return f"must be {', '.join(others)} or {last}{beside}"
    if kind == "list_type" and problem["loc"] == ("messages",):
        return 'must be a list, such as [{"role": "user", "content": "Hello"}]'
    return message_of(problem)

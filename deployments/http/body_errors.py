"""Error responses for invalid request bodies, with a location such as `messages[0].content` and the allowed values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from deployments.http.errors import ApiError
from deployments.http.fields import contradiction
from deployments.validation_messages import MESSAGES, message_of, suggestion, unknown_place
from grammar_workers.errors import shortened
from grammar_workers.strict_json import JsonTextError, Place
from grammar_workers.validation import place_of, pointer, unknown_field

# Number of errors that one message lists at most.
MAX_PROBLEMS = 8
# Maximum length in characters: of a key, and of a whole location.
MAX_NAME, MAX_PLACE = 64, 200

_PLAIN_NAME = re.compile(r"[\w$-]+")

_NO_MEMBER = ("union_tag_invalid", "union_tag_not_found")

Model = TypeVar("Model", bound=BaseModel)
# One of pydantic's errors. Its `loc` starts at the body.
Problem = Mapping[str, Any]

# What a body is that is no object, by the type that JSON has become.
_KINDS = {list: "an array", bool: "a boolean", int: "a number", float: "a number"}


def of_validation(problems: Sequence[Problem], model: type[BaseModel]) -> ApiError:
    """Return the error (400) for a body that does not match its pydantic model.

    Args:
        problems: Errors of pydantic (entries of `ValidationError.errors()`), at least one. Their `loc` (location)
            starts at the body.
        model: Pydantic model of the body.

    Returns:
        An error with the location of the first problem. Its message describes up to 8 problems (`MAX_PROBLEMS`).
    """
    first = problems[0]
    if not first["loc"] and first["type"] in ("missing", "model_attributes_type", "model_type"):
        found = _KINDS.get(type(first.get("input")), "missing, or not sent as Content-Type: application/json")
        return ApiError(400, f"the body is {found}: it must be a JSON object")
    lines = [_line(problem, model) for problem in problems[:MAX_PROBLEMS]]
    return ApiError(
        400,
        "; ".join(dict.fromkeys(lines)),
        param=shown_place(place_of_problem(first, model)) or None,
        code="invalid_value" if unknown_field(first) is None else "unknown_field",
        pointer=pointer(first["ctx"]["place"]) or None if first["type"] == "json_text" else None,
    )


def inner_body(model: type[Model], fields: dict[str, Any], moved: Callable[[Place], Place]) -> Model:
    """Validate a body that was translated from a body of another format (the outer body, which the client sent).

    Args:
        model: Model of the inner body, which is the result of the translation, such as a chat completion.
        fields: Values of the fields of the inner body.
        moved: Function from a location in the inner body to the location in the outer body. A location is a tuple of
            keys and indexes.

    Returns:
        The validated inner body.

    Raises:
        contradiction: `PydanticCustomError`: the inner body is invalid. The error describes the first problem, with the
            location in the outer body.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = moved(place_of_problem(problem, model))
        raise contradiction(shown_place(place), _message(problem, model), place) from None


# First field of a location -> text to append to the message if a union has no member of the type that was sent.
_BESIDE_MEMBERS = {
    "response_format": "; `choice` and other kinds are fields of `structured_outputs`",
    "tools": "; this server runs no tools: declare a function, and run it yourself",
}


def of_json(error: JsonTextError) -> ApiError:
    """Return the error (400) for a body that is not strict JSON, or in which an object has a key twice.

    Args:
        error: Error of the parser. An error with a location (`place`) is about a duplicate key at this location.
    """
    if not error.place:
        return ApiError(400, f"the body cannot be read as JSON: {error}", code="invalid_json")
    where = shown_place(error.place)
    return ApiError(400, f"`{where}`: {error}", param=where, code="duplicate_key")


def place_of_problem(problem: Problem, model: type[BaseModel]) -> Place:
    """Return the location of a validation error in the body, as keys and indexes.

    Args:
        problem: Error of pydantic (an entry of `ValidationError.errors()`). Its `loc` starts at the body.
        model: Pydantic model of the body.

    Returns:
        Keys and indexes that lead from the body to the value. If the error is an unknown field or a contradiction
        between fields, the last key is the name of the field.
    """
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
    """Format a location in a body in OpenAI's style, such as `messages[0].content`.

    Args:
        place: Keys and indexes that lead to a value, such as `("messages", 0, "content")`. Empty: the whole body.

    Returns:
        The formatted location. Keys and locations that are too long are shortened. Empty for the whole body.
    """
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
        meant = suggestion(map(str, union["choices"]), context.get("tag"))
        return f"must be {', '.join(others)} or {last}{beside}{meant}"
    if kind == "list_type" and problem["loc"] == ("messages",):
        return 'must be a list, such as [{"role": "user", "content": "Hello"}]'
    return message_of(problem)

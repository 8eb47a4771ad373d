"""Messages for pydantic's validation errors, in terms of JSON and YAML (pydantic's own messages use Python's terms)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import CoreSchema

from grammar_workers.near_names import NearNames
from grammar_workers.strict_json import Place
from grammar_workers.validation import place_of, unknown_field

# Error type of pydantic -> message template. The error's context fills the template.
MESSAGES = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "extra_forbidden": "unknown field",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be {ge} or more",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be {le} or less",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "is required",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "none_required": "must be null",
    "string_type": "must be a string",
    "too_long": "takes at most {max_length} items",
    "too_short": "has too few items, at least {min_length} must be there",
    "tuple_type": "must be a list",
    "union_tag_invalid": "`kind` must be one of {expected_tags}",
}

# Maximum number of known keys that the message about an unknown key lists.
LISTED_KEYS = 12

# Pattern of a field -> what it asks for, in words.
_PATTERNS = {
    "^[0-9a-f]{64}$": "must have 64 characters, each 0-9 or a-f",
    "^[a-zA-Z0-9_./-]{1,128}$": "must have 1 to 128 characters, each a letter A-Z or a-z, a digit, or one of _ . / -",
    "^(cpu|cuda|hpu|mps|mtia|xla|xpu)(:[0-9]+)?$": "must be a device as torch names it: `cpu`, `cuda`, `cuda:0`",
    "^(0|[1-9][0-9]{0,9})$": "the key must be a token ID, a whole number of at most 10 digits",
}


def message_of(problem: Mapping[str, Any]) -> str:
    """Return the message for one validation error, without its location.

    Args:
        problem: One entry of pydantic's `ValidationError.errors()`. Its `ctx` fills the template in `MESSAGES`.

    Returns:
        A message such as `must be 1 or more`. If the wrong value is similar to an allowed value, the message ends with
        a suggestion, such as `; is 'any_text' meant?`. If `MESSAGES` has no template for the type of error, the result
        is pydantic's message.
    """
    if problem["type"] == "string_pattern_mismatch" and (words := _PATTERNS.get(problem["ctx"]["pattern"])):
        return words
    if (template := MESSAGES.get(problem["type"])) is None:
        return str(problem["msg"]).removeprefix("Value error, ")
    message = template.format(**problem.get("ctx", {}))
    if problem["type"] == "literal_error":
        message += suggestion(re.findall("'([^']*)'", problem["ctx"]["expected"]), problem.get("input"))
    return message


def suggestion(names: Iterable[str], found: Any) -> str:
    """Return a suggestion for the end of an error message: the allowed value that is most similar to the wrong value.

    Args:
        names: The allowed values.
        found: The wrong value, of any type.

    Returns:
        A text such as `; is 'any_text' meant?`. Empty if `found` is not a string, or if no allowed value is similar.
    """
    near = NearNames(names).find(found) if isinstance(found, str) else None
    return "" if near is None else f"; is '{near}' meant?"


def unknown_place(problem: Mapping[str, Any], schema: CoreSchema) -> tuple[Place, str | None, list[str]] | None:
    """Return the location of an unknown field in validated data, with the names of the known fields.

    Args:
        problem: One entry of pydantic's `ValidationError.errors()`.
        schema: Core schema of the pydantic model that was validated (`model.__pydantic_core_schema__`).

    Returns:
        None if `problem` is not about an unknown field. Otherwise a triple, such as
        `(("router", "num_cpu"), "num_cpus", ["replicas", ...])`. The first item has the keys and indexes that lead from
        the root of the data to the unknown field. The second item is the most similar known name, or None if no name is
        similar. The third item has the names of all fields that the object with the unknown field may have.
    """
    if (unknown := unknown_field(problem)) is None:
        return None
    place, wanted = place_of(schema, unknown[0])
    known = [str(field.get("validation_alias", name)) for name, field in wanted.get("fields", {}).items()]
    return (*place, unknown[1]), NearNames(known).find(unknown[1]), known


def problem_lines(error: ValidationError, model: type[BaseModel], before: str = "") -> list[str]:
    """Describe each error of a pydantic validation in one line. The lines do not contain the rejected values.

    Args:
        error: Error that pydantic has raised.
        model: The pydantic model whose data was validated.
        before: Prefix of all locations: the path from the root of the file to the validated data, such as
            `applications.0.args.`. Empty: the validated data is the whole file.

    Returns:
        One line per error: the location in backquotes and the message. A line about an unknown key also suggests the
        most similar known key. If no key is similar, the line lists the known keys, if they are few.
    """
    lines = []
    for problem in error.errors():
        if (unknown := unknown_place(problem, model.__pydantic_core_schema__)) is not None:
            place, near, known = unknown
            listed = f"; the keys here are {', '.join(known)}" if 0 < len(known) <= LISTED_KEYS else ""
            hint = f"; is `{near}` meant?" if near else listed
            lines.append(f"unknown key `{_written(before, place)}`{hint}")
        else:
            place, _ = place_of(model.__pydantic_core_schema__, problem["loc"])
            where, message = _written(before, place), message_of(problem)
            lines.append(f"`{where}`: {message}" if where else message)
    return lines


def _written(before: str, place: Place) -> str:
    return before + ".".join(map(str, place))

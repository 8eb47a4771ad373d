"""What pydantic's errors say to people: by their types, since its own messages speak of Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import CoreSchema

from grammar_workers.near_names import NearNames
from grammar_workers.strict_json import Place
from grammar_workers.validation import place_of, unknown_field

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


def message_of(problem: Mapping[str, Any]) -> str:
    """The message of one of `ValidationError.errors()`."""
    if (template := MESSAGES.get(problem["type"])) is None:
        return str(problem["msg"]).removeprefix("Value error, ")
    return template.format(**problem.get("ctx", {}))


def unknown_place(problem: Mapping[str, Any], schema: CoreSchema) -> tuple[Place, str | None, list[str]] | None:
    """The place of a field that its object does not have, the one that may be meant, and those that it has.

    Args:
        problem: One of `ValidationError.errors()`.
        schema: That of the model.

    Returns:
        None for a problem of another kind.
    """
    if (unknown := unknown_field(problem)) is None:
        return None
    place, wanted = place_of(schema, unknown[0])
    known = [str(field.get("validation_alias", name)) for name, field in wanted.get("fields", {}).items()]
    return (*place, unknown[1]), NearNames(known).find(unknown[1]), known

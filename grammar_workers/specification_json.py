"""Readers of JSON Schemas and specifications from JSON and Python types, for the command line and the Python API."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.specification import KINDS
from grammar_workers.strict_json import JsonTextError, parse_json
from grammar_workers.validation import pointer


def parse_specification_json(text: str) -> Any:
    """Parse the JSON text of a JSON Schema or of a specification (constraint of an output). The data is not validated.

    Args:
        text: JSON text.

    Returns:
        The data.

    Raises:
        InvalidSpecificationError: The text is not JSON, or an object has a key twice. The pointer names the key.
    """
    try:
        return parse_json(text)
    except JsonTextError as error:
        if error.place:
            raise InvalidSpecificationError(str(error), pointer=pointer(error.place)) from error
        raise InvalidSpecificationError(f"the text is not JSON: {error}") from error


def schema_of_type(type_: Any) -> dict[str, Any]:
    """Return the JSON Schema that pydantic makes of a Python type. PydanticUserError is raised if it makes none.

    Args:
        type_: A type, such as a pydantic model or a `TypedDict`, or its `TypeAdapter`.
    """
    return (type_ if isinstance(type_, TypeAdapter) else TypeAdapter(type_)).json_schema()


def schema_or_specification(data: Any) -> dict[str, Any]:
    """Return a specification as plain data with `type`, from JSON data. The specification is not validated.

    Args:
        data: An object whose `type` is a type of specification (`specification.KINDS`), or any other value.

    Returns:
        `data` itself if it is such an object. Otherwise a specification of type `json_schema` with `data` as its
        schema.
    """
    if isinstance(data, dict) and isinstance(data.get("type"), str) and data["type"] in KINDS:
        return data
    return {"type": "json_schema", "schema": data}

"""Base classes and annotations for pydantic models of untrusted data. They limit the cost of validation.

Pydantic creates an error object for each wrong value, and a request body may contain a million of them. So:

- The validation of a list stops at the first error (`FailFast`), and each list has a `max_length`.
- The number of entries of a dictionary with arbitrary keys is checked before the entries (`at_most`).
- The first unknown key of an object ends its validation (`StrictModel`).
- Only one member of a union is tried. The JSON type of the value selects it (`by_json_type`).

A test checks that all models of request bodies follow these rules.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import pydantic
from pydantic import BaseModel, BeforeValidator, Discriminator, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from grammar_workers.logs import SERVE, get_logger
from grammar_workers.strict_json import Place

logger = get_logger(SERVE)


class FailFast(pydantic.FailFast):
    """Annotation of a list: its validation stops at the first wrong item.

    Unlike pydantic's class of this name, it is hashable. Pydantic hashes the members of unions.
    """

    __hash__ = object.__hash__


class DocumentedModel(BaseModel, use_attribute_docstrings=True):
    """Base of pydantic models whose fields have their descriptions in docstrings: strings after the fields."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        made = handler(schema)
        for field in handler.resolve_ref_schema(made).get("properties", {}).values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
        return made


class StrictModel(DocumentedModel, extra="forbid"):
    """Base of pydantic models that reject unknown keys. The error names the first unknown key."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_unknown_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
            for key in value:
                if key not in known:
                    raise PydanticCustomError("unknown_field", "unknown field", {"param": key})
        return value


class RenamedFields(DocumentedModel, extra="forbid"):
    """Base of pydantic models that accept deprecated names of their fields, and log a warning for each.

    Unknown keys are rejected.

    Data with both names of a field is rejected.

    Attributes:
        renamed: Deprecated name -> current name of the field. Subclasses set this mapping.
    """

    # Deprecated name -> field.
    renamed: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_current_names(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys().isdisjoint(cls.renamed):
            return value
        found = {}
        for name, setting in value.items():
            field = cls.renamed.get(name, name)
            if field in found or (field != name and field in value):
                raise ValueError(f"`{name}` is the deprecated name of `{field}`: remove it")
            if field != name:
                warn_deprecated(name, field)
            found[field] = setting
        return found


def renamed_value(deprecated: str, current: str) -> BeforeValidator:
    """Return an annotation for a field. It replaces a deprecated value by the current one, and logs a warning.

    Args:
        deprecated: The old value, which is still accepted.
        current: The value that replaces it.
    """

    def replace(value: Any) -> Any:
        if value != deprecated:
            return value
        warn_deprecated(deprecated, current)
        return current

    return BeforeValidator(replace)


@functools.cache
def warn_deprecated(deprecated: str, current: str) -> None:
    """Log a warning that the name of a field or value is deprecated, once per process and name.

    Args:
        deprecated: Old name.
        current: Name to use.
    """
    logger.warning("deprecated name, accepted until the next minor version: deprecated=%s use=%s", deprecated, current)


class FrozenModel(StrictModel, frozen=True):
    """Base of pydantic models that are immutable and reject unknown keys. An object is hashable if its values are."""


def at_most(most: int) -> BeforeValidator:
    """Return an annotation for a `dict`. It checks the number of entries before the entries are validated.

    Args:
        most: Maximum number of entries.
    """

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_many", "takes at most {most} entries", {"most": most})
        return value

    return BeforeValidator(check)


def by_json_type(expected: str) -> Discriminator:
    """Return an annotation for a union. The JSON type of a value then selects the member that validates it.

    Each member of the union must have a `pydantic.Tag` with its type: `boolean`, `string`, `number`, `array` or
    `object`.

    Args:
        expected: Description of the allowed values. The error message is "must be" and this text.
    """
    return Discriminator(_json_type, custom_error_type="wrong_type", custom_error_message=f"must be {expected}")


def _json_type(value: Any) -> str | None:
    match value:
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list() | tuple():
            return "array"
        case dict() | BaseModel():
            return "object"
    return None


def unknown_field(error: Mapping[str, Any]) -> tuple[tuple[int | str, ...], str] | None:
    """Return the location and the name of the unknown field that an error of pydantic reports.

    Args:
        error: One of the dictionaries that `ValidationError.errors` returns.

    Returns:
        The location of the object that has the unknown field (as pydantic gives it), and the name of the field. None if
        the error is of another kind.
    """
    match error["type"]:
        case "unknown_field":
            return error["loc"], error["ctx"]["param"]
        case "extra_forbidden":
            return error["loc"][:-1], str(error["loc"][-1])
    return None


def place_of(schema: CoreSchema, location: tuple[int | str, ...]) -> tuple[Place, Mapping[str, Any]]:
    """Convert the location of a pydantic error to the path of the wrong value in the data.

    A location of pydantic consists of keys and indexes, and of names of union members, which are not in the data. This
    function removes these names by means of the model's core schema.

    Args:
        schema: Pydantic's core schema of the model.
        location: The entry `loc` of the error.

    Returns:
        The keys and indexes that lead to the wrong value, outermost first, and the core schema of the value that is
        expected there. The core schema is `{"type": "any"}` if the model does not describe the value.
    """
    place: list[int | str] = []
    definitions: dict[str, Any] = {}
    wanted = cast(dict[str, Any], schema)
    parts = list(location)
    while True:
        kind = wanted["type"]
        if kind == "definitions":
            definitions |= {one["ref"]: one for one in wanted["definitions"]}
            wanted = wanted["schema"]
        elif kind == "definition-ref":
            wanted = definitions[wanted["schema_ref"]]
        elif not parts:
            inner = wanted.get("schema")
            if kind not in _WRAPPERS or inner is None:
                return tuple(place), wanted
            wanted = inner
        elif kind == "tagged-union":
            wanted = wanted["choices"].get(parts.pop(0), _ANYTHING)
        elif kind == "union":
            parts.clear()
        elif kind in _CONTAINERS:
            place.append(parts.pop(0))
            wanted = _inside(wanted, place[-1])
        elif "schema" in wanted:
            wanted = wanted["schema"]
        else:
            return tuple(place), _ANYTHING


_ANYTHING: dict[str, Any] = {"type": "any"}
_WRAPPERS = ("nullable", "default", "model", "function-before", "function-after")
_CONTAINERS = ("model-fields", "list", "tuple", "dict")


def _inside(container: Mapping[str, Any], key: int | str) -> dict[str, Any]:
    """Return the schema of the value at `key` in a container, or that of any value if the schema has no such key."""
    match container["type"]:
        case "model-fields":
            for name, field in container["fields"].items():
                if key in (name, field.get("validation_alias")):
                    return dict(field["schema"])
            return _ANYTHING
        case "list":
            return dict(container.get("items_schema", _ANYTHING))
        case "tuple":
            items = container["items_schema"]
            return dict(items[key]) if isinstance(key, int) and key < len(items) else _ANYTHING
        case _:
            return dict(container.get("values_schema", _ANYTHING))


def pointer(place: Place) -> str:
    """Return a path of keys and indexes as a JSON Pointer (RFC 6901).

    Args:
        place: Keys and indexes that lead to a value, outermost first. (): the whole document, whose pointer is "".
    """
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)

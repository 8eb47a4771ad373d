"""What models of data from outside have in common: how much they look at, and where they say that an error is.

Pydantic makes an error for each thing that is wrong, and a body has room for a million. So lists stop at their first
error (`FailFast`) and have a `max_length`, objects with free keys have a bound that is looked at first (`at_most`),
unknown keys are refused before there are many (`StrictModel`), and alternatives are told apart by their JSON type, so
that one of them is tried (`by_json_type`). A test walks through all models of bodies and looks for what is not bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from grammar_workers.strict_json import Place


class FailFast(pydantic.FailFast):
    """Annotation of a list, whose items are looked at up to the first that is wrong. Unlike pydantic's, which members
    of unions cannot have, it has a hash.
    """

    __hash__ = object.__hash__


class StrictModel(BaseModel):
    """Data in which unknown keys are refused by name."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few_unknown_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
            for key in value:
                if key not in known:
                    raise PydanticCustomError("unknown_field", "unknown field", {"param": key})
        return value


class FrozenModel(StrictModel):
    """Such data that is never changed, and has a hash where its fields have."""

    model_config = ConfigDict(frozen=True)


def at_most(most: int) -> BeforeValidator:
    """Annotation of a `dict`: it has up to `most` entries, counted before any of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_many", "takes at most {most} entries", {"most": most})
        return value

    return BeforeValidator(check)


def by_json_type(expected: str) -> Discriminator:
    """Annotation of a union whose members are tagged with the names of their JSON types. `expected`: what is allowed,
    for the message to a client.
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
    """Where pydantic locates the object of an error that has a field too many, and the field; None for other errors."""
    match error["type"]:
        case "unknown_field":
            return error["loc"], error["ctx"]["param"]
        case "extra_forbidden":
            return error["loc"][:-1], str(error["loc"][-1])
    return None


def place_of(schema: CoreSchema, location: tuple[int | str, ...]) -> tuple[Place, Mapping[str, Any]]:
    """Where in the data an error is that pydantic locates at `location`, and what it wanted there.

    Its locations name, besides keys and indexes, also the member of a union that was tried; `schema` tells them apart.
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
    """The schema of what stands at `key` in a container; anything, where its schema has no such place."""
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
    """A place as JSON Pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)

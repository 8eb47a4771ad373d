"""Grammar specifications: what a client asks for, as typed data that crosses HTTP, Serve and Redis alike."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Specification(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JsonSchemaSpecification(_Specification):
    """A JSON text valid under `schema` (a JSON Schema object or boolean)."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any] | bool = Field(alias="schema")

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class JsonObjectSpecification(_Specification):
    """Any JSON object, nested freely."""

    type: Literal["json_object"] = "json_object"


class RegexSpecification(_Specification):
    """Text that `pattern` matches as a whole."""

    type: Literal["regex"] = "regex"
    pattern: str


class ChoiceSpecification(_Specification):
    """Exactly one of `choices`."""

    type: Literal["choice"] = "choice"
    choices: list[str] = Field(min_length=1)


GrammarSpecification = Annotated[
    JsonSchemaSpecification | JsonObjectSpecification | RegexSpecification | ChoiceSpecification,
    Field(discriminator="type"),
]

SPECIFICATION: TypeAdapter[GrammarSpecification] = TypeAdapter(GrammarSpecification)
"""Parses plain data into a specification; raises `pydantic.ValidationError` naming the unknown or missing key."""

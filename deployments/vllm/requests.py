"""Conversion of vLLM's `structured_outputs` (constraint of a request) to the input of Turnstile's compiler.

The result is a specification to compile, or a reference (text with the key of a compiled grammar, `turnstile:KEY`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field, StrictBool, ValidationError

from deployments.http.errors import in_the_body
from deployments.openai.constraints import (
    BANNED_WORDS,
    SUBSTRING,
    AnyBannedWords,
    AnySubstring,
    StructuredOutputs,
    banned_specification,
)
from deployments.validation_messages import unknown_place
from deployments.vllm.sampling import REFUSED
from gpu_workers.vllm.reference import Reference, is_reference
from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.options import GrammarOptions
from grammar_workers.specification import (
    AllOfSpecification,
    GrammarSpecification,
    JsonSchemaSpecification,
)
from grammar_workers.validation import place_of, pointer

# Keyword at the root of a JSON Schema for settings that vLLM's own fields do not have.
EXTENSION = "x-turnstile"

# Fields of `StructuredOutputsParams` for the constraint. A request has one of them.
CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# Fields of `StructuredOutputsParams` for the JSON format of other backends. Turnstile rejects them.
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


class SchemaExtension(GrammarOptions):
    """Value of the keyword `x-turnstile` in a JSON Schema: grammar options and further constraints of one request."""

    finish_within_budget: StrictBool = False
    """The output is complete within `max_tokens`."""
    banned_words: AnyBannedWords | None = Field(None, description=BANNED_WORDS)
    substring_of: AnySubstring | None = Field(None, description=SUBSTRING)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the grammar compiler that the keyword sets explicitly: field of `GrammarOptions` -> value."""
        return {name: getattr(self, name) for name in GrammarOptions.model_fields if name in self.model_fields_set}


@dataclasses.dataclass(frozen=True, slots=True)
class GrammarRequest:
    """Constraint of one request to vLLM: either a specification to compile, or a reference to a compiled grammar.

    Attributes:
        specification: Specification to compile. None if `reference` is set.
        reference: Key and settings of a compiled grammar. None if `specification` is set.
        options: Options of the grammar compiler that the request sets: field of `GrammarOptions` -> value.
        finish_within_budget: True if the output must be complete within `max_tokens`.
        places: Translation of JSON Pointers, for errors. A pair (prefix of a pointer into `specification`, replacement)
            gives the pointer into the client's request.
    """

    specification: GrammarSpecification | None = None
    reference: Reference | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    finish_within_budget: bool = False
    places: Sequence[tuple[str, str]] = ()

    def placed(self, error: GrammarError) -> GrammarError:
        """Return a copy of an error whose JSON Pointer is translated to the client's request.

        Args:
            error: Error whose `pointer` leads into `specification`. If `pointer` is None, the error itself is returned.
        """
        if error.pointer is None:
            return error
        return GrammarError.from_dict({**error.to_dict(), "pointer": self.place(error.pointer)})

    def place(self, pointer: str) -> str:
        """Return the JSON Pointer into the client's request for a JSON Pointer into `specification`.

        Args:
            pointer: JSON Pointer into `specification`.

        Returns:
            The translated pointer, or `pointer` unchanged if no entry of `places` matches.
        """
        return str(in_the_body(None, pointer, self.places)[1])


def read_request(constraint: Any) -> GrammarRequest:
    """Convert the constraint of a request to a specification to compile, or to a reference to a compiled grammar.

    Args:
        constraint: vLLM's `StructuredOutputsParams`; not changed.

    Returns:
        The converted constraint. If the constraint is a JSON Schema with the keyword `x-turnstile`, the result has the
        settings of the keyword.

    Raises:
        UnsupportedFeatureError: An option of another backend is set, such as `whitespace_pattern`. Or `x-turnstile` has
            a setting that vLLM does not support.
        InvalidSpecificationError: The constraint is malformed. The JSON Pointer of the error leads into `constraint`.
        LimitExceededError: The value of `x-turnstile` is nested too deeply.
    """  # noqa: DOC501, DOC502 - `_malformed` returns InvalidSpecificationError
    for name in OPTIONS:
        if getattr(constraint, name):
            message = f"{name}: set TURNSTILE_GRAMMAR_OPTIONS, or `{EXTENSION}` in the schema, instead"
            raise UnsupportedFeatureError(message, pointer="/" + name)
    if constraint.grammar is not None and is_reference(constraint.grammar):
        return _read_reference(constraint.grammar)
    given = {name: value for name in CONSTRAINTS if (value := getattr(constraint, name)) is not None}
    try:
        known = StructuredOutputs.model_validate(given)
    except ValidationError as error:
        raise _malformed(StructuredOutputs, error) from None
    if isinstance(known.json_schema, dict) and EXTENSION in known.json_schema:
        return _read_extended(known.json_schema)
    return GrammarRequest(known.specification())


def _read_reference(text: str) -> GrammarRequest:
    try:
        return GrammarRequest(reference=Reference.parse(text))
    except ValueError as error:
        raise InvalidSpecificationError(str(error), pointer="/grammar") from None


def _read_extended(schema: Mapping[str, Any]) -> GrammarRequest:
    """Return the constraint of a schema with `x-turnstile`. The compiler gets the schema without this keyword."""
    place = ("json", EXTENSION)
    given = schema[EXTENSION] if isinstance(schema[EXTENSION], dict) else {}
    for name in REFUSED.keys() & given.keys() - SchemaExtension.model_fields.keys():
        raise UnsupportedFeatureError(f"vLLM does not support {REFUSED[name]}", pointer=pointer((*place, name)))
    try:
        # Validation of JSON text accepts arrays. A strict model would require tuples of Python data.
        extension = SchemaExtension.model_validate_json(json.dumps(schema[EXTENSION]), strict=True)
    except ValidationError as error:
        raise _malformed(SchemaExtension, error, place) from None
    except RecursionError:
        raise LimitExceededError("the specification is nested too deeply", pointer=pointer(place)) from None
    rest = {k: v for k, v in schema.items() if k != EXTENSION}
    if extension.substring_of is not None:
        rest[EXTENSION] = {"substring_of": given["substring_of"]}
    plain = JsonSchemaSpecification.model_validate({"schema": rest})
    specification: GrammarSpecification = plain
    places: list[tuple[str, str]] = []
    if (banned := extension.banned_words) is not None:
        specification = AllOfSpecification(specifications=[plain, banned_specification(banned)])
        inside = "/words" if isinstance(banned, list) else ""
        places = [("/specifications/0/schema", ""), (f"/specifications/1{inside}", pointer((*place, "banned_words")))]
    return GrammarRequest(
        specification,
        options=extension.options,
        finish_within_budget=extension.finish_within_budget,
        places=places,
    )


def _malformed(
    model: type[BaseModel], error: ValidationError, before: tuple[int | str, ...] = ()
) -> InvalidSpecificationError:
    first = error.errors(include_url=False)[0]
    if (unknown := unknown_place(first, model.__pydantic_core_schema__)) is None:
        inside, _ = place_of(model.__pydantic_core_schema__, first["loc"])
        return InvalidSpecificationError(first["msg"], pointer=pointer((*before, *inside)))
    inside, near, known = unknown
    place = (*before, *inside)
    meant = f" Is {near} meant?" if near else ""
    message = f"unknown field.{meant} {place[-2] if place[1:] else 'it'} takes {', '.join(known)}"
    return InvalidSpecificationError(message, pointer=pointer(place))

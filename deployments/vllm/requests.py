"""vLLM's `structured_outputs` -> what is asked for: a specification, or the reference to one compiled before."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, StrictBool, TypeAdapter, ValidationError

from deployments.http.errors import in_the_body
from deployments.openai.constraints import BANNED_WORDS, SUBSTRING, AnyBannedWords, AnySubstring, StructuredOutputs
from deployments.validation_messages import unknown_place
from deployments.vllm.sampling import REFUSED
from gpu_workers.vllm.reference import Reference, is_reference
from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.options import GrammarOptions
from grammar_workers.specification import (
    AllOfSpecification,
    BannedWordsSpecification,
    GrammarSpecification,
    JsonSchemaSpecification,
)
from grammar_workers.validation import place_of, pointer

EXTENSION = "x-turnstile"
"""The keyword at the root of a JSON Schema that says what vLLM's own fields cannot."""

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Fields of `StructuredOutputsParams` of which a request gives one."""
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
"""Its fields that say how another backend writes JSON, which ours refuses."""
_CONSTRAINT: TypeAdapter[StructuredOutputs] = TypeAdapter(StructuredOutputs)


class SchemaExtension(GrammarOptions):
    """The object `x-turnstile`: grammar options of one request, and what else its output must be like."""

    finish_within_budget: StrictBool = Field(False, description="The output is complete within `max_tokens`.")
    banned_words: AnyBannedWords | None = Field(None, description=BANNED_WORDS)
    substring_of: AnySubstring | None = Field(None, description=SUBSTRING)

    @property
    def options(self) -> dict[str, Any]:
        """The grammar options that are given."""
        return {name: getattr(self, name) for name in GrammarOptions.model_fields if name in self.model_fields_set}


_EXTENSION: TypeAdapter[SchemaExtension] = TypeAdapter(SchemaExtension)


@dataclasses.dataclass(frozen=True, slots=True)
class GrammarRequest:
    """What one request asks for: exactly one of `specification` and `reference`.

    `options`: the grammar options that it gives. `finish_within_budget`: whether its schema asks for that. `places`:
    beginnings of pointers into the specification, and what the client wrote there.
    """

    specification: GrammarSpecification | None = None
    reference: Reference | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    finish_within_budget: bool = False
    places: Sequence[tuple[str, str]] = ()

    def placed(self, error: GrammarError) -> GrammarError:
        """`error` of the specification, where the client wrote it."""
        if error.pointer is None:
            return error
        return GrammarError.from_dict({**error.to_dict(), "pointer": self.place(error.pointer)})

    def place(self, pointer: str) -> str:
        """Where the client wrote what stands at `pointer` in the specification."""
        return str(in_the_body(None, pointer, self.places)[1])


def read_request(constraint: Any) -> GrammarRequest:
    """What vLLM's `StructuredOutputsParams` ask for. Raises GrammarError with a JSON Pointer into them."""
    for name in OPTIONS:
        if getattr(constraint, name):
            message = f"{name}: set TURNSTILE_GRAMMAR_OPTIONS, or `{EXTENSION}` in the schema, instead"
            raise UnsupportedFeatureError(message, pointer="/" + name)
    if constraint.grammar is not None and is_reference(constraint.grammar):
        return _read_reference(constraint.grammar)
    given = {name: value for name in CONSTRAINTS if (value := getattr(constraint, name)) is not None}
    try:
        known = _CONSTRAINT.validate_python(given)
    except ValidationError as error:
        raise _malformed(_CONSTRAINT, error) from None
    if isinstance(known.json_schema, dict) and EXTENSION in known.json_schema:
        return _read_extended(known.json_schema)
    return GrammarRequest(known.specification())


def _read_reference(text: str) -> GrammarRequest:
    try:
        return GrammarRequest(reference=Reference.parse(text))
    except ValueError as error:
        raise InvalidSpecificationError(str(error), pointer="/grammar") from None


def _read_extended(schema: Mapping[str, Any]) -> GrammarRequest:
    """A schema with `x-turnstile`, which does not go to the compiler."""
    place = ("json", EXTENSION)
    given = schema[EXTENSION] if isinstance(schema[EXTENSION], dict) else {}
    for name in REFUSED.keys() & given.keys() - SchemaExtension.model_fields.keys():
        raise UnsupportedFeatureError(f"vLLM does not support {REFUSED[name]}", pointer=pointer((*place, name)))
    try:
        # JSON's arrays and numbers, not Python's: a strict model would ask for tuples.
        extension = SchemaExtension.model_validate_json(json.dumps(schema[EXTENSION]), strict=True)
    except ValidationError as error:
        raise _malformed(_EXTENSION, error, place) from None
    except RecursionError:
        raise LimitExceededError("the specification is nested too deeply", pointer=pointer(place)) from None
    rest = {k: v for k, v in schema.items() if k != EXTENSION}
    if extension.substring_of is not None:
        rest[EXTENSION] = {"substring_of": given["substring_of"]}
    plain = JsonSchemaSpecification.model_validate({"schema": rest})
    specification: GrammarSpecification = plain
    places: list[tuple[str, str]] = []
    if (banned := extension.banned_words) is not None:
        words = {"words": banned} if isinstance(banned, list) else banned.model_dump()
        specification = AllOfSpecification(specifications=[plain, BannedWordsSpecification(**words)])
        inside = "/words" if isinstance(banned, list) else ""
        places = [("/specifications/0/schema", ""), (f"/specifications/1{inside}", pointer((*place, "banned_words")))]
    return GrammarRequest(
        specification,
        options=extension.options,
        finish_within_budget=extension.finish_within_budget,
        places=places,
    )


def _malformed(
    model: TypeAdapter[Any], error: ValidationError, before: tuple[int | str, ...] = ()
) -> InvalidSpecificationError:
    first = error.errors(include_url=False)[0]
    if (unknown := unknown_place(first, model.core_schema)) is None:
        inside, _ = place_of(model.core_schema, first["loc"])
        return InvalidSpecificationError(first["msg"], pointer=pointer((*before, *inside)))
    inside, near, known = unknown
    place = (*before, *inside)
    meant = f" Is {near} meant?" if near else ""
    message = f"unknown field.{meant} {place[-2] if place[1:] else 'it'} takes {', '.join(known)}"
    return InvalidSpecificationError(message, pointer=pointer(place))

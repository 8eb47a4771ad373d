"""How a client names a constraint over HTTP, and its translation into a grammar specification.

Two spellings are accepted: OpenAI's `response_format` and vLLM's `structured_outputs`. Whatever the spelling, the
grammar tier sees one of the specifications in `grammar_workers.specification`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator
from pydantic_core import PydanticCustomError, from_json

from grammar_workers.grammar.reading import guess_syntax
from grammar_workers.specification import (
    ChoiceSpecification,
    GrammarSpecification,
    GrammarTextSpecification,
    JsonObjectSpecification,
    JsonSchemaSpecification,
    RegexSpecification,
)

JsonSchema = dict[str, Any] | StrictBool


class _Constraint(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextFormat(_Constraint):
    """No constraint."""

    type: Literal["text"]

    def specification(self) -> GrammarSpecification | None:
        return None


class JsonObjectFormat(_Constraint):
    """Any JSON object."""

    type: Literal["json_object"]

    def specification(self) -> GrammarSpecification | None:
        return JsonObjectSpecification()


class NamedJsonSchema(_Constraint):
    """OpenAI's wrapper around a schema. `name`, `description` and `strict` do not change what is enforced."""

    name: str = Field(description="A label of the caller's; it does not influence the output.")
    description: str | None = None
    json_schema: JsonSchema = Field(alias="schema")
    strict: StrictBool | None = Field(None, description="Accepted either way: the schema is always enforced.")


class JsonSchemaFormat(_Constraint):
    """Text that is valid under a JSON Schema, in OpenAI's shape (`json_schema`) or the short one (`schema`)."""

    type: Literal["json_schema"]
    wrapped: NamedJsonSchema | None = Field(None, alias="json_schema")
    bare: JsonSchema | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _one_schema(self) -> JsonSchemaFormat:
        if (self.wrapped is None) == (self.bare is None):
            raise PydanticCustomError("one_schema", "give exactly one of `json_schema` and `schema`")
        return self

    def specification(self) -> GrammarSpecification | None:
        schema = self.bare if self.wrapped is None else self.wrapped.json_schema
        assert schema is not None
        return JsonSchemaSpecification.model_validate({"schema": schema})


class RegexFormat(_Constraint):
    """Text that a regular expression matches as a whole."""

    type: Literal["regex"]
    pattern: str

    def specification(self) -> GrammarSpecification | None:
        return RegexSpecification(pattern=self.pattern)


class GrammarFormat(_Constraint):
    """Text of a context-free grammar."""

    type: Literal["grammar"]
    grammar: str = Field(description="The grammar as text.")
    syntax: Literal["gbnf", "lark"] | None = Field(
        None,
        description="Its notation. By default, a text in which a line defines a rule with `::=` is GBNF, else Lark.",
    )

    def specification(self) -> GrammarSpecification | None:
        return GrammarTextSpecification(syntax=self.syntax or guess_syntax(self.grammar), text=self.grammar)


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat, Field(discriminator="type")
]


class StructuredOutputs(_Constraint):
    """vLLM's spelling: exactly one key says what the output must match."""

    json_schema: JsonSchema | str | None = Field(
        None, alias="json", description="A JSON Schema, as an object or as its JSON text."
    )
    regex: str | None = Field(None, description="A regular expression that the whole output matches.")
    choice: list[str] | None = Field(None, min_length=1, description="The output is exactly one of these.")
    json_object: Literal[True] | None = Field(None, description="The output is any JSON object.")
    grammar: str | None = Field(
        None,
        description="A context-free grammar: GBNF (EBNF as llama.cpp writes it) where a line defines a rule with "
        "`::=`, else Lark.",
    )
    structural_tag: Any = Field(None, description="Not supported yet: refused.")

    @field_validator("json_schema")
    @classmethod
    def _parse_json_text(cls, value: JsonSchema | str | None) -> JsonSchema | None:
        if not isinstance(value, str):
            return value
        try:
            schema = from_json(value, allow_inf_nan=False)
        except ValueError as error:
            raise PydanticCustomError("schema_text", "not JSON: {error}", {"error": str(error)}) from error
        if not isinstance(schema, dict | bool):
            raise PydanticCustomError("schema_type", "a JSON Schema is an object or a boolean")
        return schema

    @field_validator("structural_tag")
    @classmethod
    def _refuse(cls, value: Any) -> None:
        if value is not None:
            raise PydanticCustomError("unsupported", "not supported yet")

    @model_validator(mode="after")
    def _one_key(self) -> StructuredOutputs:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "one_constraint", "give exactly one of `json`, `regex`, `choice`, `json_object`, `grammar`"
            )
        return self

    def specification(self) -> GrammarSpecification:
        if isinstance(self.json_schema, dict | bool):
            return JsonSchemaSpecification.model_validate({"schema": self.json_schema})
        if self.regex is not None:
            return RegexSpecification(pattern=self.regex)
        if self.choice is not None:
            return ChoiceSpecification(choices=self.choice)
        if self.grammar is not None:
            return GrammarTextSpecification(syntax=guess_syntax(self.grammar), text=self.grammar)
        return JsonObjectSpecification()

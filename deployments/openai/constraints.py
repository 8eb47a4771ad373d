"""Constraints in request bodies, and their translation into specifications for the grammar compiler.

Two formats are accepted: OpenAI's `response_format` and vLLM's `structured_outputs`. A specification is an object of
one of the classes in `grammar_workers.specification`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, StrictBool, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from deployments.chat.tool_bodies import STRICT
from deployments.http.client_fields import ClientModel
from deployments.http.fields import Only, parsed_json
from deployments.openai.structural_tags import Parts, StructuralTag
from grammar_workers.languages.cfg.reading import guess_syntax
from grammar_workers.specification import (
    MOST_ITEMS,
    AllOfSpecification,
    Automaton,
    AutomatonSpecification,
    BannedWordsSpecification,
    ChoiceSpecification,
    GrammarSpecification,
    GrammarTextSpecification,
    JsonObjectSpecification,
    JsonSchema,
    JsonSchemaSpecification,
    PatternElements,
    PatternSpecification,
    Positions,
    PositionsSpecification,
    RegexSpecification,
    Substring,
    SubstringSpecification,
    Texts,
)
from grammar_workers.validation import FailFast, by_json_type

Items: Any = Field(min_length=1, max_length=MOST_ITEMS)


class TextFormat(ClientModel):
    """Output format without a constraint: free text."""

    type: Literal["text"]

    def specification(self) -> GrammarSpecification | None:
        """Return None: there is no constraint."""
        return None


class JsonObjectFormat(ClientModel):
    """Output format: any JSON object."""

    renames: ClassVar[str] = "json_object"
    type: Literal["json_object"]

    def specification(self) -> GrammarSpecification | None:
        """Return the constraint in the compiler's format: a specification that allows any JSON object."""
        return JsonObjectSpecification()


class NamedJsonSchema(ClientModel):
    """JSON Schema in the wrapper object of OpenAI's API. `name` and `description` have no effect on the output."""

    name: str
    """Label for the client. It does not affect the output."""
    description: str | None = None
    json_schema: JsonSchema = Field(alias="schema")
    strict: StrictBool | None = Field(None, description=STRICT)


class JsonSchemaFormat(ClientModel):
    """Output format: JSON that is valid under a JSON Schema.

    Exactly one field must be given: `json_schema` (the schema in OpenAI's wrapper object) or `schema` (the bare
    schema).
    """

    type: Literal["json_schema"]
    wrapped: NamedJsonSchema | None = Field(None, alias="json_schema")
    bare: JsonSchema | None = Field(None, alias="schema")
    strict: StrictBool | None = None
    """For `schema`: `strict` as in `json_schema`."""

    @model_validator(mode="after")
    def _one_schema(self) -> JsonSchemaFormat:
        if (self.wrapped is None) == (self.bare is None):
            raise PydanticCustomError("one_schema", "give exactly one of `json_schema` and `schema`")
        return self

    def specification(self) -> GrammarSpecification | None:
        """Return the constraint in the compiler's format: a specification with the JSON Schema. It is never None."""
        schema = self.bare if self.wrapped is None else self.wrapped.json_schema
        assert schema is not None
        strict = bool(self.strict if self.wrapped is None else self.wrapped.strict)
        return JsonSchemaSpecification.model_validate({"schema": schema, "strict": strict})


class RegexFormat(ClientModel):
    """Output format: text that the regular expression `pattern` matches completely."""

    type: Literal["regex"]
    pattern: str

    def specification(self) -> GrammarSpecification:
        """Return the constraint in the compiler's format: a specification with the regular expression."""
        return RegexSpecification(pattern=self.pattern)


class GrammarFormat(ClientModel):
    """Output format: text that belongs to the language of a context-free grammar."""

    type: Literal["grammar"]
    grammar: str
    """Text of the grammar."""
    syntax: Literal["gbnf", "lark"] | None = None
    """Notation of the grammar. Default: GBNF if a line defines a rule with `::=`, otherwise Lark."""

    def specification(self) -> GrammarSpecification | None:
        """Return the constraint in the compiler's format: a specification with the text of the grammar. Never None.

        If `syntax` is None, the notation (GBNF or Lark) is detected from the text of the grammar.
        """
        return GrammarTextSpecification(syntax=self.syntax or guess_syntax(self.grammar), text=self.grammar)


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat | StructuralTag,
    Field(discriminator="type"),
]


class BannedWords(ClientModel):
    """Words or phrases that must not occur in the output.

    Case is ignored unless `case_sensitive` is true. With `whole_words`, only whole words are banned: an occurrence next
    to a letter, a digit or `_` is allowed.
    """

    words: Annotated[Texts, Items]
    case_sensitive: StrictBool = False
    whole_words: StrictBool = False
    """Ban the words only where no letter, digit or `_` stands next to them."""


AnyJsonSchema = Annotated[
    Annotated[dict[str, Any], Tag("object")] | Annotated[StrictBool, Tag("boolean")] | Annotated[str, Tag("string")],
    by_json_type("a JSON Schema: an object, a boolean, or the JSON text of one"),
]
AnyBannedWords = Annotated[
    Annotated[BannedWords, Tag("object")] | Annotated[Texts, Items, Tag("array")],
    by_json_type("a list of words, or an object with `words`"),
]
AnySubstring = Annotated[
    Annotated[Substring, Tag("object")] | Annotated[str, Tag("string")],
    by_json_type("a text, or an object with `text`"),
]
SUBSTRING = "A text. The output is a span of it. Alternatively, an object with `text` and settings of the comparison."
ON_UNSUPPORTED = (
    "Effect of a keyword of a JSON Schema that cannot be enforced. `reject`: the request gets HTTP 400. `report`: the "
    "response lists the keyword in `grammar.unenforced`, and the other keywords are enforced. Default: the server's "
    "grammar option `on_unsupported`, by default `reject`."
)
BANNED_WORDS = (
    "Words that the output must not contain: a list, or an object with `words` and settings of the comparison."
)


class StructuredOutputs(ClientModel):
    """Constraint on the output in vLLM's format. Exactly one field must be given. It selects the constraint's type.

    The fields `key`, `pattern`, `positions`, `automaton`, `substring`, `banned_words` and `all_of` do not exist in
    vLLM.
    """

    json_schema: AnyJsonSchema | None = Field(None, alias="json")
    """A JSON Schema, as an object or as its JSON text."""
    regex: str | None = None
    """A regular expression that the whole output matches."""
    choice: Annotated[Texts, Items] | None = None
    """Texts. The output equals one of them."""
    json_object: Annotated[Any, Only(True)] = None
    """The output is any JSON object."""
    key: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """Key of a compiled grammar (`/v1/grammars`)."""
    grammar: str | None = None
    """A context-free grammar: GBNF (the EBNF of llama.cpp) if a line defines a rule with `::=`, otherwise Lark."""
    structural_tag: StructuralTag | None = None
    """Free text with constrained regions such as tool calls, as an object or as its JSON text."""
    pattern: Annotated[PatternElements, Items] | None = None
    """A token pattern, such as `[["UPPER", "+"], [":", "1"]]`."""
    positions: Positions | None = None
    """For each position of the output, the allowed characters (strings) or token IDs (integers)."""
    automaton: Automaton | None = None
    """A deterministic finite automaton, as a table of transitions."""
    substring: AnySubstring | None = Field(None, description=SUBSTRING)
    banned_words: AnyBannedWords | None = Field(None, description=BANNED_WORDS)
    all_of: Annotated[list[GrammarSpecification], FailFast(), Parts] | None = None
    """Specifications with a `type`. The output matches all of them."""

    @field_validator("json_schema")
    @classmethod
    def _parse_schema(cls, value: JsonSchema | str | None) -> JsonSchema | None:
        if not isinstance(value, str):
            return value
        schema = parsed_json(value)
        if not isinstance(schema, dict | bool):
            raise PydanticCustomError("schema_type", "a JSON Schema is an object or a boolean")
        return schema

    @field_validator("structural_tag", mode="before")
    @classmethod
    def _parse_structural_tag(cls, value: Any) -> Any:
        return parsed_json(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_key(self) -> StructuredOutputs:
        if len(self._given()) != 1:
            fields = type(self).model_fields
            listed = ", ".join(f"`{field.alias or name}`" for name, field in fields.items())
            given = ", ".join(f"`{fields[name].alias or name}`" for name in self._given()) or "none"
            message = "give exactly one of {names} (given: {given})"
            raise PydanticCustomError("one_constraint", message, {"names": listed, "given": given})
        return self

    def specification(self) -> GrammarSpecification | None:
        """Return the constraint in the compiler's format: a specification.

        The result is None if the client has sent the key of a compiled grammar (field `key`) instead of a constraint.
        """
        (name,) = self._given()
        return _SPECIFICATIONS[name](getattr(self, name))

    def _given(self) -> list[str]:
        return [name for name in type(self).model_fields if getattr(self, name) is not None]


def banned_specification(banned: list[str] | BaseModel) -> BannedWordsSpecification:
    """Return the constraint that an output contains no banned word, as a specification for the compiler.

    Args:
        banned: List of the banned words, or a pydantic object with the fields of `BannedWords`.
    """
    return BannedWordsSpecification(**({"words": banned} if isinstance(banned, list) else banned.model_dump()))


# Field of `StructuredOutputs` -> function from its value to the specification.
_SPECIFICATIONS: dict[str, Callable[[Any], GrammarSpecification | None]] = {
    "json_schema": lambda schema: JsonSchemaSpecification(json_schema=schema),
    "regex": lambda pattern: RegexSpecification(pattern=pattern),
    "choice": lambda choices: ChoiceSpecification(choices=choices),
    "json_object": lambda true: JsonObjectSpecification(),
    "key": lambda key: None,
    "grammar": lambda text: GrammarTextSpecification(syntax=guess_syntax(text), text=text),
    "structural_tag": lambda tag: tag.specification(),
    "pattern": lambda elements: PatternSpecification(elements=elements),
    "positions": lambda allowed: PositionsSpecification(allowed=allowed),
    "automaton": lambda table: AutomatonSpecification(**dict(table)),
    "substring": lambda asked: SubstringSpecification(
        **({"text": asked} if isinstance(asked, str) else asked.model_dump())
    ),
    "banned_words": banned_specification,
    "all_of": lambda specifications: AllOfSpecification(specifications=specifications),
}

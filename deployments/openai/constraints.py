"""How a client names a constraint over HTTP, and its translation into a grammar specification.

Two spellings are accepted: OpenAI's `response_format` and vLLM's `structured_outputs`. Whatever the spelling, the
grammar tier sees one of the specifications in `grammar_workers.specification`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

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

STRICT = (
    "The schema is enforced either way. With `true`, a name that is nearly a keyword, such as `maxlength`, is refused "
    "with the keyword that may be meant, unless `on_unsupported` is `report`."
)
Items: Any = Field(min_length=1, max_length=MOST_ITEMS)


class TextFormat(ClientModel):
    """No constraint."""

    type: Literal["text"]

    def specification(self) -> GrammarSpecification | None:
        return None


class JsonObjectFormat(ClientModel):
    """Any JSON object."""

    renames: ClassVar[str] = "json_object"
    type: Literal["json_object"]

    def specification(self) -> GrammarSpecification | None:
        return JsonObjectSpecification()


class NamedJsonSchema(ClientModel):
    """OpenAI's wrapper around a schema. `name` and `description` do not change what is enforced."""

    name: str = Field(description="A label of the caller's; it does not influence the output.")
    description: str | None = None
    json_schema: JsonSchema = Field(alias="schema")
    strict: StrictBool | None = Field(None, description=STRICT)


class JsonSchemaFormat(ClientModel):
    """Text that is valid under a JSON Schema, in OpenAI's shape (`json_schema`) or the short one (`schema`)."""

    type: Literal["json_schema"]
    wrapped: NamedJsonSchema | None = Field(None, alias="json_schema")
    bare: JsonSchema | None = Field(None, alias="schema")
    strict: StrictBool | None = Field(None, description="Of `schema`, as in `json_schema`.")

    @model_validator(mode="after")
    def _one_schema(self) -> JsonSchemaFormat:
        if (self.wrapped is None) == (self.bare is None):
            raise PydanticCustomError("one_schema", "give exactly one of `json_schema` and `schema`")
        return self

    def specification(self) -> GrammarSpecification | None:
        schema = self.bare if self.wrapped is None else self.wrapped.json_schema
        assert schema is not None
        strict = bool(self.strict if self.wrapped is None else self.wrapped.strict)
        return JsonSchemaSpecification.model_validate({"schema": schema, "strict": strict})


class RegexFormat(ClientModel):
    """Text that a regular expression matches as a whole."""

    type: Literal["regex"]
    pattern: str

    def specification(self) -> GrammarSpecification:
        return RegexSpecification(pattern=self.pattern)


class GrammarFormat(ClientModel):
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
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat | StructuralTag,
    Field(discriminator="type"),
]


class BannedWords(ClientModel):
    """Words or phrases that must not occur."""

    words: Annotated[Texts, Items]
    case_sensitive: StrictBool = False
    whole_words: StrictBool = Field(False, description="Only between characters that are no letter, digit or `_`.")


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
SUBSTRING = "A text of which the string is a span, or an object that says how they are compared."
ON_UNSUPPORTED = (
    "A keyword of a JSON Schema that cannot be enforced: `refuse` it with 400, or `report` it in the answer's "
    "`grammar.unenforced` and enforce all else. Default: what the server's grammar options say, which is `refuse`."
)
BANNED_WORDS = "Words that must not occur: a list, or an object that says how they are compared."


class StructuredOutputs(ClientModel):
    """vLLM's spelling: exactly one key says what the output must match.

    The keys `pattern`, `positions`, `automaton`, `substring`, `banned_words` and `all_of` are additions.
    """

    json_schema: AnyJsonSchema | None = Field(
        None, alias="json", description="A JSON Schema, as an object or as its JSON text."
    )
    regex: str | None = Field(None, description="A regular expression that the whole output matches.")
    choice: Annotated[Texts, Items] | None = Field(None, description="The output is exactly one of these.")
    json_object: Annotated[Any, Only(True)] = Field(None, description="The output is any JSON object.")
    key: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="The key of a grammar compiled before (`/v1/grammars`)."
    )
    grammar: str | None = Field(
        None,
        description="A context-free grammar: GBNF (EBNF as llama.cpp writes it) where a line defines a rule with "
        "`::=`, else Lark.",
    )
    structural_tag: StructuralTag | None = Field(
        None, description="Free text with constrained regions such as tool calls, as an object or as its JSON text."
    )
    pattern: Annotated[PatternElements, Items] | None = Field(
        None, description='A token pattern, such as `[["UPPER", "+"], [":", "1"]]`.'
    )
    positions: Positions | None = Field(
        None, description="For each position the characters (strings) or the token ids (integers) that may stand there."
    )
    automaton: Automaton | None = Field(
        None, description="A deterministic finite automaton, as a table of transitions."
    )
    substring: AnySubstring | None = Field(None, description=SUBSTRING)
    banned_words: AnyBannedWords | None = Field(None, description=BANNED_WORDS)
    all_of: Annotated[list[GrammarSpecification], FailFast(), Parts] | None = Field(
        None, description="Specifications, each with its `type`, all of which the output must match."
    )

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
            names = (field.alias or name for name, field in type(self).model_fields.items())
            listed = ", ".join(f"`{name}`" for name in names)
            raise PydanticCustomError("one_constraint", "give exactly one of {names}", {"names": listed})
        return self

    def specification(self) -> GrammarSpecification | None:
        (name,) = self._given()
        return _SPECIFICATIONS[name](getattr(self, name))

    def _given(self) -> list[str]:
        return [name for name in type(self).model_fields if getattr(self, name) is not None]


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
    "banned_words": lambda banned: BannedWordsSpecification(
        **({"words": banned} if isinstance(banned, list) else banned.model_dump())
    ),
    "all_of": lambda specifications: AllOfSpecification(specifications=specifications),
}
"""What the value of each field of `StructuredOutputs` asks for."""

"""Grammar specifications: what a client asks for, as typed data that crosses HTTP, Serve and Redis alike."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictInt,
    TypeAdapter,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from grammar_workers import tag_formats
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.tag_formats import Format, JsonSchema
from grammar_workers.validation import FailFast, StrictModel

MOST_ITEMS = 1 << 19
"""More do not fit into a specification (`Limits.max_specification_bytes`)."""
MOST_POSITIONS = 1 << 17
MOST_PARTS = 4096
"""Specifications, or tags, that one specification is made of."""


class _Specification(StrictModel):
    """A part of a specification; validating any dump of it, with aliases or without, gives an equal one."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class JsonSchemaSpecification(_Specification):
    """A JSON text valid under `schema` (a JSON Schema object or boolean)."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: JsonSchema = Field(alias="schema")
    strict: StrictBool = Field(
        False,
        description="Refuse a name that is nearly a keyword, such as `maxlength`, unless `on_unsupported` is `report`. "
        "It is no part of the key.",
    )


class JsonObjectSpecification(_Specification):
    """Any JSON object, nested freely."""

    type: Literal["json_object"] = "json_object"


class RegexSpecification(_Specification):
    """Text that `pattern` matches as a whole."""

    type: Literal["regex"] = "regex"
    pattern: str


Texts = Annotated[list[str], FailFast()]


class ChoiceSpecification(_Specification):
    """Exactly one of `choices`."""

    type: Literal["choice"] = "choice"
    choices: Texts = Field(min_length=1, max_length=MOST_ITEMS)


PatternElements = Annotated[list[tuple[str, str]], FailFast()]


class PatternSpecification(_Specification):
    """A sequence of (class or literal text, quantifier): `[["UPPER", "+"], [":", "1"], ["LOWER", "{2,5}"]]`.

    Classes, in ASCII: UPPER, LOWER, LETTER, DIGIT, SPACE (space and tab), NEWLINE (line feed), PUNCT, and ANY, every
    character. Any other text stands for itself. Quantifiers: 1, ?, *, +, {m}, {m,} and {m,n}.
    """

    type: Literal["pattern"] = "pattern"
    elements: PatternElements = Field(min_length=1, max_length=MOST_ITEMS)


@dataclasses.dataclass(frozen=True)
class _TextOrInteger:
    """Annotation of `str | int` that takes neither for the other; `expected` is the message to a client."""

    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [core_schema.str_schema(strict=True), core_schema.int_schema(strict=True)],
            custom_error_type="text_or_integer",
            custom_error_message=self.expected,
        )


_CharacterOrToken = _TextOrInteger("a position lists characters (strings) or token ids (integers)")

Position = Annotated[
    list[Annotated[str | int, _CharacterOrToken]], FailFast(), Field(min_length=1, max_length=MOST_ITEMS)
]
Positions = Annotated[list[Position], FailFast(), Field(min_length=1, max_length=MOST_POSITIONS)]
"""What may stand at each position: characters, or ids of tokens."""


class PositionsSpecification(_Specification):
    """As many steps as `allowed` has lists: the i-th is one of the characters, or of the token ids, of the i-th list.

    A step of token ids is exactly one of these tokens, whatever its text; a special token may be named so. A list
    holds either characters or token ids. With token ids it cannot be part of an `all_of` or of a tag.
    """

    type: Literal["positions"] = "positions"
    allowed: Positions


AutomatonState = Annotated[str | int, _TextOrInteger("a state is named by a string or an integer")]

_TokenId = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]


class Transition(_Specification):
    """From the state `from` to the state `to`: on a character that `pattern` matches, or on one of `tokens`.

    `pattern` is a regular expression that matches single characters only: `a`, `[A-Z_]`, `\\d`, `\\.`.
    """

    source: AutomatonState = Field(alias="from")
    target: AutomatonState = Field(alias="to")
    pattern: str | None = None
    tokens: Annotated[list[_TokenId], FailFast(), Field(min_length=1, max_length=MOST_ITEMS)] | None = None

    @model_validator(mode="after")
    def _on_one_kind(self) -> Transition:
        if (self.pattern is None) == (self.tokens is None):
            raise PydanticCustomError("one_kind", "give exactly one of `pattern` and `tokens`")
        return self


class Automaton(_Specification):
    """A deterministic finite automaton as a table that its author wrote: where each state leads.

    A text matches if its transitions lead from `initial` to a state in `accepting`. Nothing else is allowed: what has
    no transition is forbidden, and so is what leads to a state from which no accepting one can be reached (`notes`
    list such states). A state reads either characters or token ids; two transitions of a state for the same character
    or token must lead to the same state.
    """

    initial: AutomatonState
    accepting: Annotated[list[AutomatonState], FailFast(), Field(min_length=1, max_length=MOST_ITEMS)]
    transitions: Annotated[list[Transition], FailFast(), Field(max_length=MOST_ITEMS)]


class AutomatonSpecification(Automaton):
    """Text that the finite automaton accepts: its `transitions` lead from `initial` to a state in `accepting`.

    A transition is taken on one character (`pattern`) or on one of some token ids (`tokens`), whatever the text of
    these; a special token may be named so. With token ids it cannot be part of an `all_of` or of a tag.
    """

    type: Literal["automaton"] = "automaton"


class GrammarTextSpecification(_Specification):
    """Text of a context-free grammar: `gbnf` (llama.cpp's notation; the language of `root`) or `lark` (of `start`).

    `docs/constraints.md` lists what is understood of the two notations.
    """

    type: Literal["grammar"] = "grammar"
    syntax: Literal["gbnf", "lark"]
    text: str


class Substring(_Specification):
    """A string that is a span of `text`: it stands in the text as it is. The empty string is one.

    With `whole_words`, no span begins or ends within a word, that is between two letters, digits or underscores of any
    script (what `\\w` matches in Python). Unless `case_sensitive`, each letter may also be written in lower or in upper
    case, where that is one character.
    """

    text: str
    whole_words: StrictBool = False
    case_sensitive: StrictBool = True

    @field_validator("text")
    @classmethod
    def _has_no_surrogate(cls, text: str) -> str:
        if has_surrogate(text):
            raise PydanticCustomError("surrogate", "the text holds a lone surrogate")
        return text


class SubstringSpecification(Substring):
    """A span of `text`, such as a citation: the output stands in the text as it is, or is empty.

    With `whole_words`, no span begins or ends within a word, that is between two letters, digits or underscores of any
    script (what `\\w` matches in Python). Unless `case_sensitive`, each letter may also be written in lower or in upper
    case, where that is one character. A text has up to 131,072 characters; one that is combined with other
    specifications has fewer (`max_regex_states`).
    """

    type: Literal["substring"] = "substring"


class BannedWordsSpecification(_Specification):
    """Text in which none of `words` (words or phrases) occurs, however the tokens cut it.

    Alone it constrains free text; inside `all_of` it constrains whatever the other specifications allow. In JSON the
    words are looked for in every decoded string and property name, and in the raw text. A match never reaches over the
    border to the prompt.

    A word occurs where it is a substring. Unless `case_sensitive`, text and words are compared after Unicode case
    folding (`str.casefold`: `STRASSE` and `straße` are equal), without any other normalisation. With `whole_words`, the
    characters before and after an occurrence in the (folded) text must not be word characters: letters, digits and the
    underscore of all scripts, what `\\w` matches in Python.
    """

    type: Literal["banned_words"] = "banned_words"
    words: Texts = Field(min_length=1, max_length=MOST_ITEMS)
    case_sensitive: StrictBool = False
    whole_words: StrictBool = False


class AllOfSpecification(_Specification):
    """Text that every one of `specifications` allows.

    Regular kinds (`regex`, `choice`, `pattern`, `positions` and `automaton` of characters, `substring`, `banned_words`,
    a `grammar` without true recursion) combine with each other and with one or more JSON kinds, one recursive
    `grammar`, or one `structural_tag`; other combinations are refused with the place of the specification that does not
    fit.
    """

    type: Literal["all_of"] = "all_of"
    specifications: Annotated[list[GrammarSpecification], FailFast()] = Field(min_length=1, max_length=MOST_PARTS)


class Tag(_Specification):
    """A constrained region: the text `begin`, what `content` allows, the text `end`.

    Both texts may contain special tokens of the vocabulary by name. A region whose content is neither JSON nor a
    recursive grammar ends with the first occurrence of `end`, so its content never contains `end`.
    """

    begin: str = Field(min_length=1)
    content: GrammarSpecification
    end: str


class StructuralTagSpecification(_Specification):
    """Text made of formats, or free text in which a trigger opens a constrained region, such as a tool call.

    `format` is the language of xgrammar's structural tags, see `docs/structural-tags.md`; nothing else goes with it.

    With `tags` and `triggers`: as soon as the text ends with one of `triggers`, it must go on with the rest of one of
    the `begin` texts that start with this trigger, then the content and the `end` of that tag; after it the text is
    free again. A trigger that names a special token of the vocabulary is that token; its characters are then not
    generated as text.

    `at_least_one`: the text may not end before one region is complete. `stop_after_first`: nothing follows the first.
    """

    type: Literal["structural_tag"] = "structural_tag"
    format: Format | None = None
    tags: Annotated[list[Tag], FailFast()] = Field([], max_length=MOST_PARTS)
    triggers: Texts = Field([], max_length=MOST_PARTS)
    at_least_one: StrictBool = False
    stop_after_first: StrictBool = False

    @model_validator(mode="after")
    def _in_one_shape(self) -> StructuralTagSpecification:
        if self.format is None:
            for name in ("tags", "triggers"):
                if not getattr(self, name):
                    raise PydanticCustomError("structural_tag", "give `format`, or `tags` and `triggers`")
        elif self.tags or self.triggers or self.at_least_one or self.stop_after_first:
            # By value: a dump that was read again has set every field.
            raise PydanticCustomError("structural_tag", "nothing else goes with `format`")
        return self


GrammarSpecification = Annotated[
    JsonSchemaSpecification
    | JsonObjectSpecification
    | RegexSpecification
    | ChoiceSpecification
    | PatternSpecification
    | PositionsSpecification
    | AutomatonSpecification
    | GrammarTextSpecification
    | SubstringSpecification
    | BannedWordsSpecification
    | AllOfSpecification
    | StructuralTagSpecification,
    Field(discriminator="type"),
]

AllOfSpecification.model_rebuild()
Tag.model_rebuild()
tag_formats.rebuild(GrammarSpecification)
StructuralTagSpecification.model_rebuild()

SPECIFICATION: TypeAdapter[GrammarSpecification] = TypeAdapter(GrammarSpecification)
"""Parses plain data into a specification; raises `pydantic.ValidationError` naming the unknown or missing key."""

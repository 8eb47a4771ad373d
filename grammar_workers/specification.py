"""Grammar specifications: constraints on the output of a model, as pydantic models."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, get_args

from pydantic import (
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
from grammar_workers.scalar_values import has_surrogate
from grammar_workers.tag_formats import Format, JsonSchema
from grammar_workers.validation import FailFast, StrictModel

# Maximum number of items of a list. More do not fit into a specification (`Limits.max_specification_bytes`).
MOST_ITEMS = 1 << 19
MOST_POSITIONS = 1 << 17
# Maximum number of specifications, or tags, in one specification.
MOST_PARTS = 4096


class _Specification(StrictModel, frozen=True, populate_by_name=True):
    """Base of specifications and their parts.

    Validating a dump of it, with or without aliases, gives an equal object.
    """


class JsonSchemaSpecification(_Specification):
    """JSON text that is valid under `schema`, which is a JSON Schema: an object or a boolean."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: JsonSchema = Field(alias="schema")
    strict: StrictBool = False
    """`true`: reject a schema with a misspelled keyword, such as `maxlength`, unless `on_unsupported` is `report`. This
    field is not part of the grammar key."""


class JsonObjectSpecification(_Specification):
    """JSON object with any properties, nested to any depth."""

    type: Literal["json_object"] = "json_object"


class RegexSpecification(_Specification):
    """Text that the regular expression `pattern` matches as a whole."""

    type: Literal["regex"] = "regex"
    pattern: str


Texts = Annotated[list[str], FailFast()]


class ChoiceSpecification(_Specification):
    """Text that equals one of the texts in `choices`."""

    type: Literal["choice"] = "choice"
    choices: Texts = Field(min_length=1, max_length=MOST_ITEMS)


PatternElements = Annotated[list[tuple[str, str]], FailFast()]


class PatternSpecification(_Specification):
    """Text that matches the pairs in `elements`, one after the other.

    A pair has a class of characters (or a literal text) and a quantifier. Example: `[["UPPER", "+"], [":", "1"],
    ["LOWER", "{2,5}"]]`. The classes UPPER, LOWER, LETTER, DIGIT, SPACE (space and tab), NEWLINE (line feed) and PUNCT
    have ASCII characters. ANY has every character. Any other text is literal. The quantifiers are 1, ?, *, +, {m}, {m,}
    and {m,n}.
    """

    type: Literal["pattern"] = "pattern"
    elements: PatternElements = Field(min_length=1, max_length=MOST_ITEMS)


@dataclasses.dataclass(frozen=True)
class _TextOrInteger:
    """Annotation of `str | int` that converts neither to the other. `expected` is the message to a client."""

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
# Characters, or IDs of tokens, that are allowed at each position.
Positions = Annotated[list[Position], FailFast(), Field(min_length=1, max_length=MOST_POSITIONS)]


class PositionsSpecification(_Specification):
    """Output of fixed length: each list in `allowed` has the characters, or the token IDs, of one position.

    A list has either characters or token IDs. A token ID allows exactly this token, even if it is special. Other tokens
    with the same text are not allowed. With token IDs, this specification cannot be part of an `all_of` or of a
    structural tag.
    """

    type: Literal["positions"] = "positions"
    allowed: Positions


AutomatonState = Annotated[str | int, _TextOrInteger("a state is named by a string or an integer")]

_TokenId = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]


class Transition(_Specification):
    r"""Transition of an automaton from the state `from` to the state `to`.

    Exactly one of `pattern` and `tokens` is set. `pattern` is a regular expression for one character, such as `a`,
    `[A-Z_]`, `\d` or `\.`. The automaton takes the transition on each character that `pattern` matches. `tokens` has
    token IDs. The automaton takes the transition on each of these tokens.
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
    """Deterministic finite automaton as a table of transitions.

    A text matches if its transitions lead from `initial` to a state in `accepting`. A character or token without a
    transition is not allowed. A state is dead if no accepting state can be reached from it. A transition to a dead
    state is never taken. The warnings of the compiled grammar list the dead states. A state reads either characters or
    token IDs. If two transitions of a state have a character or token in common, they must lead to the same state.
    """

    initial: AutomatonState
    accepting: Annotated[list[AutomatonState], FailFast(), Field(min_length=1, max_length=MOST_ITEMS)]
    transitions: Annotated[list[Transition], FailFast(), Field(max_length=MOST_ITEMS)]


class AutomatonSpecification(Automaton):
    """Text that a finite automaton accepts: its `transitions` lead from `initial` to a state in `accepting`.

    A transition has either `pattern` and reads one character, or `tokens` (token IDs) and reads one token. A token ID
    allows exactly this token, even if it is special. With token IDs, this specification cannot be part of an `all_of`
    or of a structural tag.
    """

    type: Literal["automaton"] = "automaton"


class GrammarTextSpecification(_Specification):
    """Text that the context-free grammar in `text` allows. `syntax` is its notation: `gbnf` (of llama.cpp) or `lark`.

    The start rule is `root` in `gbnf` and `start` in `lark`. `docs/constraints.md` lists the supported features of both
    notations.
    """

    type: Literal["grammar"] = "grammar"
    syntax: Literal["gbnf", "lark"]
    text: str


class Substring(_Specification):
    r"""Contiguous part of `text`, or the empty text.

    With `whole_words`, the output does not begin or end inside a word of `text`. A word is a sequence of characters
    that `\w` matches in Python: letters, digits and underscores of any script. Without `case_sensitive`, each letter
    may also be replaced by its lower-case or upper-case form, if this form is one character.
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
    r"""Contiguous part of `text`, such as a citation, or the empty text.

    With `whole_words`, the output does not begin or end inside a word of `text`. A word is a sequence of characters
    that `\w` matches in Python: letters, digits and underscores of any script. Without `case_sensitive`, each letter
    may also be replaced by its lower-case or upper-case form, if this form is one character. `text` has at most 131,072
    characters, and fewer if this specification is combined with others (see the limit `max_regex_states`).
    """

    type: Literal["substring"] = "substring"


class BannedWordsSpecification(_Specification):
    r"""Text that contains none of the words or phrases in `words`, however it is tokenized.

    Alone, this specification constrains free text. Inside `all_of`, it constrains the text that the other
    specifications allow. In JSON, the words must occur neither in decoded strings and property names, nor in the raw
    text. The prompt is not searched.

    A text contains a word if the word is a substring. With `whole_words`, the character before the substring and the
    character after it must not be word characters. Word characters are those that `\w` matches in Python: letters,
    digits and underscores of any script. Without `case_sensitive`, text and words are compared after Unicode case
    folding (`str.casefold`), by which `STRASSE` and `straße` are equal.
    """

    type: Literal["banned_words"] = "banned_words"
    words: Texts = Field(min_length=1, max_length=MOST_ITEMS)
    case_sensitive: StrictBool = False
    whole_words: StrictBool = False


class AllOfSpecification(_Specification):
    """Text that all of `specifications` allow.

    A specification is regular if a finite automaton can check it. These are regular: `regex`, `choice`, `pattern`,
    `positions` and `automaton` of characters, `substring`, `banned_words`, and a `grammar` whose recursion can be
    removed.

    Any number of regular specifications can be combined. In addition, `specifications` may contain one or more JSON
    specifications, or one recursive `grammar`, or one `structural_tag`. Other combinations are rejected. The error
    names the specification that cannot be combined.
    """

    type: Literal["all_of"] = "all_of"
    specifications: Annotated[list[GrammarSpecification], FailFast()] = Field(min_length=1, max_length=MOST_PARTS)


class Tag(_Specification):
    """Constrained region of a text: the text `begin`, a text that `content` allows, and the text `end`.

    `begin` and `end` may contain names of special tokens, which then stand for these tokens. JSON, and grammars
    that are recursive or contain tokens or JSON, may contain the text `end`. Any other content ends before the first
    occurrence of `end`.
    """

    begin: str = Field(min_length=1)
    content: GrammarSpecification
    end: str


class StructuralTagSpecification(_Specification):
    """Free text with constrained regions (tags), such as tool calls, or text that a format describes.

    Give either `format`, or `tags` and `triggers`. A format is a rule for a text, in the language of xgrammar's
    structural tags (see `docs/structural-tags.md`). No other field can be combined with `format`.

    A trigger is the beginning of the text `begin` of one or more tags. As soon as the free text contains a trigger, one
    of these tags must follow: the rest of its `begin`, its content and its `end`. Then the text is free again. If a
    trigger is the name of a special token, only this token is the trigger, and its characters are not generated as
    text.

    With `at_least_one`, the text cannot end before one tag is complete. With `stop_after_first`, the text ends after
    the first tag.
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
            # The values are compared, because a parsed dump sets every field.
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

# Name of each type of specification -> its model. No JSON Schema has one of these names as its `type`.
KINDS: dict[str, Any] = {
    part.model_fields["type"].default: part for part in get_args(get_args(GrammarSpecification)[0])
}

# Parser of plain data. It raises `pydantic.ValidationError`, which names the unknown or missing key.
SPECIFICATION: TypeAdapter[GrammarSpecification] = TypeAdapter(GrammarSpecification)

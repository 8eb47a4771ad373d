"""Pydantic models of the formats of structural tags, in the notation of xgrammar 0.2.9.

A format is a rule for a part of the output, and may contain other formats. A tag is a constrained region of the output,
such as a tool call. `SpecificationFormat`, `ParametersFormat` and the field `required` of `TriggeredTagsFormat` are
extensions of Turnstile. docs/structural-tags.md describes each format, and the differences from xgrammar.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StrictBool, StrictInt, model_validator
from pydantic import Tag as Member
from pydantic_core import PydanticCustomError

from grammar_workers.validation import FailFast, FrozenModel, by_json_type

# Maximum number of parts of one format.
MOST_FORMATS = 4096
MOST_TEXTS = 1 << 17

# Notation of a value: JSON, or its properties one by one between the markers of a family of models.
Style = Literal[
    "json",
    "qwen_xml",
    "minimax_xml",
    "minimax_m3_xml",
    "deepseek_xml",
    "glm_xml",
    "cohere_xml",
    "kimi_k3_xml",
    "deepseek_v4_1_xml",
    "gemma",
]

JsonSchema = Annotated[
    Annotated[dict[str, Any], Member("object")] | Annotated[StrictBool, Member("boolean")],
    by_json_type("a JSON Schema: an object or a boolean"),
]
_Texts = Annotated[list[str], FailFast(), Field(max_length=MOST_TEXTS)]
_Item = TypeVar("_Item")
_Some = Annotated[list[_Item], FailFast(), Field(min_length=1, max_length=MOST_FORMATS)]
_Pattern = Annotated[str, Field(min_length=1)]
_Limit = Annotated[StrictInt, Field(ge=0, le=2_147_483_647)]
TokenName = Annotated[
    Annotated[str, Field(min_length=1), Member("string")]
    | Annotated[StrictInt, Field(ge=0, lt=1 << 31), Member("number")],
    by_json_type("a token: its id or its text"),
]
_TokenNames = Annotated[list[TokenName], FailFast(), Field(max_length=MOST_TEXTS)]


class _Format(FrozenModel):
    """Base of the models of all formats."""


class ConstStringFormat(_Format):
    """Text that equals `value`."""

    type: Literal["const_string"] = "const_string"
    value: str


class JsonSchemaFormat(_Format):
    """Value that is valid under a JSON Schema, in the notation `style`.

    With `any_order` (only in the style `json`), properties may have any order. `max_whitespace_cnt` is the maximum
    number of whitespace characters: in the style `json`, between two JSON tokens, 1 to 64; in other styles, between two
    elements, where 0 allows none. None: `GrammarOptions` determines the whitespace. No string or property name may
    contain a text in `excludes`.
    """

    type: Literal["json_schema"] = "json_schema"
    json_schema: JsonSchema
    style: Style = "json"
    any_order: StrictBool = False
    max_whitespace_cnt: _Limit | None = None
    excludes: _Texts = Field([])


class QwenXmlParameterFormat(_Format):
    """Value that is valid under a JSON Schema, in the notation `qwen_xml`. Older form of `json_schema` with `style`."""

    type: Literal["qwen_xml_parameter"] = "qwen_xml_parameter"
    json_schema: JsonSchema


class RegexFormat(_Format):
    """Text that the regular expression `pattern` matches as a whole."""

    type: Literal["regex"] = "regex"
    pattern: str


class GrammarFormat(_Format):
    """Text that a context-free grammar in GBNF (xgrammar's EBNF) or Lark allows.

    `syntax` is the notation of `grammar`. `ebnf` means GBNF. None: the notation is detected from the text.
    """

    type: Literal["grammar"] = "grammar"
    grammar: str
    syntax: Literal["ebnf", "lark"] | None = None


class AnyTextFormat(_Format):
    """Free text. It contains no text in `excludes`, and not the end of the tag (constrained region) around it.

    `max_chars` and `max_tokens` are the maximum numbers of characters and of tokens. None: no limit. A token counts if
    it starts inside the text, at the beginning of a character.
    """

    type: Literal["any_text"] = "any_text"
    excludes: _Texts = Field([])
    max_tokens: _Limit | None = None
    max_chars: _Limit | None = None


class TokenFormat(_Format):
    """Exactly one token. `token` is its ID or its text."""

    type: Literal["token"] = "token"
    token: TokenName


class ExcludeTokenFormat(_Format):
    """Exactly one token that is not in `exclude_tokens` (IDs or texts of tokens)."""

    type: Literal["exclude_token"] = "exclude_token"
    exclude_tokens: _TokenNames = Field([])


class AnyTokensFormat(_Format):
    """At most `max_tokens` tokens (None: any number) that are not in `exclude_tokens` (IDs or texts of tokens)."""

    type: Literal["any_tokens"] = "any_tokens"
    exclude_tokens: _TokenNames = Field([])
    max_tokens: _Limit | None = None


class SpecificationFormat(_Format):
    """Text that a grammar specification of any type allows.

    Inside a tag (constrained region), the text does not contain the end of the tag if the specification is regular. A
    specification is regular if a finite automaton can check it.
    """

    type: Literal["specification"] = "specification"
    specification: GrammarSpecification  # type: ignore[name-defined]  # noqa: F821 - of grammar_workers.specification


class ParametersFormat(_Format):
    """Properties of an object that is valid under a JSON Schema, each written as the template `element`.

    `element` contains `$key` and `$value` once each, such as `<arg name=$key>$value</arg>`. `separator` is the text
    between two properties. `notation` is the notation of the values:

    - `plain`: strings are not escaped, and other values are JSON.
    - `python`: values are Python literals, with strings in double quotes. Property names must be valid Python names.
    - `bare`: Gemma's notation. Names have no quotes. Strings are not escaped, and have the text `quote` on both sides.
    """

    type: Literal["parameters"] = "parameters"
    json_schema: JsonSchema
    element: _Pattern
    separator: str = ""
    notation: Literal["plain", "python", "bare"] = "plain"
    quote: str = ""

    @model_validator(mode="after")
    def _has_holes(self) -> ParametersFormat:
        for hole in ("$key", "$value"):
            if self.element.count(hole) != 1:
                raise PydanticCustomError("element", "`element` has $key and $value, once each")
        before, _, after = self.element.partition("$value")
        if (self.notation == "bare") != bool(self.quote.strip()):
            raise PydanticCustomError("quote", "the notation `bare`, and no other, has a `quote`")
        if self.notation != "plain":
            if not before.startswith("$key") or not before.removeprefix("$key").strip() or "$" in before[1:] + after:
                raise PydanticCustomError("element", "in this notation `element` is $key, a text, $value")
        elif before.startswith("$") or "$key$" in before or "$key" not in before or not after.strip() or "$" in after:
            raise PydanticCustomError(
                "element", "`element` begins with a text, has one after $key, and ends with one behind $value"
            )
        return self


class SequenceFormat(_Format):
    """Concatenation of one text for each format in `elements`, in their order."""

    type: Literal["sequence"] = "sequence"
    elements: Formats


class OrFormat(_Format):
    """Text that at least one of the formats in `elements` allows."""

    type: Literal["or"] = "or"
    elements: Formats


class OptionalFormat(_Format):
    """Text that the format `content` allows, or the empty text."""

    type: Literal["optional"] = "optional"
    content: Format


class PlusFormat(_Format):
    """Concatenation of one or more texts that the format `content` allows."""

    type: Literal["plus"] = "plus"
    content: Format


class StarFormat(_Format):
    """Concatenation of zero or more texts that the format `content` allows."""

    type: Literal["star"] = "star"
    content: Format


class RepeatFormat(_Format):
    """Concatenation of `min` to `max` texts that the format `content` allows. If `max` is -1, there is no maximum."""

    type: Literal["repeat"] = "repeat"
    min: _Limit
    max: Annotated[StrictInt, Field(ge=-1, le=2_147_483_647)]
    content: Format

    @model_validator(mode="after")
    def _in_order(self) -> RepeatFormat:
        if -1 < self.max < self.min:
            raise PydanticCustomError("repeat", "`max` is less than `min`")
        return self


class TagFormat(_Format):
    """Constrained region of the output: `begin`, then a text that the format `content` allows, then `end`.

    `begin` is a text or a token. `end` is a text, a token, or a list of alternative texts.
    """

    type: Literal["tag"] = "tag"
    begin: Annotated[
        Annotated[str, Member("string")] | Annotated[TokenFormat, Member("object")], by_json_type("a text or a token")
    ]
    content: Format
    end: Annotated[
        Annotated[str, Member("string")]
        | Annotated[_Texts, Field(min_length=1, max_length=MOST_FORMATS), Member("array")]
        | Annotated[TokenFormat, Member("object")],
        by_json_type("a text, a list of texts, or a token"),
    ]

    @property
    def ends(self) -> list[str]:
        """Alternative texts that end the tag (constrained region). [] if a token ends the tag."""
        if isinstance(self.end, TokenFormat):
            return []
        return [self.end] if isinstance(self.end, str) else self.end


class TriggeredTagsFormat(_Format):
    """Free text with tags (constrained regions) that begin with one of `triggers`.

    Each trigger is the beginning of the `begin` of one or more tags in `tags`. As soon as the free text contains a
    trigger, one of these tags must follow. With `at_least_one`, the text begins with a tag. With `required`, the text
    contains a tag at any position. With `stop_after_first`, the text ends after the first tag. The free text contains
    no text in `excludes`.
    """

    type: Literal["triggered_tags"] = "triggered_tags"
    triggers: _Some[_Pattern]
    tags: _Some[TagFormat]
    at_least_one: StrictBool = False
    required: StrictBool = False
    stop_after_first: StrictBool = False
    excludes: _Texts = Field([])


class TokenTriggeredTagsFormat(_Format):
    """Free tokens with tags (constrained regions) that begin with one of `trigger_tokens`.

    Each trigger token is the `begin` of one or more tags in `tags`. After a trigger token, the rest of one of these
    tags must follow. With `at_least_one`, the sequence begins with a tag. With `stop_after_first`, it ends after the
    first tag. The free tokens are not in `exclude_tokens`.
    """

    type: Literal["token_triggered_tags"] = "token_triggered_tags"
    trigger_tokens: _Some[TokenName]
    tags: _Some[TagFormat]
    exclude_tokens: _TokenNames = Field([])
    at_least_one: StrictBool = False
    stop_after_first: StrictBool = False


class TagsWithSeparatorFormat(_Format):
    """Tags (constrained regions) from `tags`, with the text `separator` between two tags and no other text.

    With `at_least_one`, there is at least one tag. With `stop_after_first`, the text ends after the first tag.
    """

    type: Literal["tags_with_separator"] = "tags_with_separator"
    tags: _Some[TagFormat]
    separator: str
    at_least_one: StrictBool = False
    stop_after_first: StrictBool = False


class DispatchFormat(_Format):
    """Free text in which certain texts must be followed by a text of a certain format.

    `rules` has pairs (text, format). As soon as the free text contains the text of a pair, a text that the format of
    the pair allows must follow. With `loop`, free text follows afterwards. Without `loop`, the output of this format
    ends there. The free text contains no text in `excludes`.
    """

    type: Literal["dispatch"] = "dispatch"
    rules: _Some[tuple[_Pattern, Format]]
    loop: StrictBool = True
    excludes: _Texts = Field([])


class TokenDispatchFormat(_Format):
    """Free tokens in which certain tokens must be followed by a text of a certain format.

    `rules` has pairs (token, format). After the token of a pair, a text that the format of the pair allows must follow.
    With `loop`, free tokens follow afterwards. Without `loop`, the output of this format ends there. The free tokens
    are not in `exclude_tokens`.
    """

    type: Literal["token_dispatch"] = "token_dispatch"
    rules: _Some[tuple[TokenName, Format]]
    loop: StrictBool = True
    exclude_tokens: _TokenNames = Field([])


Format = Annotated[
    AnyTextFormat
    | ConstStringFormat
    | JsonSchemaFormat
    | GrammarFormat
    | RegexFormat
    | QwenXmlParameterFormat
    | OrFormat
    | SequenceFormat
    | TagFormat
    | TriggeredTagsFormat
    | TokenTriggeredTagsFormat
    | TagsWithSeparatorFormat
    | OptionalFormat
    | PlusFormat
    | StarFormat
    | TokenFormat
    | ExcludeTokenFormat
    | AnyTokensFormat
    | RepeatFormat
    | DispatchFormat
    | TokenDispatchFormat
    | SpecificationFormat
    | ParametersFormat,
    Field(discriminator="type"),
]
Formats = _Some[Format]


def rebuild(specification: Any) -> None:
    """Resolve the forward references of this module's models to `GrammarSpecification`, which is defined later.

    Args:
        specification: The type `GrammarSpecification`: the union of all models of specifications.
    """
    for model in _Format.__subclasses__():
        model.model_rebuild(_types_namespace={"GrammarSpecification": specification})

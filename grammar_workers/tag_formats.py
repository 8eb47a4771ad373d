"""The language of structural tags: formats as typed data, in the spelling of xgrammar 0.2.8, which vLLM and others use.

A format describes a piece of text and is made of formats. `SpecificationFormat` is ours: any specification as a format.
What each means, and where it differs from xgrammar, stands in docs/structural-tags.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StrictBool, StrictInt, model_validator
from pydantic import Tag as Member
from pydantic_core import PydanticCustomError

from grammar_workers.validation import FailFast, FrozenModel, by_json_type

MOST_FORMATS = 4096
"""Parts of one format."""
MOST_TEXTS = 1 << 17

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
]
"""How a value is written: as JSON, or its properties one by one between the markers of a family of models."""

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
    """A format; every model of one is a subclass."""


class ConstStringFormat(_Format):
    """Exactly the text `value`."""

    type: Literal["const_string"] = "const_string"
    value: str


class JsonSchemaFormat(_Format):
    """A value that is valid under a JSON Schema, written in a style.

    `any_order`: properties come in any order. `max_whitespace_cnt`: the most white space in one gap. `excludes`: texts
    that no string and no property name holds.
    """

    type: Literal["json_schema"] = "json_schema"
    json_schema: JsonSchema
    style: Style = "json"
    any_order: StrictBool = False
    max_whitespace_cnt: _Limit | None = None
    excludes: _Texts = Field([])


class QwenXmlParameterFormat(_Format):
    """The older spelling of `json_schema` with the style `qwen_xml`."""

    type: Literal["qwen_xml_parameter"] = "qwen_xml_parameter"
    json_schema: JsonSchema


class RegexFormat(_Format):
    """Text that `pattern` matches as a whole."""

    type: Literal["regex"] = "regex"
    pattern: str


class GrammarFormat(_Format):
    """Text of a context-free grammar: GBNF (xgrammar's EBNF) or Lark."""

    type: Literal["grammar"] = "grammar"
    grammar: str


class AnyTextFormat(_Format):
    """Any text that holds none of `excludes` and none of the ends of the tag around it."""

    type: Literal["any_text"] = "any_text"
    excludes: _Texts = Field([])
    max_tokens: _Limit | None = None
    max_chars: _Limit | None = None


class TokenFormat(_Format):
    """One token, by its id or its text."""

    type: Literal["token"] = "token"
    token: TokenName


class ExcludeTokenFormat(_Format):
    """One token that is none of these."""

    type: Literal["exclude_token"] = "exclude_token"
    exclude_tokens: _TokenNames = Field([])


class AnyTokensFormat(_Format):
    """Any number of tokens, or up to `max_tokens`, none of which is one of `exclude_tokens`."""

    type: Literal["any_tokens"] = "any_tokens"
    exclude_tokens: _TokenNames = Field([])
    max_tokens: _Limit | None = None


class SpecificationFormat(_Format):
    """What a specification of any type allows. One that is regular and stands in a tag holds none of the tag's ends."""

    type: Literal["specification"] = "specification"
    specification: GrammarSpecification  # type: ignore[name-defined]  # noqa: F821 - of grammar_workers.specification


class ParametersFormat(_Format):
    """The properties of an object one after the other, each as `element` says (see `languages/tags/parameters.py`).

    `separator`: a text between two of them. `notation`: `plain` writes strings as they are and other values as JSON;
    `python` writes Python's literals, strings in double quotes, and takes names that Python takes. `bare` is Gemma's:
    names without quotes, strings as they are between two `quote`.
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
    """One format after the other."""

    type: Literal["sequence"] = "sequence"
    elements: Formats


class OrFormat(_Format):
    """One of these formats."""

    type: Literal["or"] = "or"
    elements: Formats


class OptionalFormat(_Format):
    """A format, or nothing."""

    type: Literal["optional"] = "optional"
    content: Format


class PlusFormat(_Format):
    """A format once or several times."""

    type: Literal["plus"] = "plus"
    content: Format


class StarFormat(_Format):
    """A format any number of times."""

    type: Literal["star"] = "star"
    content: Format


class RepeatFormat(_Format):
    """A format `min` to `max` times; `max` -1: any number of times from `min` on."""

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
    """A region: `begin`, the content, and one of the ends."""

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
        """The ends that are texts."""
        if isinstance(self.end, TokenFormat):
            return []
        return [self.end] if isinstance(self.end, str) else self.end


class TriggeredTagsFormat(_Format):
    """Free text in which a trigger opens one of the tags whose begins start with it.

    `at_least_one`: it begins with a tag. `stop_after_first`: nothing follows the first tag. `excludes`: texts that the
    free text does not hold. `required`, which is ours: a tag must come, behind any text.
    """

    type: Literal["triggered_tags"] = "triggered_tags"
    triggers: _Some[_Pattern]
    tags: _Some[TagFormat]
    at_least_one: StrictBool = False
    required: StrictBool = False
    stop_after_first: StrictBool = False
    excludes: _Texts = Field([])


class TokenTriggeredTagsFormat(_Format):
    """Any tokens, of which some open one of the tags that begin with this token."""

    type: Literal["token_triggered_tags"] = "token_triggered_tags"
    trigger_tokens: _Some[TokenName]
    tags: _Some[TagFormat]
    exclude_tokens: _TokenNames = Field([])
    at_least_one: StrictBool = False
    stop_after_first: StrictBool = False


class TagsWithSeparatorFormat(_Format):
    """Tags alone, with `separator` between one and the next."""

    type: Literal["tags_with_separator"] = "tags_with_separator"
    tags: _Some[TagFormat]
    separator: str
    at_least_one: StrictBool = False
    stop_after_first: StrictBool = False


class DispatchFormat(_Format):
    """Free text; where one of the patterns has been read, its format must follow. `loop`: then free text again."""

    type: Literal["dispatch"] = "dispatch"
    rules: _Some[tuple[_Pattern, Format]]
    loop: StrictBool = True
    excludes: _Texts = Field([])


class TokenDispatchFormat(_Format):
    """Any tokens; after one of the patterns its format must follow. `loop`: then any tokens again."""

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
    """Complete the models, now that it is known what a specification is."""
    for model in _Format.__subclasses__():
        model.model_rebuild(_types_namespace={"GrammarSpecification": specification})

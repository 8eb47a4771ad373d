"""Structural tags as clients write them: vLLM's two shapes, and that of `StructuralTagSpecification` itself.

    {"type": "structural_tag", "triggers": [...], "structures": [{"begin", "schema", "end"}]}
    {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [...], "tags": [...]}}
    {"type": "structural_tag", "triggers": [...], "tags": [{"begin", "content", "end"}]}

In the second, contents and `format` are formats, of which those that have an exact counterpart here are understood.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, model_validator
from pydantic import Tag as Member
from pydantic_core import PydanticCustomError

from deployments.http.fields import NoTexts
from grammar_workers.languages.cfg.reading import guess_syntax
from grammar_workers.specification import (
    MOST_ITEMS,
    MOST_PARTS,
    BannedWordsSpecification,
    ChoiceSpecification,
    GrammarSpecification,
    GrammarTextSpecification,
    JsonSchema,
    JsonSchemaSpecification,
    RegexSpecification,
    StructuralTagSpecification,
    Tag,
    Texts,
)
from grammar_workers.validation import FailFast, StrictModel, by_json_type

Parts: Any = Field(min_length=1, max_length=MOST_PARTS)


class JsonSchemaContent(StrictModel):
    """A JSON text valid under a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema
    style: Literal["json"] = "json"

    def specification(self) -> GrammarSpecification:
        return JsonSchemaSpecification.model_validate({"schema": self.json_schema})


class RegexContent(StrictModel):
    """Text that a pattern matches as a whole."""

    type: Literal["regex"]
    pattern: str

    def specification(self) -> GrammarSpecification:
        return RegexSpecification(pattern=self.pattern)


class GrammarContent(StrictModel):
    """Text of a context-free grammar."""

    type: Literal["grammar"]
    grammar: str

    def specification(self) -> GrammarSpecification:
        return GrammarTextSpecification(syntax=guess_syntax(self.grammar), text=self.grammar)


class ConstStringContent(StrictModel):
    """Exactly this text."""

    type: Literal["const_string"]
    value: str

    def specification(self) -> GrammarSpecification:
        return ChoiceSpecification(choices=[self.value])


class AnyTextContent(StrictModel):
    """Any text that holds none of `excludes`."""

    type: Literal["any_text"]
    excludes: Texts = Field([], max_length=MOST_ITEMS)

    def specification(self) -> GrammarSpecification:
        if self.excludes:
            return BannedWordsSpecification(words=self.excludes, case_sensitive=True)
        return RegexSpecification(pattern=r"[\s\S]*")


Content = Annotated[
    JsonSchemaContent | RegexContent | GrammarContent | ConstStringContent | AnyTextContent, Field(discriminator="type")
]


class TagFormat(StrictModel):
    """A region: `begin`, the content, `end` (one text, or a list of one)."""

    type: Literal["tag"] = "tag"
    begin: str = Field(min_length=1)
    content: Content
    end: Annotated[
        Annotated[str, Member("string")] | Annotated[Texts, Field(min_length=1, max_length=1), Member("array")],
        by_json_type("a text, or a list of one"),
    ]

    def tag(self) -> Tag:
        end = self.end if isinstance(self.end, str) else self.end[0]
        return Tag(begin=self.begin, content=self.content.specification(), end=end)


class TriggeredTagsFormat(StrictModel):
    """Free text in which triggers open regions."""

    type: Literal["triggered_tags"]
    triggers: Annotated[Texts, Parts]
    tags: Annotated[list[TagFormat], FailFast(), Parts]
    at_least_one: StrictBool = False
    stop_after_first: StrictBool = False
    excludes: NoTexts = Field(
        [], description="Nothing: exceptions to free text are a constraint of their own (`all_of` with `banned_words`)."
    )

    def specification(self) -> GrammarSpecification:
        return StructuralTagSpecification(
            tags=[tag.tag() for tag in self.tags],
            triggers=self.triggers,
            at_least_one=self.at_least_one,
            stop_after_first=self.stop_after_first,
        )


class Structure(StrictModel):
    """A region in the older shape."""

    begin: str = Field(min_length=1)
    json_schema: JsonSchema = Field(alias="schema")
    end: str

    def tag(self) -> Tag:
        content = JsonSchemaSpecification.model_validate({"schema": self.json_schema})
        return Tag(begin=self.begin, content=content, end=self.end)


class StructuralTag(StrictModel):
    """Free text with constrained regions such as tool calls, in one of three shapes: see the module."""

    type: Literal["structural_tag"]
    format: (
        Annotated[
            TriggeredTagsFormat
            | JsonSchemaContent
            | RegexContent
            | GrammarContent
            | ConstStringContent
            | AnyTextContent,
            Field(discriminator="type"),
        ]
        | None
    ) = Field(None, description="vLLM's present shape; other formats than these are refused.")
    structures: Annotated[list[Structure], FailFast(), Parts] | None = Field(
        None, description="vLLM's older shape, with `triggers`."
    )
    tags: Annotated[list[Tag], FailFast(), Parts] | None = Field(
        None, description="Regions whose content is any specification, with `triggers`."
    )
    triggers: Annotated[Texts, Parts] | None = None
    at_least_one: StrictBool = Field(
        False, description="With `tags`: the text may not end before a region is complete."
    )
    stop_after_first: StrictBool = Field(False, description="With `tags`: nothing follows the first region.")

    @model_validator(mode="after")
    def _one_shape(self) -> StructuralTag:
        given = [name for name in ("format", "structures", "tags") if getattr(self, name) is not None]
        if len(given) != 1 or (self.triggers is None) != (given == ["format"]):
            raise PydanticCustomError(
                "structural_tag", "give `format` alone, or `triggers` and either `structures` or `tags`"
            )
        if self.tags is None and (self.at_least_one or self.stop_after_first):
            raise PydanticCustomError("structural_tag", "`at_least_one` and `stop_after_first` need `tags` or `format`")
        return self

    def specification(self) -> GrammarSpecification:
        if self.format is not None:
            return self.format.specification()
        tags = self.tags if self.structures is None else [structure.tag() for structure in self.structures]
        return StructuralTagSpecification(
            tags=tags,
            triggers=self.triggers,
            at_least_one=self.at_least_one,
            stop_after_first=self.stop_after_first,
        )

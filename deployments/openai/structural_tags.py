"""Structural tags as clients write them: vLLM's two shapes, and that of `StructuralTagSpecification` itself.

    {"type": "structural_tag", "triggers": [...], "structures": [{"begin", "schema", "end"}]}
    {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [...], "tags": [...]}}
    {"type": "structural_tag", "triggers": [...], "tags": [{"begin", "content", "end"}]}

`format` is the whole language of `grammar_workers.tag_formats`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from grammar_workers.specification import (
    MOST_PARTS,
    GrammarSpecification,
    JsonSchema,
    JsonSchemaSpecification,
    StructuralTagSpecification,
    Tag,
    Texts,
)
from grammar_workers.tag_formats import Format
from grammar_workers.validation import FailFast, StrictModel

Parts: Any = Field(min_length=1, max_length=MOST_PARTS)


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
    format: Format | None = Field(None, description="xgrammar's and vLLM's present shape: docs/structural-tags.md.")
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
            return StructuralTagSpecification(format=self.format)
        tags = self.tags if self.structures is None else [structure.tag() for structure in self.structures]
        return StructuralTagSpecification(
            tags=tags,
            triggers=self.triggers,
            at_least_one=self.at_least_one,
            stop_after_first=self.stop_after_first,
        )

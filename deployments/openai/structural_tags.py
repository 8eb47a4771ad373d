"""Structural tags (constraints for free text with constrained regions) in the three formats that clients may send.

The first two formats are vLLM's. The third format is the format of `StructuralTagSpecification`:

    {"type": "structural_tag", "triggers": [...], "structures": [{"begin", "schema", "end"}]}
    {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [...], "tags": [...]}}
    {"type": "structural_tag", "triggers": [...], "tags": [{"begin", "content", "end"}]}

`grammar_workers.tag_formats` defines the possible values of `format`.
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
    """Constrained region of a structural tag in vLLM's older format: JSON between the fixed texts `begin` and `end`."""

    begin: str = Field(min_length=1)
    json_schema: JsonSchema = Field(alias="schema")
    end: str

    def tag(self) -> Tag:
        """Return this region in the compiler's format: a tag whose content is the JSON Schema."""
        content = JsonSchemaSpecification.model_validate({"schema": self.json_schema})
        return Tag(begin=self.begin, content=content, end=self.end)


class StructuralTag(StrictModel):
    """Constraint for free text with constrained regions, such as tool calls.

    Three combinations of fields are valid: `format` alone, `triggers` with `structures`, and `triggers` with `tags`. A
    trigger is the start of the text `begin` of a region. Where the output contains a trigger, the region must follow.
    """

    type: Literal["structural_tag"]
    format: Format | None = None
    """Current format of xgrammar and vLLM (docs/structural-tags.md)."""
    structures: Annotated[list[Structure], FailFast(), Parts] | None = None
    """Regions in vLLM's older format. Needs `triggers`."""
    tags: Annotated[list[Tag], FailFast(), Parts] | None = None
    """Regions whose content is any specification. Needs `triggers`."""
    triggers: Annotated[Texts, Parts] | None = None
    at_least_one: StrictBool = False
    """With `tags`: the text cannot end before one region is complete."""
    stop_after_first: StrictBool = False
    """With `tags`: nothing follows the first region."""

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
        """Return the structural tag in the compiler's format. All three formats of clients are converted."""
        if self.format is not None:
            return StructuralTagSpecification(format=self.format)
        tags = self.tags if self.structures is None else [structure.tag() for structure in self.structures]
        return StructuralTagSpecification(
            tags=tags,
            triggers=self.triggers,
            at_least_one=self.at_least_one,
            stop_after_first=self.stop_after_first,
        )

"""Structural tags in the shape of `tags` and `triggers`, as formats."""

from __future__ import annotations

from grammar_workers import tag_formats as formats
from grammar_workers.specification import StructuralTagSpecification, Tag


class ContentFormat(formats.SpecificationFormat):
    """A specification that stands where formats have a format: it has no pointer of its own.

    `is_open`: no end follows, so a number in it goes on for as long as it can, whatever text may come behind it.
    """

    is_open: bool


def format_of(specification: StructuralTagSpecification | ContentFormat, pointer: str) -> tuple[formats.Format, str]:
    """What such a structural tag at `pointer` is in the language of formats, and where that stands."""
    if isinstance(specification, ContentFormat):
        return specification, pointer
    if specification.format is not None:
        return specification.format, f"{pointer}/format"
    # What is checked already is not checked again.
    return formats.TriggeredTagsFormat.model_construct(
        triggers=specification.triggers,
        tags=[_tag(tag) for tag in specification.tags],
        required=specification.at_least_one,
        stop_after_first=specification.stop_after_first,
    ), pointer


def _tag(tag: Tag) -> formats.TagFormat:
    content = ContentFormat.model_construct(specification=tag.content, is_open=not tag.end)
    return formats.TagFormat.model_construct(begin=tag.begin, content=content, end=tag.end)

"""Converter of structural tags from the older notation (`tags` and `triggers`) to the newer notation (formats)."""

from __future__ import annotations

from grammar_workers import tag_formats as formats
from grammar_workers.specification import StructuralTagSpecification, Tag


class ContentFormat(formats.SpecificationFormat):
    """Content of a tag in the older notation of structural tags: a specification of any kind.

    Errors name the JSON Pointer of this format, without `/specification`.

    Attributes:
        is_open: True if the tag has no end text. A number then includes all characters that can continue it.
    """

    is_open: bool


def format_of(specification: StructuralTagSpecification | ContentFormat, pointer: str) -> tuple[formats.Format, str]:
    """Convert a structural tag in the older or newer notation to a format (node in the newer notation).

    Args:
        specification: The structural tag. A `ContentFormat` (content of an older tag) is returned unchanged.
        pointer: JSON Pointer of the specification.

    Returns:
        The format and its JSON Pointer.
    """
    if isinstance(specification, ContentFormat):
        return specification, pointer
    if specification.format is not None:
        return specification.format, f"{pointer}/format"
    # The parts have been validated already, so `model_construct` skips validation.
    return formats.TriggeredTagsFormat.model_construct(
        triggers=specification.triggers,
        tags=[_tag(tag) for tag in specification.tags],
        required=specification.at_least_one,
        stop_after_first=specification.stop_after_first,
    ), pointer


def _tag(tag: Tag) -> formats.TagFormat:
    content = ContentFormat.model_construct(specification=tag.content, is_open=not tag.end)
    return formats.TagFormat.model_construct(begin=tag.begin, content=content, end=tag.end)

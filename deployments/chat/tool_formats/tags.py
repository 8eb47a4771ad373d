"""The constraint that makes calls exact: a structural tag over the tools, derived from the declaration of a format."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from deployments.chat.tool_formats.declaration import RawInput, TextRegion, ToolFormat
from grammar_workers.specification import GrammarSpecification

Format = dict[str, Any]
"""A format of a structural tag as plain data: `grammar_workers.tag_formats`, in XGrammar's shape."""


def answer_format(
    tool_format: ToolFormat,
    functions: Sequence[tuple[str, Any]],
    *,
    demanded: bool,
    one: bool,
    text: Format | None = None,
) -> Format:
    """An answer of a model that is offered these functions, each a name and the JSON Schema of its arguments.

    `demanded`: calls alone, at least one; else free text in which calls may stand. `one`: at most one call. `text`: the
    format of an answer that is not calls alone.
    """
    one = one or not tool_format.several
    tags = [_call(tool_format, name, schema) for name, schema in functions]
    if tool_format.in_sections:
        section = _separated(tags, tool_format.separator, one=one)
        tags = [_tag(tool_format.opens, section, tool_format.closes)]
    if tool_format.texts:
        return _with_texts(tool_format, tags, demanded=demanded, text=text)
    calls = tags[0] if tool_format.in_sections else _separated(tags, tool_format.separator, one=one)
    if demanded:
        return calls
    if text is not None:
        return _any_of([calls, text])
    if tool_format.alone:
        return _any_of([calls, {"type": "regex", "pattern": f"(?!{re.escape(tool_format.trigger)})[\\s\\S]*"}])
    return {"type": "triggered_tags", "triggers": [tool_format.trigger], "tags": tags, "stop_after_first": one}


def thoughts_and_answer(
    tool_format: ToolFormat,
    functions: Sequence[tuple[str, Any]],
    *,
    demanded: bool,
    one: bool,
    end: str,
    closes: str,
    text: Format | None = None,
) -> Format:
    """Thoughts that end with `end`, and then an answer; or with a call at once, where the family `ends_thoughts` so.

    `closes` is `end` and what stands between it and the answer.
    """
    answer = answer_format(tool_format, functions, demanded=demanded, one=one, text=text)
    closing = _text(closes)
    excludes = [end, tool_format.trigger] if tool_format.ends_thoughts else [end]
    thoughts = {"type": "any_text", "excludes": excludes}
    if not tool_format.ends_thoughts:
        return _sequence(thoughts, closing, answer)
    if demanded:
        return _sequence(thoughts, {"type": "optional", "content": closing}, answer)
    alone = one or not tool_format.several or text is not None
    called = answer_format(
        tool_format, functions, demanded=True, one=one or not (tool_format.in_sections or text is not None)
    )
    if alone:
        return _sequence(thoughts, _any_of([_sequence(closing, answer), called]))
    return _sequence(thoughts, _any_of([closing, called]), answer)


def text_format(tool_format: ToolFormat, content: Format) -> tuple[Format, str]:
    """An answer without calls: thoughts, and `content` in the last region; the pointer to the content."""
    last = next(text for text in tool_format.texts if text.last)
    pointer = "/elements/1/content" if last.closes else "/elements/1/elements/1"
    return _sequence(_regions_before(tool_format.texts, demanded=True), _region(last, content)), pointer


def begun_text(begin: str | None, specification: GrammarSpecification) -> Format:
    """A text under a constraint, behind `begin`."""
    text: Format = {"type": "specification", "specification": specification}
    return _sequence(_text(begin), text) if begin else text


def begins_json(text: str) -> bool:
    """Return whether a JSON text can begin with the first character of this."""
    return text[0] in '{["-0123456789tfn'


def text_pointers(format_: Format, pointer: str) -> Iterator[str]:
    """JSON Pointers to the constraints of texts in a format; as in `call_pointers`."""
    if format_["type"] == "specification":
        yield f"{pointer}/specification"
    for inner, place in _inside(format_, pointer, "content", "elements"):
        yield from text_pointers(inner, place)


def call_pointers(format_: Format, pointer: str) -> Iterator[tuple[str, str]]:
    """JSON Pointers to the tag of each function's call, and to the format of its arguments.

    They begin with `pointer`, which leads to `format_`.
    """
    if format_["type"] == "tag":
        inside = _arguments_pointer(format_["content"], f"{pointer}/content")
        if inside is not None:
            yield pointer, inside
            return
    for inner, place in _inside(format_, pointer, "content", "elements", "tags"):
        yield from call_pointers(inner, place)


def _inside(format_: Format, pointer: str, *names: str) -> Iterator[tuple[Format, str]]:
    """Yield the formats in fields of a format, each with the pointer to it; `pointer` leads to `format_`."""
    for name in names:
        inner = format_.get(name, [])
        if isinstance(inner, dict):
            yield inner, f"{pointer}/{name}"
        else:
            yield from ((one, f"{pointer}/{name}/{index}") for index, one in enumerate(inner))


def _arguments_pointer(content: Format, pointer: str) -> str | None:
    if "json_schema" in content:
        return pointer
    elements = content["elements"] if content["type"] == "sequence" else []
    found = (index for index, one in enumerate(elements) if "json_schema" in one or "specification" in one)
    return next((f"{pointer}/elements/{index}" for index in found), None)


def _call(tool_format: ToolFormat, name: str, schema: Any) -> Format:
    """One call. What stands before its first hole for an id is its beginning, what follows the arguments its end."""
    begin, *elements = [_element(tool_format, part, name, schema) for part in _with_name(tool_format, name)]
    # The end of a tag is excluded from what stands in it, which would change the grammar of a text.
    raw = isinstance(schema, RawInput)
    end = elements.pop()["value"] if elements[-1]["type"] == "const_string" and not raw else ""
    content = elements[0] if len(elements) == 1 and not raw else _sequence(*elements)
    return _tag(begin["value"], content, end)


def _with_name(tool_format: ToolFormat, name: str) -> list[str]:
    """The parts of a call, the name joined with the texts around it."""
    parts: list[str] = []
    for part in tool_format.parts:
        text = name if part == "$name" else part
        if parts and not text.startswith("$") and not parts[-1].startswith("$"):
            parts[-1] += text
        else:
            parts.append(text)
    return parts


def _element(tool_format: ToolFormat, part: str, name: str, schema: Any) -> Format:
    if part == "$arguments" and isinstance(schema, RawInput):
        return {"type": "specification", "specification": schema.specification}
    if part == "$arguments":
        if tool_format.parameters is None:
            return {"type": "json_schema", "json_schema": schema}
        return {"type": "parameters", "json_schema": schema, **dataclasses.asdict(tool_format.parameters)}
    if part.startswith("$"):
        return {"type": "regex", "pattern": tool_format.pattern(part)}
    return _text(part)


def _separated(tags: list[Format], separator: str, *, one: bool) -> Format:
    parts = {"tags": tags, "separator": separator, "at_least_one": True, "stop_after_first": one}
    return {"type": "tags_with_separator", **parts}


def _with_texts(tool_format: ToolFormat, calls: list[Format], *, demanded: bool, text: Format | None) -> Format:
    """Regions of text, and then calls or the last region, which holds `text` if it is given.

    Where calls are demanded, or `text` is given, only thoughts stand before them.
    """
    ends = [] if demanded else [_region(region, text or _ANY_TEXT) for region in tool_format.texts if region.last]
    before = _regions_before(tool_format.texts, demanded=demanded or text is not None)
    return _sequence(before, _any_of([*calls, *ends]))


def _regions_before(texts: Sequence[TextRegion], *, demanded: bool) -> Format:
    """Any number of regions that do not end an answer; with `demanded` thoughts alone."""
    kinds = ("reasoning_content",) if demanded else ("reasoning_content", "content")
    regions = [_region(text, _ANY_TEXT) for text in texts if not text.last and text.kind in kinds]
    return {"type": "star", "content": _any_of(regions)}


_ANY_TEXT: Format = {"type": "any_text"}


def _region(text: TextRegion, content: Format) -> Format:
    return _tag(text.opens, content, text.closes) if text.closes else _sequence(_text(text.opens), content)


def _any_of(formats: list[Format]) -> Format:
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": formats}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": [*elements]}


def _text(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}

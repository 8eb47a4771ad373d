"""Constraint for valid tool calls: a structural tag, derived from a tool format and the tools of a request.

A *structural tag* describes a text by nested *formats*. A format is a fixed text, free text, JSON that is valid under a
JSON Schema, a sequence of formats, an alternative of formats, or a *tag*: a format between two fixed texts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from deployments.chat.tool_formats.declaration import RawInput, TextRegion, ToolFormat
from grammar_workers.specification import GrammarSpecification

# Format of a structural tag as plain data in XGrammar's notation (`grammar_workers.tag_formats`).
Format = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class WantedCalls:
    """Calls that a response may have, and the text that it may have instead.

    Attributes:
        functions: Pairs (name of a tool, schema). The schema is the JSON Schema of the arguments, or a `RawInput`
            (constraint on text) for a custom tool, which takes text instead of JSON arguments.
        demanded: True: the response consists of one or more calls. False: the response may have text and calls.
        one: True: the response has at most one call.
        text: Format of a response without calls. The response then has either this text or calls. None: free text.
    """

    functions: Sequence[tuple[str, Any]]
    demanded: bool
    one: bool
    text: Format | None = None


def answer_format(tool_format: ToolFormat, wanted: WantedCalls) -> Format:
    """Return the structural-tag format (nested description of a text) of a response that may call tools.

    Args:
        tool_format: Format of the model's calls.
        wanted: The calls and the text that the response may have.
    """
    one = wanted.one or not tool_format.several
    tags = [_call(tool_format, name, schema) for name, schema in wanted.functions]
    if tool_format.in_sections:
        section = _separated(tags, tool_format.separator, one=one)
        tags = [_tag(tool_format.opens, section, tool_format.closes)]
    if tool_format.texts:
        return _with_texts(tool_format, tags, demanded=wanted.demanded, text=wanted.text)
    calls = tags[0] if tool_format.in_sections else _separated(tags, tool_format.separator, one=one)
    if wanted.demanded:
        return calls
    if wanted.text is not None:
        return _any_of([calls, wanted.text])
    if tool_format.alone:
        return _any_of([calls, {"type": "regex", "pattern": f"(?!{re.escape(tool_format.trigger)})[\\s\\S]*"}])
    return {"type": "triggered_tags", "triggers": [tool_format.trigger], "tags": tags, "stop_after_first": one}


def thoughts_and_answer(tool_format: ToolFormat, wanted: WantedCalls, *, end: str, closes: str) -> Format:
    """Return the structural-tag format (nested description of a text) of an output with reasoning and possible calls.

    The output consists of reasoning, the end marker of the reasoning, and a response that may call tools. If
    `tool_format.ends_thoughts` is set, a call may also follow the reasoning directly, without the end marker.

    Args:
        tool_format: Format of the model's calls.
        wanted: The calls and the text that the response may have.
        end: End marker of the reasoning, such as `</think>`. The reasoning cannot contain this text.
        closes: Text between reasoning and response: the end marker and white space.
    """
    answer = answer_format(tool_format, wanted)
    closing = _text(closes)
    excludes = [end, tool_format.trigger] if tool_format.ends_thoughts else [end]
    thoughts = {"type": "any_text", "excludes": excludes}
    if not tool_format.ends_thoughts:
        return _sequence(thoughts, closing, answer)
    if wanted.demanded:
        return _sequence(thoughts, {"type": "optional", "content": closing}, answer)
    first = wanted.one or not (tool_format.in_sections or wanted.text is not None)
    called = answer_format(tool_format, WantedCalls(wanted.functions, demanded=True, one=first))
    if wanted.one or not tool_format.several or wanted.text is not None:
        return _sequence(thoughts, _any_of([_sequence(closing, answer), called]))
    return _sequence(thoughts, _any_of([closing, called]), answer)


def text_format(tool_format: ToolFormat, content: Format) -> tuple[Format, str]:
    """Return the structural-tag format (nested description of a text) of a response without calls, with text markers.

    The model writes all text in *regions*: texts between two markers. The response consists of any number of regions
    with reasoning, and then one region with `content`.

    Args:
        tool_format: Format of the model. One region in `tool_format.texts` must have `last` set.
        content: Format of the text in the last region.

    Returns:
        The format of the response, and the JSON Pointer to `content` in this format.
    """
    last = next(text for text in tool_format.texts if text.last)
    pointer = "/elements/1/content" if last.closes else "/elements/1/elements/1"
    return _sequence(_regions_before(tool_format.texts, demanded=True), _region(last, content)), pointer


def begun_text(begin: str | None, specification: GrammarSpecification) -> Format:
    """Return the structural-tag format of a fixed text, followed by a constrained text.

    Args:
        begin: The fixed text. None or empty: there is none.
        specification: Constraint on the text after `begin`.
    """
    text: Format = {"type": "specification", "specification": specification}
    return _sequence(_text(begin), text) if begin else text


def begins_json(text: str) -> bool:
    """Return whether the first character of `text` can begin a JSON text. `text` must not be empty."""
    return text[0] in '{["-0123456789tfn'


def text_pointers(format_: Format, pointer: str) -> Iterator[str]:
    """Yield the JSON Pointers to the client's constraints on text in a structural-tag format.

    A constraint is the field `specification` of an inner format with the type `specification`.

    Args:
        format_: The format (nested description of a text).
        pointer: JSON Pointer to `format_`. All yielded pointers begin with this pointer.

    Yields:
        Pointers to the fields `specification`, in document order.
    """
    if format_["type"] == "specification":
        yield f"{pointer}/specification"
    for inner, place in _inside(format_, pointer, "content", "elements"):
        yield from text_pointers(inner, place)


def call_pointers(format_: Format, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield the JSON Pointers to the tool calls in a structural-tag format, and to their arguments.

    Args:
        format_: The format (nested description of a text).
        pointer: JSON Pointer to `format_`. All yielded pointers begin with this pointer.

    Yields:
        For each call, two pointers: to the tag of the call, and to the format of its arguments. The calls are in the
        order of the tools. If the format contains the calls several times, all calls are yielded again each time.
    """
    if format_["type"] == "tag":
        inside = _arguments_pointer(format_["content"], f"{pointer}/content")
        if inside is not None:
            yield pointer, inside
            return
    for inner, place in _inside(format_, pointer, "content", "elements", "tags"):
        yield from call_pointers(inner, place)


def _inside(format_: Format, pointer: str, *names: str) -> Iterator[tuple[Format, str]]:
    """Yield the formats in the fields `names` of a format, each with its JSON Pointer."""
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
    """Return the tag of one call: text before the first id hole, content, and text after the arguments."""
    begin, *elements = [_element(tool_format, part, name, schema) for part in _with_name(tool_format, name)]
    # The content of a tag must not contain the end of the tag. For a custom tool that would change its grammar.
    raw = isinstance(schema, RawInput)
    end = elements.pop()["value"] if elements[-1]["type"] == "const_string" and not raw else ""
    content = elements[0] if len(elements) == 1 and not raw else _sequence(*elements)
    return _tag(begin["value"], content, end)


def _with_name(tool_format: ToolFormat, name: str) -> list[str]:
    """Return the parts of a call, with the name joined to the texts around it."""
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
    """Return the format of regions of text, followed by calls or by the last region, which has `text` if given."""
    ends = [] if demanded else [_region(region, text or _ANY_TEXT) for region in tool_format.texts if region.last]
    before = _regions_before(tool_format.texts, demanded=demanded or text is not None)
    return _sequence(before, _any_of([*calls, *ends]))


def _regions_before(texts: Sequence[TextRegion], *, demanded: bool) -> Format:
    """Return the format of any number of regions that do not end a response: only reasoning if `demanded`."""
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

"""Conversion of SGLang's structural tags (free text with constrained regions) to the compiler's notation."""

from __future__ import annotations

import json
from typing import Any

_WITH_SCHEMA = ("json_schema", "qwen_xml_parameter")


def read_tag(text: str) -> str:
    """Convert SGLang's structural tag (constraint for free text with constrained regions) to the compiler's notation.

    SGLang omits the `type` of the tag, and the schema of a tool that accepts any arguments. This function adds both. It
    also converts a tag in SGLang's older notation (`structures`) to the newer notation (`format`), if the tag has
    `at_least_one`.

    Args:
        text: The structural tag as JSON text.

    Returns:
        The converted tag as JSON text. Text that is not a JSON object is returned unchanged, so that the compiler
        rejects it.
    """
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(tag, dict):
        return text
    tag.setdefault("type", "structural_tag")
    structures = tag.get("structures")
    if isinstance(structures, list) and all(isinstance(one, dict) for one in structures):
        for one in structures:
            if one.get("schema") is None:
                one["schema"] = {}
        if tag.get("at_least_one"):
            tag = {"type": tag["type"], "format": _triggered(tag, structures)}
    else:
        _fill_schemas(tag.get("format"))
    return json.dumps(tag)


def _triggered(tag: dict[str, Any], structures: list[dict[str, Any]]) -> dict[str, Any]:
    tags = [
        {
            "type": "tag",
            "begin": one.get("begin"),
            "content": {"type": "json_schema", "json_schema": one["schema"]},
            "end": one.get("end"),
        }
        for one in structures
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags, "at_least_one": True}


def _fill_schemas(format_: Any) -> None:
    """Add the schema that allows everything to each format that needs a schema and has none."""
    if isinstance(format_, list):
        for one in format_:
            _fill_schemas(one)
    elif isinstance(format_, dict):
        if format_.get("type") in _WITH_SCHEMA:
            if format_.get("json_schema") is None:
                format_["json_schema"] = {}
            return
        for one in format_.values():
            _fill_schemas(one)

"""SGLang's structural tags -> the notation that our compiler reads."""

from __future__ import annotations

import json
from typing import Any

_WITH_SCHEMA = ("json_schema", "qwen_xml_parameter")


def read_tag(text: str) -> str:
    """Return the tag with what SGLang leaves out: its type, and the schemas of tools that take any arguments.

    SGLang's older notation (`structures`) becomes `format` if it needs `at_least_one`, as for `tool_choice: required`.
    What is malformed is returned as it is, for the compiler's error.
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
    """Give every format that takes a schema and has none the one that allows everything."""
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

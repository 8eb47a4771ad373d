"""Formats of tool calls by model family (`families`), and detection of the format from a chat template."""

from __future__ import annotations

import re

from deployments.chat.tool_formats.declaration import ToolFormat
from deployments.chat.tool_formats.families import TOOL_FORMATS, ToolFormatName

__all__ = ["TOOL_FORMATS", "ToolFormat", "ToolFormatName", "detected_format", "renders_tools", "takes_argument_text"]


def detected_format(chat_template: str | None) -> ToolFormatName:
    """Return the name of the tool call format that a chat template describes to the model.

    Args:
        chat_template: Source of the template (Jinja). None: the model has none.

    Returns:
        Key of `TOOL_FORMATS`: the first format whose `marks` all occur in the template. If no format matches:
        `turnstile`.
    """
    # Templates escape quotes and line breaks in different ways inside their string literals.
    text = (chat_template or "").replace('\\"', '"').replace("\\n", "\n")
    for name, one in TOOL_FORMATS.items():
        marks = (one.trigger,) if one.marks is None else one.marks
        if marks and all(mark in text for mark in marks):
            return name
    return "turnstile"


def renders_tools(chat_template: str | None) -> bool:
    """Return whether the chat template describes the tools of a request to the model.

    Args:
        chat_template: Source of the template (Jinja). None: the model has none, and the result is False.
    """
    return re.search(r"\btools\b", chat_template or "") is not None


def takes_argument_text(chat_template: str | None) -> bool:
    """Return whether the chat template needs the arguments of earlier tool calls as JSON text instead of as a dict.

    A template needs text if it inserts the arguments into the prompt unchanged. Other templates serialize the
    arguments, or access their members.

    Args:
        chat_template: Source of the template (Jinja). None: the model has none, and the result is False.
    """
    argument = r"""\barguments\b['"]?\]?\s*"""
    bare = re.search(rf"{argument}(?:[-+~]|\}}\}})", chat_template or "") is not None
    return bare and re.search(rf"{argument}(?:\||\.|is\b|%)", chat_template or "") is None

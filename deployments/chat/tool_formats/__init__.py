"""Tool call formats of families of models (`families`), and the format that a chat template belongs to."""

from __future__ import annotations

import re

from deployments.chat.tool_formats.declaration import ToolFormat
from deployments.chat.tool_formats.families import FORMATS, ToolFormatName

__all__ = ["FORMATS", "ToolFormat", "ToolFormatName", "detected_format", "renders_tools", "takes_argument_text"]


def detected_format(chat_template: str | None) -> ToolFormatName:
    """The format of the model that this chat template was written for; `turnstile` for any other."""
    # Templates quote JSON and line ends in different ways inside their own string literals.
    text = (chat_template or "").replace('\\"', '"').replace("\\n", "\n")
    for name, one in FORMATS.items():
        marks = (one.trigger,) if one.marks is None else one.marks
        if marks and all(mark in text for mark in marks):
            return name
    return "turnstile"


def renders_tools(chat_template: str | None) -> bool:
    """Whether the template tells the model which tools there are."""
    return re.search(r"\btools\b", chat_template or "") is not None


def takes_argument_text(chat_template: str | None) -> bool:
    """Whether the template puts the arguments of earlier calls into the prompt as they are, so that they must be JSON
    text: it neither writes JSON itself nor looks into them."""
    argument = r"""\barguments\b['"]?\]?\s*"""
    bare = re.search(rf"{argument}(?:[-+~]|\}}\}})", chat_template or "") is not None
    return bare and re.search(rf"{argument}(?:\||\.|is\b|%)", chat_template or "") is None

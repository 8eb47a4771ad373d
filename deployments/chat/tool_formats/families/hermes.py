"""Hermes by Nous Research, whose format Qwen 2.5 and 3, Granite 4 and many others write."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

HERMES = ToolFormat(
    call='<tool_call>\n{"name": "$name", "arguments": $arguments}\n</tool_call>',
    trigger="<tool_call>",
    marks=("<tool_call>", '"arguments": '),
    separator="\n",
    ends_thoughts=True,
)

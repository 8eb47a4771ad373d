"""Formats of no maker: bare JSON, and our own for models that know no tools."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

JSON = ToolFormat(
    call='{"name": "$name", "arguments": $arguments}',
    trigger='{"name": "',
    marks=(),
    separator="\n",
)

TURNSTILE = ToolFormat(
    call="<call:$name>$arguments</call>",
    trigger="<call:",
    marks=(),
    separator="\n",
)
"""It has few words, and the arguments stand in it as plain JSON."""

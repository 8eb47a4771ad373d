"""Llama by Meta."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

LLAMA_3 = ToolFormat(
    call='{"name": "$name", "parameters": $arguments}',
    trigger='{"name": "',
    marks=("<|start_header_id|>", '"parameters": '),
    separator="; ",
    several=False,  # the templates refuse answers with more
)

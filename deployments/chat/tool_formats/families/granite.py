"""Granite by IBM: 3, and the model for functions before it; Granite 4 writes as Hermes does."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

GRANITE_3 = ToolFormat(
    call='{"name": "$name", "arguments": $arguments}',
    trigger="<|tool_call|>",
    marks=("<|tool_call|>", "<|start_of_role|>"),
    opens="<|tool_call|>[",
    separator=", ",
    closes="]",
)

GRANITE_20B = ToolFormat(
    call='<function_call> {"name": "$name", "arguments": $arguments}',
    trigger="<function_call>",
    marks=("<function_call>",),
    separator=" ",
)

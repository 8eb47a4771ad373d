"""Phi-4 mini by Microsoft: what the model writes by itself, and what its card teaches it."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

FUNCTOOLS = ToolFormat(
    call='{"name": "$name", "arguments": $arguments}',
    trigger="functools[",
    marks=("functools[",),
    opens="functools[",
    separator=", ",
    closes="]",
)

PHI_4_MINI = ToolFormat(
    call='{"name": "$name", "arguments": $arguments}',
    trigger="<|tool_call|>",
    marks=("<|tool_call|>", "<|/tool_call|>"),
    opens="<|tool_call|>[",
    separator=", ",
    closes="]<|/tool_call|>",
)

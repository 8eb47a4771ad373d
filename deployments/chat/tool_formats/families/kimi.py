"""Kimi by Moonshot."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

KIMI_K2 = ToolFormat(
    call="<|tool_call_begin|>functions.$name:$count<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
    trigger="<|tool_calls_section_begin|>",
    marks=("<|tool_calls_section_begin|>",),
    opens="<|tool_calls_section_begin|>",
    closes="<|tool_calls_section_end|>",
    client_id="functions.$name:$count",
    any_id=False,
    ends_thoughts=True,
)

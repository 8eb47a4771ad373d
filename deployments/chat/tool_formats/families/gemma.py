"""Gemma by Google: FunctionGemma and Gemma 4, whose strings stand between two equal tokens."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import Parameters, ToolFormat

FUNCTION_GEMMA = ToolFormat(
    call="<start_function_call>call:$name{$arguments}<end_function_call>",
    trigger="<start_function_call>",
    marks=("<start_function_call>",),
    parameters=Parameters("$key:$value", separator=",", notation="bare", quote="<escape>"),
    names="[a-zA-Z0-9_]+",
)

GEMMA_4 = ToolFormat(
    call="<|tool_call>call:$name{$arguments}<tool_call|>",
    trigger="<|tool_call>",
    marks=("<|tool_call>",),
    parameters=Parameters("$key:$value", separator=",", notation="bare", quote='<|"|>'),
)

"""Families that write their calls as JSON between two tokens of their own: Jamba, Apertus, LongCat, InternLM."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

JAMBA = ToolFormat(
    call='{"name": "$name", "arguments": $arguments}',
    trigger="<tool_calls>",
    marks=("<tool_calls>", "tool_calls_prefix"),
    opens="<tool_calls>[\n",
    separator=",\n",
    closes="\n]</tool_calls>",
)

APERTUS = ToolFormat(
    call='{"$name": $arguments}',
    trigger="<|tools_prefix|>",
    marks=("<|tools_prefix|>",),
    opens="<|tools_prefix|>[",
    separator=", ",
    closes="]<|tools_suffix|>",
)

LONGCAT = ToolFormat(
    call='<longcat_tool_call>\n{"name": "$name", "arguments": $arguments}\n</longcat_tool_call>',
    trigger="<longcat_tool_call>",
    marks=("<longcat_tool_call>",),
    separator="\n",
)

INTERNLM_2 = ToolFormat(
    call='<|action_start|><|plugin|>\n{"name": "$name", "parameters": $arguments}<|action_end|>',
    trigger="<|action_start|>",
    marks=("<|action_start|>", "<|plugin|>"),
    several=False,
)

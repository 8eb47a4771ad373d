"""Qwen3-Coder and those that write as it does."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import Parameters, ToolFormat

QWEN_3_CODER = ToolFormat(
    call="<tool_call>\n<function=$name>\n$arguments</function>\n</tool_call>",
    trigger="<tool_call>",
    marks=("<tool_call>", "<function=", "<parameter="),
    separator="\n",
    parameters=Parameters("<parameter=$key>\n$value\n</parameter>\n"),
    ends_thoughts=True,
)

SEED_OSS = ToolFormat(
    call="<seed:tool_call>\n<function=$name>\n$arguments</function>\n</seed:tool_call>",
    trigger="<seed:tool_call>",
    marks=("<seed:tool_call>",),
    separator="\n",
    parameters=Parameters("<parameter=$key>$value</parameter>\n"),
    ends_thoughts=True,
)
"""Seed-OSS by ByteDance, without line ends around values."""

"""GLM by Z.ai: 4.5 and 4.6 put parts on lines of their own, 4.7 does not."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import Parameters, ToolFormat

GLM_4_5 = ToolFormat(
    call="<tool_call>$name\n$arguments</tool_call>",
    trigger="<tool_call>",
    marks=("<tool_call>", "<arg_key>", "</arg_key>\n<arg_value>"),
    separator="\n",
    parameters=Parameters("<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n"),
    ends_thoughts=True,
)

GLM_4_7 = ToolFormat(
    call="<tool_call>$name$arguments</tool_call>",
    trigger="<tool_call>",
    marks=("<tool_call>", "<arg_key>"),
    parameters=Parameters("<arg_key>$key</arg_key><arg_value>$value</arg_value>"),
    ends_thoughts=True,
)

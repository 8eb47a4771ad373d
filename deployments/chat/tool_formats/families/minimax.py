"""MiniMax: M1 writes lines of JSON in a section, M2 markup."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import Parameters, ToolFormat

MINIMAX_M1 = ToolFormat(
    call='{"name": "$name", "arguments": $arguments}',
    trigger="<tool_calls>",
    marks=("<tool_calls>", "</tool_calls>", "<beginning_of_sentence>"),
    opens="<tool_calls>\n",
    separator="\n",
    closes="\n</tool_calls>",
)

MINIMAX_M2 = ToolFormat(
    call='<invoke name="$name">\n$arguments</invoke>',
    trigger="<minimax:tool_call>",
    marks=("<minimax:tool_call>",),
    opens="<minimax:tool_call>\n",
    separator="\n",
    closes="\n</minimax:tool_call>",
    parameters=Parameters('<parameter name="$key">$value</parameter>\n'),
    ends_thoughts=True,
)

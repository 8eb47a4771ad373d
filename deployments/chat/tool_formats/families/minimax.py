"""MiniMax: M1 writes JSON lines in a section."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

MINIMAX_M1 = ToolFormat(
    call='{"name": "$name", "arguments": $arguments}',
    trigger="<tool_calls>",
    marks=("<tool_calls>", "</tool_calls>", "<beginning_of_sentence>"),
    opens="<tool_calls>\n",
    separator="\n",
    closes="\n</tool_calls>",
)

"""Command by Cohere: R7B and A."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import TextRegion, ToolFormat

COHERE = ToolFormat(
    call='    {"tool_call_id": "$count", "tool_name": "$name", "parameters": $arguments}',
    trigger="<|START_ACTION|>",
    marks=("<|START_ACTION|>", '"tool_name"'),
    opens="<|START_ACTION|>[\n",
    separator=",\n",
    closes="\n]<|END_ACTION|>",
    texts=(
        TextRegion("<|START_THINKING|>", "<|END_THINKING|>", "reasoning_content"),
        TextRegion("<|START_RESPONSE|>", "<|END_RESPONSE|>", "content", last=True),
    ),
)

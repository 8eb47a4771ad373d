"""gpt-oss by OpenAI: messages in channels; calls are messages to a function."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import TextRegion, ToolFormat

_NEXT = "<|end|><|start|>assistant"

HARMONY = ToolFormat(
    call="<|channel|>commentary to=functions.$name <|constrain|>json<|message|>$arguments",
    trigger="<|channel|>commentary to=functions.",
    marks=("<|channel|>commentary", "functions."),
    several=False,  # `<|call|>` comes next, and is an end token
    texts=(
        TextRegion("<|channel|>analysis<|message|>", _NEXT, "reasoning_content"),
        TextRegion("<|channel|>commentary<|message|>", _NEXT, "content"),
        TextRegion("<|channel|>final<|message|>", "", "content", last=True),
    ),
)

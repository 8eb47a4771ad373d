"""Mistral: a list, then calls of their own, for a while with ids in them."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

MISTRAL_LIST = ToolFormat(
    call='{"name": "$name", "arguments": $arguments}',
    trigger="[TOOL_CALLS]",
    marks=("[TOOL_CALLS]",),
    opens="[TOOL_CALLS][",
    separator=", ",
    closes="]",
    id_length=9,
    client_id="$random",
    any_id=False,
)

MISTRAL_CALL_ID = ToolFormat(
    call="[TOOL_CALLS]$name[CALL_ID]$random[ARGS]$arguments",
    trigger="[TOOL_CALLS]",
    marks=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    id_length=9,
    client_id="$random",
    any_id=False,
)

MISTRAL = ToolFormat(
    call="[TOOL_CALLS]$name[ARGS]$arguments",
    trigger="[TOOL_CALLS]",
    marks=("[TOOL_CALLS]", "[ARGS]"),
    id_length=9,
    client_id="$random",
    any_id=False,
    ends_thoughts=True,
)

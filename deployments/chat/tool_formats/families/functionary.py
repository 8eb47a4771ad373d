"""Functionary v3.1 by MeetKai, and Llama 3.1 with functions of its users."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

FUNCTIONARY_3_1 = ToolFormat(
    call="<function=$name>$arguments</function>",
    trigger="<function=",
    marks=("<function=", "start_tag"),
    separator="\n",
)

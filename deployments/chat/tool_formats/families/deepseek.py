"""DeepSeek: V3 and R1 write arguments as blocks of Markdown, V3.1 bare."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import ToolFormat

DEEPSEEK_V3 = ToolFormat(
    call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$arguments\n```<｜tool▁call▁end｜>",
    trigger="<｜tool▁calls▁begin｜>",
    marks=("<｜tool▁calls▁begin｜>", "```json"),
    opens="<｜tool▁calls▁begin｜>",
    separator="\n",
    closes="<｜tool▁calls▁end｜>",
)

DEEPSEEK_V3_1 = ToolFormat(
    call="<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$arguments<｜tool▁call▁end｜>",
    trigger="<｜tool▁calls▁begin｜>",
    marks=("<｜tool▁calls▁begin｜>",),
    opens="<｜tool▁calls▁begin｜>",
    closes="<｜tool▁calls▁end｜>",
)

"""DeepSeek: V3 and R1 write arguments as blocks of Markdown, V3.1 bare, later ones as markup."""

from __future__ import annotations

import dataclasses

from deployments.chat.tool_formats.declaration import Parameters, ToolFormat

_PARAMETERS = Parameters('<｜DSML｜parameter name="$key" string="$string">$value</｜DSML｜parameter>\n')

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

DEEPSEEK_V3_2 = ToolFormat(
    call='<｜DSML｜invoke name="$name">\n$arguments</｜DSML｜invoke>',
    trigger="<｜DSML｜function_calls>",
    marks=("｜DSML｜", "function_calls"),
    opens="<｜DSML｜function_calls>\n",
    separator="\n",
    closes="\n</｜DSML｜function_calls>",
    parameters=_PARAMETERS,
)

DEEPSEEK_V4 = dataclasses.replace(
    DEEPSEEK_V3_2,
    trigger="<｜DSML｜tool_calls>",
    marks=("｜DSML｜", "tool_calls>"),
    opens="<｜DSML｜tool_calls>\n",
    closes="\n</｜DSML｜tool_calls>",
)

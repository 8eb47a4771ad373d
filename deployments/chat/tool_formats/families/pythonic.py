"""Families that write a call as Python does, `f(city="Paris", days=3)`: Llama 3.2 and 4, LFM 2, OLMo 3."""

from __future__ import annotations

from deployments.chat.tool_formats.declaration import Parameters, ToolFormat

_KEYWORDS = Parameters("$key=$value", separator=", ", notation="python")
_NAMES = "[a-zA-Z][a-zA-Z0-9_]*"

PYTHONIC = ToolFormat(
    call="$name($arguments)",
    trigger="[",
    marks=("[func_name1(params_name1=params_value1",),
    opens="[",
    separator=", ",
    closes="]",
    alone=True,
    parameters=_KEYWORDS,
    names=_NAMES,
)

LFM_2 = ToolFormat(
    call="$name($arguments)",
    trigger="<|tool_call_start|>",
    marks=("List of tools: ",),
    opens="<|tool_call_start|>[",
    separator=", ",
    closes="]<|tool_call_end|>",
    parameters=_KEYWORDS,
    names=_NAMES,
)

OLMO_3 = ToolFormat(
    call="$name($arguments)",
    trigger="<function_calls>",
    marks=("<function_calls>",),
    opens="<function_calls>",
    separator="\n",
    closes="</function_calls>",
    parameters=_KEYWORDS,
    names=_NAMES,
)

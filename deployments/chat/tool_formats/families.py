"""Declarations of tool call formats, one for each family of models, in the order in which templates are compared.

A new family is an entry of `FORMATS`; nothing else knows how any of them looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from deployments.chat.tool_formats.declaration import Parameters, TextRegion, ToolFormat

_JSON = '{"name": "$name", "arguments": $arguments}'
_FUNCTION = "<function=$name>\n$arguments</function>"
_DSML = {"prefix": "｜DSML｜", "more": ' string="$string"'}
_NEXT = "<|end|><|start|>assistant"
_PYTHON: dict[str, Any] = {
    "call": "$name($arguments)",
    "parameters": Parameters("$key=$value", separator=", ", notation="python"),
    "names": "[a-zA-Z][a-zA-Z0-9_]*",
}
_MISTRAL_IDS: dict[str, Any] = {"id_length": 9, "client_id": "$random", "any_id": False}


def _list(trigger: str, end: str = "", **fields: Any) -> ToolFormat:
    """A format whose section is a list between `trigger` and `end`; `fields`: the others, as far as they differ."""
    call = fields.pop("call", _JSON)
    return ToolFormat(call, trigger, opens=f"{trigger}[", separator=", ", closes=f"]{end}", **fields)


def _invokes(section: str, prefix: str = "", more: str = "", **fields: Any) -> ToolFormat:
    """A format whose section is an element that holds an element for each call; `more`: attributes of a parameter."""
    return ToolFormat(
        call=f'<{prefix}invoke name="$name">\n$arguments</{prefix}invoke>',
        trigger=f"<{section}>",
        opens=f"<{section}>\n",
        separator="\n",
        closes=f"\n</{section}>",
        parameters=Parameters(f'<{prefix}parameter name="$key"{more}>$value</{prefix}parameter>\n'),
        **fields,
    )


def _element(name: str, content: str, **fields: Any) -> ToolFormat:
    """A format whose calls are elements, on lines of their own."""
    return ToolFormat(f"<{name}>\n{content}\n</{name}>", f"<{name}>", separator="\n", **fields)


FORMATS: dict[str, ToolFormat] = {
    # gpt-oss by OpenAI: messages in channels; calls are messages to a function.
    "harmony": ToolFormat(
        call="<|channel|>commentary to=functions.$name <|constrain|>json<|message|>$arguments",
        trigger="<|channel|>commentary to=functions.",
        marks=("<|channel|>commentary", "functions."),
        several=False,  # `<|call|>` comes next, and is an end token
        texts=(
            TextRegion("<|channel|>analysis<|message|>", _NEXT, "reasoning_content"),
            TextRegion("<|channel|>commentary<|message|>", _NEXT, "content"),
            TextRegion("<|channel|>final<|message|>", "", "content", last=True),
        ),
    ),
    # Kimi by Moonshot.
    "kimi_k2": ToolFormat(
        call="<|tool_call_begin|>functions.$name:$count<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
        trigger="<|tool_calls_section_begin|>",
        opens="<|tool_calls_section_begin|>",
        closes="<|tool_calls_section_end|>",
        client_id="functions.$name:$count",
        any_id=False,
        ends_thoughts=True,
    ),
    # DeepSeek: V3 and R1 write arguments as blocks of Markdown, V3.1 bare, later ones as markup.
    "deepseek_v3": ToolFormat(
        call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$arguments\n```<｜tool▁call▁end｜>",
        trigger="<｜tool▁calls▁begin｜>",
        marks=("<｜tool▁calls▁begin｜>", "```json"),
        opens="<｜tool▁calls▁begin｜>",
        separator="\n",
        closes="<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3_1": ToolFormat(
        call="<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$arguments<｜tool▁call▁end｜>",
        trigger="<｜tool▁calls▁begin｜>",
        opens="<｜tool▁calls▁begin｜>",
        closes="<｜tool▁calls▁end｜>",
    ),
    # Mistral: a list, then calls of their own, for a while with ids in them.
    "mistral_call_id": ToolFormat(
        call="[TOOL_CALLS]$name[CALL_ID]$random[ARGS]$arguments",
        trigger="[TOOL_CALLS]",
        marks=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        **_MISTRAL_IDS,
    ),
    "mistral": ToolFormat(
        call="[TOOL_CALLS]$name[ARGS]$arguments",
        trigger="[TOOL_CALLS]",
        marks=("[TOOL_CALLS]", "[ARGS]"),
        ends_thoughts=True,
        **_MISTRAL_IDS,
    ),
    "mistral_list": _list("[TOOL_CALLS]", **_MISTRAL_IDS),
    # Command by Cohere: R7B and A.
    "cohere": ToolFormat(
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
    ),
    # Phi-4 mini by Microsoft: what its card teaches it, and what the model writes by itself.
    "phi4_mini": _list("<|tool_call|>", "<|/tool_call|>", marks=("<|tool_call|>", "<|/tool_call|>")),
    "functools": ToolFormat(
        call=_JSON,
        trigger="functools[",
        opens="functools[",
        separator=", ",
        closes="]",
    ),
    # Granite 3 by IBM; Granite 4 writes as Hermes does.
    "granite3": _list("<|tool_call|>", marks=("<|tool_call|>", "<|start_of_role|>")),
    # MiniMax: M1 writes lines of JSON in a section, M2 markup.
    "minimax_m1": ToolFormat(
        call=_JSON,
        trigger="<tool_calls>",
        marks=("<tool_calls>", "</tool_calls>", "<beginning_of_sentence>"),
        opens="<tool_calls>\n",
        separator="\n",
        closes="\n</tool_calls>",
    ),
    "minimax_m2": _invokes("minimax:tool_call", ends_thoughts=True),
    # DeepSeek's markup.
    "deepseek_v3_2": _invokes("｜DSML｜function_calls", marks=("｜DSML｜", "function_calls"), **_DSML),
    "deepseek_v4": _invokes("｜DSML｜tool_calls", marks=("｜DSML｜", "tool_calls>"), **_DSML),
    # Seed-OSS by ByteDance, without line ends around values.
    "seed_oss": _element(
        "seed:tool_call",
        _FUNCTION,
        parameters=Parameters("<parameter=$key>$value</parameter>\n"),
        ends_thoughts=True,
    ),
    # Qwen3-Coder and those that write as it does.
    "qwen3_coder": _element(
        "tool_call",
        _FUNCTION,
        marks=("<tool_call>", "<function=", "<parameter="),
        parameters=Parameters("<parameter=$key>\n$value\n</parameter>\n"),
        ends_thoughts=True,
    ),
    # GLM by Z.ai: 4.5 and 4.6 put parts on lines of their own, 4.7 does not.
    "glm4_5": ToolFormat(
        call="<tool_call>$name\n$arguments</tool_call>",
        trigger="<tool_call>",
        marks=("<tool_call>", "<arg_key>", "</arg_key>\n<arg_value>"),
        separator="\n",
        parameters=Parameters("<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n"),
        ends_thoughts=True,
    ),
    "glm4_7": ToolFormat(
        call="<tool_call>$name$arguments</tool_call>",
        trigger="<tool_call>",
        marks=("<tool_call>", "<arg_key>"),
        parameters=Parameters("<arg_key>$key</arg_key><arg_value>$value</arg_value>"),
        ends_thoughts=True,
    ),
    # Hermes by Nous Research, whose format Qwen 2.5 and 3, Granite 4 and many others write.
    "hermes": _element("tool_call", _JSON, marks=("<tool_call>", '"arguments": '), ends_thoughts=True),
    # JSON between two tokens of their own: Jamba, Apertus, LongCat, InternLM.
    "jamba": ToolFormat(
        call=_JSON,
        trigger="<tool_calls>",
        marks=("<tool_calls>", "tool_calls_prefix"),
        opens="<tool_calls>[\n",
        separator=",\n",
        closes="\n]</tool_calls>",
    ),
    "apertus": _list("<|tools_prefix|>", "<|tools_suffix|>", call='{"$name": $arguments}'),
    "longcat": _element("longcat_tool_call", _JSON),
    "internlm2": ToolFormat(
        call='<|action_start|><|plugin|>\n{"name": "$name", "parameters": $arguments}<|action_end|>',
        trigger="<|action_start|>",
        marks=("<|action_start|>", "<|plugin|>"),
        several=False,
    ),
    # The model for functions before Granite 3.
    "granite_20b": ToolFormat(
        call='<function_call> {"name": "$name", "arguments": $arguments}',
        trigger="<function_call>",
        separator=" ",
    ),
    # Functionary v3.1 by MeetKai, and Llama 3.1 with functions of its users.
    "functionary_v3_1": ToolFormat(
        call="<function=$name>$arguments</function>",
        trigger="<function=",
        marks=("<function=", "start_tag"),
        separator="\n",
    ),
    # Gemma by Google: FunctionGemma and Gemma 4, whose strings stand between two equal tokens.
    "function_gemma": ToolFormat(
        call="<start_function_call>call:$name{$arguments}<end_function_call>",
        trigger="<start_function_call>",
        parameters=Parameters("$key:$value", separator=",", notation="bare", quote="<escape>"),
        names="[a-zA-Z0-9_]+",
    ),
    "gemma4": ToolFormat(
        call="<|tool_call>call:$name{$arguments}<tool_call|>",
        trigger="<|tool_call>",
        parameters=Parameters("$key:$value", separator=",", notation="bare", quote='<|"|>'),
    ),
    # A call as Python writes it, `f(city="Paris", days=3)`: Llama 3.2 and 4, LFM 2, OLMo 3.
    "pythonic": ToolFormat(
        trigger="[",
        marks=("[func_name1(params_name1=params_value1",),
        opens="[",
        separator=", ",
        closes="]",
        alone=True,
        **_PYTHON,
    ),
    "lfm2": _list("<|tool_call_start|>", "<|tool_call_end|>", marks=("List of tools: ",), **_PYTHON),
    "olmo3": ToolFormat(
        trigger="<function_calls>",
        opens="<function_calls>",
        separator="\n",
        closes="</function_calls>",
        **_PYTHON,
    ),
    # Llama by Meta.
    "llama3": ToolFormat(
        call='{"name": "$name", "parameters": $arguments}',
        trigger='{"name": "',
        marks=("<|start_header_id|>", '"parameters": '),
        separator="; ",
        several=False,  # the templates refuse answers with more
    ),
    # Formats of no maker: bare JSON, and our own for models that know no tools.
    "json": ToolFormat(
        call=_JSON,
        trigger='{"name": "',
        marks=(),
        separator="\n",
    ),
    # It has few words, and the arguments stand in it as plain JSON.
    "turnstile": ToolFormat(
        call="<call:$name>$arguments</call>",
        trigger="<call:",
        marks=(),
        separator="\n",
    ),
}
"""By the names that the `tool_format` of a configuration takes; a chat template belongs to the first whose marks it
has. `turnstile` is for models that know no tools."""

if TYPE_CHECKING:
    ToolFormatName = str
else:
    ToolFormatName = Literal[tuple(sorted(FORMATS))]
    """Type of a setting that names one of `FORMATS`."""

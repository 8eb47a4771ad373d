"""Declarations of the tool call formats of all supported model families.

To add a family, add an entry to `TOOL_FORMATS`. No other code is needed. A chat template is compared with the entries
in their order, and the first match is its format (see *A new format* in docs/tools.md).
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


def _section(opens: str, closes: str, call: str = _JSON, **fields: Any) -> ToolFormat:
    """Return a format whose calls stand between `opens`, which is also the default trigger, and `closes`."""
    return ToolFormat(call, **{"trigger": opens, **fields}, opens=opens, closes=closes)


def _list(trigger: str, end: str = "", **fields: Any) -> ToolFormat:
    """Return a format whose section is a list of calls in brackets, after `trigger` and before `end`."""
    return _section(f"{trigger}[", f"]{end}", trigger=trigger, separator=", ", **fields)


def _invokes(section: str, prefix: str = "", more: str = "", **fields: Any) -> ToolFormat:
    """Return a format with a section of XML-like elements, one per call. `more`: attributes of a parameter element."""
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
    """Return a format in which each call is an element on lines of its own."""
    return ToolFormat(f"<{name}>\n{content}\n</{name}>", f"<{name}>", separator="\n", **fields)


# Value of the setting `tool_format` -> format. A chat template has the first format whose `marks` it contains. The
# format `turnstile` is for models whose chat template does not support tools.
TOOL_FORMATS: dict[str, ToolFormat] = {
    # gpt-oss by OpenAI: messages in channels; calls are messages to a function.
    "harmony": ToolFormat(
        call="<|channel|>commentary to=functions.$name <|constrain|>json<|message|>$arguments",
        trigger="<|channel|>commentary to=functions.",
        marks=("<|channel|>commentary", "functions."),
        several=False,  # `<|call|>` follows, which is an end token
        texts=(
            TextRegion("<|channel|>analysis<|message|>", _NEXT, "reasoning_content"),
            TextRegion("<|channel|>commentary<|message|>", _NEXT, "content"),
            TextRegion("<|channel|>final<|message|>", "", "content", last=True),
        ),
    ),
    # Kimi by Moonshot.
    "kimi_k2": _section(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        call="<|tool_call_begin|>functions.$name:$count<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
        client_id="functions.$name:$count",
        any_id=False,
        ends_thoughts=True,
    ),
    # DeepSeek: V3 and R1 write arguments as blocks of Markdown, V3.1 bare, later ones as markup.
    "deepseek_v3": _section(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$arguments\n```<｜tool▁call▁end｜>",
        marks=("<｜tool▁calls▁begin｜>", "```json"),
        separator="\n",
    ),
    "deepseek_v3_1": _section(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        call="<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$arguments<｜tool▁call▁end｜>",
    ),
    # Mistral: first a list, later separate calls, in some versions with ids.
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
    # Phi-4 mini by Microsoft: the format of its model card, and the format that it writes without instructions.
    "phi4_mini": _list("<|tool_call|>", "<|/tool_call|>", marks=("<|tool_call|>", "<|/tool_call|>")),
    "functools": _section("functools[", "]", separator=", "),
    # Granite 3 by IBM; Granite 4 writes as Hermes does.
    "granite3": _list("<|tool_call|>", marks=("<|tool_call|>", "<|start_of_role|>")),
    # MiniMax: M1 writes lines of JSON in a section, M2 markup.
    "minimax_m1": _section(
        "<tool_calls>\n",
        "\n</tool_calls>",
        trigger="<tool_calls>",
        marks=("<tool_calls>", "</tool_calls>", "<beginning_of_sentence>"),
        separator="\n",
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
    "jamba": _section(
        "<tool_calls>[\n",
        "\n]</tool_calls>",
        trigger="<tool_calls>",
        marks=("<tool_calls>", "tool_calls_prefix"),
        separator=",\n",
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
    # Gemma by Google: FunctionGemma and Gemma 4. One special token delimits strings on both sides.
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
    "pythonic": _section(
        "[", "]", marks=("[func_name1(params_name1=params_value1",), separator=", ", alone=True, **_PYTHON
    ),
    "lfm2": _list("<|tool_call_start|>", "<|tool_call_end|>", marks=("List of tools: ",), **_PYTHON),
    "olmo3": _section("<function_calls>", "</function_calls>", separator="\n", **_PYTHON),
    # Llama by Meta.
    "llama3": ToolFormat(
        call='{"name": "$name", "parameters": $arguments}',
        trigger='{"name": "',
        marks=("<|start_header_id|>", '"parameters": '),
        separator="; ",
        several=False,  # the chat templates reject responses with several calls
    ),
    # Formats of no vendor: bare JSON, and Turnstile's own format for models without support for tools.
    "json": ToolFormat(
        call=_JSON,
        trigger='{"name": "',
        marks=(),
        separator="\n",
    ),
    # Its markup is short, and the arguments are plain JSON.
    "turnstile": ToolFormat(
        call="<call:$name>$arguments</call>",
        trigger="<call:",
        marks=(),
        separator="\n",
    ),
}

if TYPE_CHECKING:
    ToolFormatName = str
else:
    # Type of a setting that names one of `TOOL_FORMATS`.
    ToolFormatName = Literal[tuple(sorted(TOOL_FORMATS))]

"""The declarations of tool formats, and which one a chat template belongs to."""

from __future__ import annotations

import re
import textwrap
from typing import Any, get_args

import pytest

from deployments.chat import tool_formats
from deployments.chat.tool_calls import ToolCallParser
from deployments.chat.tool_formats import (
    TOOL_FORMATS,
    ToolFormatName,
    detected_format,
    renders_tools,
    takes_argument_text,
)
from deployments.chat.tool_formats.declaration import ToolFormat
from deployments.chat.tool_formats.tags import WantedCalls, answer_format
from deployments.shipped import REPOSITORY
from grammar_workers import compile_grammar
from grammar_workers.specification import StructuralTagSpecification
from tests.deployments.test_tool_calls import read
from tests.deployments.tool_calls import vocabulary

TEMPLATES = {
    # What marks the templates of these families, as they write it.
    "hermes": '{%- if tools %}... return within <tool_call></tool_call>:\\n<tool_call>\\n{\\"name\\": <function-name>, '
    '\\"arguments\\": <args-json-object>}\\n</tool_call>',
    "llama3": "{% if tools %}<|start_header_id|>... {{- '{\"name\": \"' + name + '\", ' }}{{- '\"parameters\": ' }}",
    "mistral": "{{- '[AVAILABLE_TOOLS]' + tools }}{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",
    "mistral_call_id": "{{- '[AVAILABLE_TOOLS]' + tools }}{{- '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' }}",
    "mistral_list": '{{- "[AVAILABLE_TOOLS] [" + tools }}{{- "[TOOL_CALLS] [" }}',
    "harmony": '{% if tools %}{{ "<|start|>assistant to=functions." + name + "<|channel|>commentary json" }}',
    "kimi_k2": "{% if tools %}<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "deepseek_v3": "{% if tools %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + name + '\\n```json'}}",
    "deepseek_v3_1": "{% if tools %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + arguments}}",
    "cohere": '{% if tools %}<|START_ACTION|>[{"tool_call_id": "{{ id }}", "tool_name": "{{ name }}", ',
    "phi4_mini": "{% if tools %}<|tool_call|>{{ calls }}<|/tool_call|>",
    "functools": '{% if tools %}formatted as functools[{"name": [function name], ...',
    "granite3": "{%- if tools %}<|start_of_role|>... respond with <|tool_call|> followed by a JSON list of tools used",
    "minimax_m1": "{% if tools %}<beginning_of_sentence>... within <tool_calls></tool_calls> XML tags",
    "functionary_v3_1": "{% if tools %}start_tag => `<function`{{ '<function=' + name + '>' + arguments }}",
    "minimax_m2": "{% if tools %}wrapped by <minimax:tool_call></minimax:tool_call>",
    "deepseek_v3_2": "{% if tools %}<{{ '｜DSML｜' }}function_calls>",
    "deepseek_v4": "{% if tools %}<{{ '｜DSML｜' }}tool_calls>",
    "seed_oss": "{% if tools %}<seed:tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>",
    "qwen3_coder": "{% if tools %}<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>",
    "glm4_5": "{% if tools %}<tool_call>{function-name}\\n<arg_key>{key}</arg_key>\\n<arg_value>{value}</arg_value>",
    "glm4_7": "{% if tools %}<tool_call>{function-name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value>",
    "jamba": '{% if tools %}{% set tool_calls_prefix = "<tool_calls>" %}{{ tool_calls_prefix }}[',
    "apertus": "{% if tools %}{{ '<|tools_prefix|>[' }}{{ '{\"' + name + '\": ' + arguments + '}' }}",
    "pythonic": "{% if tools %}in the format of [func_name1(params_name1=params_value1, ...), func_name2(params)]",
    "function_gemma": "{% if tools %}<start_function_declaration>{{ '<start_function_call>call:' + name + '{' }}",
    "gemma4": "{% if tools %}<|tool>{{ tools }}<tool|>{{ '<|tool_call>call:' + name + '{' }}",
    "lfm2": "{% if tools %}{{ 'List of tools: [' }}",
    "olmo3": "{% if tools %}<functions>{{ tools }}</functions>{{ '<function_calls>' + calls + '</function_calls>' }}",
    "longcat": "{% if tools %}<longcat_tool_call>\\n{...}\\n</longcat_tool_call>",
    "internlm2": "{% if tools %}<|action_start|><|plugin|>\\n",
    "granite_20b": "{% if tools %}please output <function_call> {...}",
    "turnstile": "{% for message in messages %}{{ message.content }}{% endfor %}",
}


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_the_format_follows_from_the_chat_template(name: Any) -> None:
    if TOOL_FORMATS[name].marks != () or name == "turnstile":
        assert detected_format(TEMPLATES[name]) == name
        assert renders_tools(TEMPLATES[name]) == (name != "turnstile")
    else:
        assert name not in TEMPLATES


OTHER_MATCHES = {
    "mistral_call_id": {"mistral", "mistral_list"},
    "mistral": {"mistral_list"},
    "deepseek_v3": {"deepseek_v3_1"},
    "glm4_5": {"glm4_7"},
}
"""Formats that a template would have if its own, which stands before them, did not exist."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_matches_no_other_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matching = set()
    for other in TOOL_FORMATS:
        monkeypatch.setattr(tool_formats, "TOOL_FORMATS", {other: TOOL_FORMATS[other]})
        matching.add(detected_format(TEMPLATES[name]))
    assert matching - {name, "turnstile"} == OTHER_MATCHES.get(name, set())


def test_the_table_of_the_documentation_is_in_the_order_of_detection() -> None:
    formats = (REPOSITORY / "docs/tools.md").read_text().partition("\n## Formats\n")[2]
    table = formats.partition("| `tool_format` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(TOOL_FORMATS)


def test_a_model_without_a_template_has_our_format() -> None:
    assert detected_format(None) == "turnstile" and not renders_tools(None)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ tool['function']['name'] + sep + tool['function']['arguments'] + end }}", True),
        ("{{ call.function.arguments }}", True),
        ("{{ call.arguments | tojson }}", False),
        ("{% for key, value in call.arguments.items() %}{{ key }}{% endfor %}", False),
        (
            "{% if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}",
            False,
        ),
        ("{{ call | tojson }}", False),
        (None, False),
    ],
)
def test_a_template_says_how_it_takes_arguments(template: str | None, expected: bool) -> None:
    assert takes_argument_text(template) == expected


def test_a_trigger_begins_every_call() -> None:
    assert TOOL_FORMATS.keys() == set(get_args(ToolFormatName))
    for tool_format in TOOL_FORMATS.values():
        assert tool_format.write([("f", "{}")]).startswith(tool_format.trigger)
        assert tool_format.call.count("$name") == tool_format.call.count("$arguments") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("acme", '<acts>f:0 {"x": 1};g:1 {}</acts>'), ("acme_lines", '<act>f {"x": 1}</act>;<act>g {}</act>')],
)
def test_the_example_of_the_documentation_is_a_format(name: str, text: str) -> None:
    document = (REPOSITORY / "docs/tools.md").read_text()
    assert f"`{text}`" in document
    (block,) = [part for part in document.split("```python") if f'"{name}": ToolFormat' in part]
    entry = textwrap.dedent(block.partition("```")[0])
    acme: ToolFormat = eval(f"{{{entry}}}", {"ToolFormat": ToolFormat})[name]
    assert acme.write([("f", '{"x": 1}'), ("g", "{}")]) == text
    _, calls = read(ToolCallParser(acme, 1), list(text))
    assert [(call["name"], call["arguments"]) for call in calls] == [("f", '{"x": 1}'), ("g", "{}")]
    functions = [("f", {"type": "object"}), ("g", {"type": "object"})]
    answer = answer_format(acme, WantedCalls(functions, demanded=True, one=False))
    fsm = compile_grammar(StructuralTagSpecification.model_validate({"format": answer}), vocabulary(special=False))
    state = fsm.initial_state
    for token in fsm.vocabulary.encode(text.encode()) or []:
        state = fsm.next_state(state, token)
    assert fsm.is_terminal(state)

"""Plain `vllm serve` under our masks over HTTP: constraints x tool choices x protocols x streaming, each output judged.

`python -m tests.vllm.http_table` prints the table.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from tests.vllm.server import vllm_serve

SEEDS = (1, 2)
TEMPERATURE = 0.9
MAX_TOKENS = 400
TIMEOUT_S = 120.0

TEMPLATE = (
    "{%- if tools -%}<|system|>You may call: {% for tool in tools %}{{ tool.function.name }} {% endfor %}<|end|>"
    "{%- endif -%}{%- for message in messages -%}<|{{ message.role }}|>{{ message.content }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
"""A chat template that takes tools, which the embedded model's own does not."""

SERVE = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    # Releases that have this flag pin the arguments of a call only for tools with `strict: true` otherwise.
    *(("--tool-strict-level", "parameter") if find_spec("vllm.tool_parsers.tool_strict_level") else ()),
)

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome", "Lima"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
ADDITION: dict[str, Any] = {
    "type": "object",
    "properties": {"terms": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 3}},
    "required": ["terms"],
    "additionalProperties": False,
}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"not": {"enum": ["x"]}, "type": "string", "maxLength": 5},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
FUNCTIONS = {"get_weather": WEATHER, "add": ADDITION}
QUESTION = "What is the weather in Oslo, and what is 1 + 2?"


@dataclass(slots=True)
class Answer:
    """What came out: text, calls as (name, arguments as text), and why it ended."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ended: str = ""

    def call(self, index: int) -> list[str]:
        self.calls += [["", ""] for _ in range(len(self.calls), index + 1)]
        return self.calls[index]


Judge = Callable[[Answer], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A request of one protocol; `fields` are those of the constraint and of the tool choice."""

    protocol: str
    constraint: str
    choice: str
    fields: dict[str, Any]
    judge: Judge

    @property
    def name(self) -> str:
        return f"{self.protocol}-{self.constraint}-{self.choice}".replace(" ", "_")


# -- what an answer has to be --------------------------------------------------------------------------------------


def matches(pattern: str) -> Judge:
    def judge(answer: Answer) -> None:
        assert re.fullmatch(pattern, answer.text, re.DOTALL), answer.text
        assert not answer.calls

    return judge


def valid(schema: dict[str, Any]) -> Judge:
    def judge(answer: Answer) -> None:
        jsonschema.validate(json.loads(answer.text), schema)
        assert not answer.calls

    return judge


def tagged(answer: Answer) -> None:
    """`<person>`, a person, `</person>`, and nothing else."""
    found = re.fullmatch(r"<person>(.*)</person>", answer.text, re.DOTALL)
    assert found, answer.text
    jsonschema.validate(json.loads(found[1]), PERSON)


def tagged_in_text(answer: Answer) -> None:
    """Every `<person>` that was begun holds one, the last of them if the answer was not cut."""
    for region in answer.text.split("<person>")[1:]:
        inside, end, _ = region.partition("</person>")
        assert end, answer.text
        jsonschema.validate(json.loads(inside), PERSON)


def nested_and_tagged(answer: Answer) -> None:
    """`x` in parentheses, and a person."""
    found = re.fullmatch(r"(\(*)x(\)*)(.*)", answer.text, re.DOTALL)
    assert found and len(found[1]) == len(found[2]), answer.text
    jsonschema.validate(json.loads(found[3]), PERSON)


def calls(*names: str, least: int = 1, most: int | None = None) -> Judge:
    """From `least` to `most` calls of these functions, each with valid arguments; text only where none is needed."""

    def judge(answer: Answer) -> None:
        assert least <= len(answer.calls) <= (len(answer.calls) if most is None else most), answer
        for name, arguments in answer.calls:
            assert name in names, answer
            jsonschema.validate(json.loads(arguments), FUNCTIONS[name])
        assert not least or not answer.text.strip(), answer
        assert "<tool_call>" not in answer.text, answer

    return judge


# -- the requests --------------------------------------------------------------------------------------------------

_TAG = {"begin": "<person>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</person>"}
_FORMAT = {"type": "structural_tag", "format": {"type": "tag", **_TAG}}
_TRIGGERED = {
    "type": "structural_tag",
    "structures": [{"begin": "<person>", "schema": PERSON, "end": "</person>"}],
    "triggers": ["<person>"],
}
# XGrammar has no Lark.
_LARK = {"type": "grammar", "syntax": "lark", "grammar": 'start: "(" start ")" | "x"'}
_NESTED = {"type": "structural_tag", "format": {"type": "sequence", "elements": [_LARK, _TAG["content"]]}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
_OBJECT = r"\{.*\}"

RESPONSE_FORMATS: dict[str, tuple[dict[str, Any], Judge]] = {
    "json_schema": (_SCHEMA, valid(PERSON)),
    "json_object": ({"type": "json_object"}, matches(_OBJECT)),
    "structural_tag with format": (_FORMAT, tagged),
    "structural_tag with triggers": (_TRIGGERED, tagged_in_text),
    "structural_tag with a recursive grammar": (_NESTED, nested_and_tagged),
}
STRUCTURED_OUTPUTS: dict[str, tuple[dict[str, Any], Judge]] = {
    "json": ({"json": PERSON}, valid(PERSON)),
    "json as text": ({"json": json.dumps(PERSON)}, valid(PERSON)),
    "json_object": ({"json_object": True}, matches(_OBJECT)),
    "regex": ({"regex": "[a-c]{3}-[0-9]{1,4}!"}, matches("[a-c]{3}-[0-9]{1,4}!")),
    "choice": ({"choice": ["yes", "no", "per'haps \""]}, matches("yes|no|per'haps \"")),
    "GBNF": ({"grammar": 'root ::= "(" root ")" | [a-c] [0-9]'}, matches(r"\(*[a-c][0-9]\)*")),
    "Lark": ({"grammar": 'start: "a" ("b" | "c")~1..4'}, matches("a[bc]{1,4}")),
    "structural_tag with format": ({"structural_tag": json.dumps(_FORMAT)}, tagged),
    "structural_tag with triggers": ({"structural_tag": json.dumps(_TRIGGERED)}, tagged_in_text),
    "structural_tag with a recursive grammar": ({"structural_tag": json.dumps(_NESTED)}, nested_and_tagged),
}


def _tools(protocol: str, strict: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, schema in FUNCTIONS.items():
        if protocol == "messages":
            found.append({"name": name, "input_schema": schema, **({"strict": True} if strict else {})})
        else:
            function = {"name": name, "parameters": schema, **({"strict": True} if strict else {})}
            nested = protocol == "chat"
            found.append({"type": "function", **({"function": function} if nested else function)})
    return found


def _named(protocol: str) -> Any:
    return {
        "chat": {"type": "function", "function": {"name": "add"}},
        "responses": {"type": "function", "name": "add"},
        "messages": {"type": "tool", "name": "add"},
    }[protocol]


def _tool_cases(protocol: str) -> Iterator[Case]:
    one, several = calls("add"), calls(*FUNCTIONS)
    words = {"messages": ("any", {"type": "any"}, {"type": "auto"}, {"type": "none"})}
    demanded, required, auto, none = words.get(protocol, ("required", "required", "auto", "none"))
    for strict in (False, True):
        kind = "strict tools" if strict else "tools"
        tools = {"tools": _tools(protocol, strict)}
        yield Case(protocol, kind, demanded, {**tools, "tool_choice": required}, several)
        yield Case(protocol, kind, "named", {**tools, "tool_choice": _named(protocol)}, one)
        if strict:
            yield Case(protocol, kind, "auto", {**tools, "tool_choice": auto}, calls(*FUNCTIONS, least=0))
    tools = {"tools": _tools(protocol, True)}
    if protocol == "chat":
        sent = {**tools, "response_format": _SCHEMA}
        single = {**tools, "tool_choice": "required", "parallel_tool_calls": False}
        yield Case(protocol, "strict tools, one at a time", "required", single, calls(*FUNCTIONS, most=1))
        yield Case(protocol, "json_schema beside tools", "none", {**sent, "tool_choice": none}, valid(PERSON))
        yield Case(protocol, "json_schema beside tools", "required", {**sent, "tool_choice": required}, several)
    if protocol == "responses":
        sent = {**tools, "text": _text_format()}
        yield Case(protocol, "json_schema beside tools", "none", {**sent, "tool_choice": none}, valid(PERSON))


def _text_format() -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}


def _cases() -> Iterator[Case]:
    for protocol in ("chat", "completions"):
        for kind, (value, judge) in RESPONSE_FORMATS.items():
            yield Case(protocol, f"response_format: {kind}", "no tools", {"response_format": value}, judge)
        for kind, (value, judge) in STRUCTURED_OUTPUTS.items():
            yield Case(protocol, f"structured_outputs: {kind}", "no tools", {"structured_outputs": value}, judge)
    for kind, (value, judge) in STRUCTURED_OUTPUTS.items():
        yield Case("responses", f"structured_outputs: {kind}", "no tools", {"structured_outputs": value}, judge)
    yield Case("responses", "text.format: json_schema", "no tools", {"text": _text_format()}, valid(PERSON))
    any_object = {"text": {"format": {"type": "json_object"}}}
    yield Case("responses", "text.format: json_object", "no tools", any_object, matches(_OBJECT))
    wanted = {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}}
    yield Case("messages", "output_config.format", "no tools", wanted, valid(PERSON))
    for protocol in ("chat", "responses", "messages"):
        yield from _tool_cases(protocol)


CASES = list(_cases())


# -- sending them --------------------------------------------------------------------------------------------------


def body(case: Case, seed: int, stream: bool) -> dict[str, Any]:
    common = {"model": "tiny", "temperature": TEMPERATURE, "stream": stream, **case.fields}
    messages = [{"role": "user", "content": QUESTION}]
    match case.protocol:
        case "completions":
            return {**common, "prompt": QUESTION, "max_tokens": MAX_TOKENS, "seed": seed}
        case "responses":
            return {**common, "input": QUESTION, "max_output_tokens": MAX_TOKENS, "store": False, "seed": seed}
        case "messages":
            return {**common, "messages": messages, "max_tokens": MAX_TOKENS}
    return {**common, "messages": messages, "max_tokens": MAX_TOKENS, "seed": seed}


_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


def ask(url: str, case: Case, seed: int, stream: bool) -> Answer:
    """The answer to one request. Raises AssertionError with what the server said where it is an error."""
    response = httpx.post(url + _PATHS[case.protocol], json=body(case, seed, stream), timeout=TIMEOUT_S)
    assert response.status_code == httpx.codes.OK, f"{response.status_code}: {response.text[:500]}"
    answer = Answer()
    if not stream:
        _WHOLE[case.protocol](answer, response.json())
        return answer
    for line in response.text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event or event["error"] is None, event
            _STREAMED[case.protocol](answer, event)
    return answer


def _openai_whole(answer: Answer, body: dict[str, Any]) -> None:
    (choice,) = body["choices"]
    message = choice.get("message", {"content": choice.get("text")})
    answer.text = message["content"] or ""
    answer.calls = [[one["function"]["name"], one["function"]["arguments"]] for one in message.get("tool_calls") or ()]
    answer.ended = choice["finish_reason"]


def _openai_streamed(answer: Answer, event: dict[str, Any]) -> None:
    for choice in event["choices"]:
        delta = choice.get("delta", {"content": choice.get("text")})
        answer.text += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            call, function = answer.call(part["index"]), part["function"]
            call[0] += function.get("name") or ""
            call[1] += function.get("arguments") or ""
        answer.ended = choice.get("finish_reason") or answer.ended


def _responses_whole(answer: Answer, body: dict[str, Any]) -> None:
    for item in body["output"]:
        if item["type"] == "function_call":
            answer.calls.append([item["name"], item["arguments"]])
        else:
            answer.text += "".join(part["text"] for part in item["content"])
    answer.ended = body["status"]


def _responses_streamed(answer: Answer, event: dict[str, Any]) -> None:
    match event["type"]:
        case "response.output_text.delta":
            answer.text += event["delta"]
        case "response.output_item.done" if event["item"]["type"] == "function_call":
            answer.calls.append([event["item"]["name"], event["item"]["arguments"]])
        case "response.completed" | "response.incomplete" | "response.failed":
            answer.ended = event["response"]["status"]


def _messages_whole(answer: Answer, body: dict[str, Any]) -> None:
    for block in body["content"]:
        if block["type"] == "tool_use":
            answer.calls.append([block["name"], json.dumps(block["input"])])
        else:
            answer.text += block["text"]
    answer.ended = body["stop_reason"]


def _messages_streamed(answer: Answer, event: dict[str, Any]) -> None:
    match event["type"]:
        case "content_block_start" if event["content_block"]["type"] == "tool_use":
            answer.calls.append([event["content_block"]["name"], ""])
        case "content_block_delta" if event["delta"]["type"] == "input_json_delta":
            answer.calls[-1][1] += event["delta"]["partial_json"]
        case "content_block_delta" if event["delta"]["type"] == "text_delta":
            answer.text += event["delta"]["text"]
        case "message_delta":
            answer.ended = event["delta"]["stop_reason"] or answer.ended


_WHOLE = {
    "chat": _openai_whole,
    "completions": _openai_whole,
    "responses": _responses_whole,
    "messages": _messages_whole,
}
_STREAMED = {
    "chat": _openai_streamed,
    "completions": _openai_streamed,
    "responses": _responses_streamed,
    "messages": _messages_streamed,
}
_CUT = ("length", "max_tokens", "incomplete")


def verdict(url: str, case: Case, stream: bool) -> str:
    """How many answers were valid and how many a limit cut. Raises AssertionError, jsonschema.ValidationError."""
    cut = 0
    for seed in SEEDS:
        answer = ask(url, case, seed, stream)
        if answer.ended in _CUT:
            cut += 1
        else:
            case.judge(answer)
    return f"{len(SEEDS) - cut} valid" + (f", {cut} cut" if cut else "")


def markdown(results: dict[tuple[str, bool], str]) -> str:
    """The table; `results` by name of the case and whether it streams."""
    lines = ["| protocol | constraint | tool choice | whole | streamed |", "|---|---|---|---|---|"]
    for case in CASES:
        cells = (results[case.name, stream] for stream in (False, True))
        lines.append(f"| {case.protocol} | {case.constraint} | {case.choice} | {' | '.join(cells)} |")
    return "\n".join(lines)


def serve_arguments(folder: Path) -> list[str]:
    """Those of a server that answers all of this."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    return [*SERVE, "--chat-template", str(template)]


def main() -> None:
    results: dict[tuple[str, bool], str] = {}
    wrong = 0
    with tempfile.TemporaryDirectory() as name, vllm_serve(Path(name), serve_arguments(Path(name))) as url:
        for case in CASES:
            for stream in (False, True):
                try:
                    results[case.name, stream] = verdict(url, case, stream)
                except (AssertionError, ValueError, jsonschema.ValidationError) as error:
                    wrong += 1
                    results[case.name, stream] = "**wrong**"
                    print(case.name, stream, str(error)[:600], file=sys.stderr)
    print(markdown(results))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

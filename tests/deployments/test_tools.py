"""Tools over fake tiers: what is sent to them, what the OpenAI client reads back; the constraint against jsonschema."""

from __future__ import annotations

import json
import random
import re
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionAllowedToolChoiceParam

from deployments.chat.tool_formats import TOOL_FORMATS
from deployments.chat.tools import ToolDialect
from deployments.openai.protocol import ChatCompletionBody
from gpu_workers.request import GenerationRequest
from grammar_workers import compile_grammar
from grammar_workers.specification import SPECIFICATION
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.deployments.tool_calls import fault, generated, prefixes, vocabulary

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 9},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city"],
    "additionalProperties": False,
}
SEARCH = {
    "properties": {"filter": {"$ref": "#/$defs/filter"}},
    "required": ["filter"],
    "additionalProperties": False,
    "$defs": {"filter": {"enum": ["new", "old", "</call>"]}},
}


def function(name: str, parameters: Any = WEATHER, **fields: Any) -> dict[str, Any]:
    described = {"name": name, "description": f"does {name}", **fields}
    return {"type": "function", "function": described | ({} if parameters is None else {"parameters": parameters})}


TOOLS = [function("get_weather", strict=True), function("search", SEARCH), function("now", None)]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """The `tool_choice` that leaves these functions."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


NAMED = {"type": "function", "function": {"name": "search"}}
CALL = '<call:get_weather>{"city": "Paris", "days": 3}</call>'
USER, RESULT = {"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": "é"}'}}],
}


@pytest.fixture
def client(http: httpx.AsyncClient) -> Any:
    return openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=http).chat.completions


async def ask(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"messages": HELLO, "tools": TOOLS, **fields})


# -- answers ---------------------------------------------------------------------------------------------------------


async def test_the_openai_client_reads_calls(client: Any, replica: FakeReplica) -> None:
    replica.say("Let me", " look.\n<cal", CALL[4:30], CALL[30:] + "\n<call:now>{}</call>")
    answer = await client.create(model="tiny", messages=HELLO, tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    first, second = choice.message.tool_calls
    assert first.function.name == "get_weather" and json.loads(first.function.arguments) == {"city": "Paris", "days": 3}
    assert (second.function.name, second.function.arguments) == ("now", "{}")
    assert first.id.startswith("call_") and first.id != second.id


async def test_the_openai_client_reads_streamed_calls(client: Any, replica: FakeReplica) -> None:
    replica.say(*CALL, "\n", *"<call:now>{}</call>")
    chunks = [chunk async for chunk in await client.create(model="tiny", messages=HELLO, tools=TOOLS, stream=True)]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert not any(delta.content for delta in deltas) and deltas[0].role == "assistant"
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    names = [(call.index, call.function.name, call.type) for call in calls if call.id]
    assert names == [(0, "get_weather", "function"), (1, "now", "function")]
    assert calls[0].id and calls[0].function.arguments == ""  # the name comes first
    arguments = ["".join(call.function.arguments for call in calls if call.index == index) for index in (0, 1)]
    assert [json.loads(text) for text in arguments] == [{"city": "Paris", "days": 3}, {}]
    assert sum(call.index == 0 for call in calls) > 10  # arguments come in pieces
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "tool_calls"
    assert not any(chunk.choices[0].finish_reason for chunk in chunks[:-1])


async def test_the_openai_helper_parses_calls(client: Any, replica: FakeReplica) -> None:
    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    replica.say(CALL)
    answer = await client.parse(model="tiny", messages=HELLO, tools=[tool])
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(city="Paris", days=3)


class Weather(openai.BaseModel):
    city: str
    days: int


async def test_an_answer_without_a_call_is_text(client: Any, replica: FakeReplica) -> None:
    replica.say(" No call", " needed \n")
    answer = await client.create(model="tiny", messages=HELLO, tools=TOOLS)
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (
        " No call needed \n",
        None,
        "stop",
    )


async def test_a_call_that_was_cut_off_says_length(client: Any, replica: FakeReplica) -> None:
    replica.say(CALL[:30])
    replica.finish_reason = "length"
    (choice,) = (await client.create(model="tiny", messages=HELLO, tools=TOOLS)).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Par'[: len(CALL[18:30])]


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
async def test_a_call_that_was_cut_off_anywhere_is_no_content(
    http: httpx.AsyncClient, replica: FakeReplica, tool_choice: str
) -> None:
    replica.finish_reason = "length"
    for length in range(len(CALL)):
        replica.say(CALL[:length])
        response = await ask(http, tools=TOOLS, tool_choice=tool_choice)
        message = response.json()["choices"][0]["message"]
        assert message["content"] is None
        assert "content" not in (await ask(http, tools=TOOLS, tool_choice=tool_choice, stream=True)).text.replace(
            '"content":null', ""
        )
        # Clients send it back exactly as they got it.
        calls = [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in message.get("tool_calls", ())]
        if not calls:
            assert (await ask(http, messages=[USER, message, USER, *calls])).status_code == 200


async def test_each_choice_has_its_own_calls(client: Any, replica: FakeReplica) -> None:
    replica.say(CALL)
    for stream in (False, True):
        answer = await client.create(model="tiny", messages=HELLO, tools=TOOLS, n=3, stream=stream)
        if not stream:
            ids = [choice.message.tool_calls[0].id for choice in answer.choices]
        else:
            chunks = [chunk.choices[0] async for chunk in answer]
            ids = [call.id for chunk in chunks for call in chunk.delta.tool_calls or () if call.id]
        assert len(set(ids)) == 3


async def test_a_repeated_request_has_the_same_ids(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.say(CALL)
    answers = [await http.post("/v1/chat/completions", json=BODY, headers={"x-request-id": name}) for name in "aab"]
    first, again, other = [answer.json()["choices"] for answer in answers]
    assert first == again != other


BODY = {"messages": HELLO, "tools": TOOLS}


# -- what the tiers get ----------------------------------------------------------------------------------------------


async def test_tools_of_a_model_whose_template_knows_them(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.chat_template = "{% if tools %}<|start_header_id|>'\"parameters\": '{% endif %}"
    replica.say('{"name": "now", "parameters": {}}')
    response = await ask(http, messages=[USER, CALLED, RESULT], tool_choice="required")
    assert response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "now"
    request = GenerationRequest.model_validate(replica.requests[0])
    assert request.tools is not None and [tool["function"]["name"] for tool in request.tools] == [
        "get_weather",
        "search",
        "now",
    ]
    assert request.special_token_text
    assert request.messages == [
        USER,
        {**CALLED, "content": "", "tool_calls": [{**CALLED["tool_calls"][0], "function": ARGUMENTS_AS_DATA}]},  # type: ignore[index]
        {**RESULT, "name": "now"},
    ]
    tags = replica.requests[0]["grammar"]["specification"]["format"]["tags"]
    assert tags[0]["begin"] == '{"name": "get_weather", "parameters": ' and tags[0]["end"] == "}"


ARGUMENTS_AS_DATA = {"name": "now", "arguments": {"a": "é"}}


async def test_tools_of_a_model_that_knows_none_are_text(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    system = {"role": "system", "content": "Be brief."}
    await ask(http, messages=[system, USER, CALLED, RESULT])
    request = GenerationRequest.model_validate(replica.requests[0])
    assert request.tools is None and request.messages is not None
    first, *others = request.messages
    lines = first["content"].splitlines()
    assert first["role"] == "system" and lines[0] == "Be brief." and "<call:NAME>ARGUMENTS</call>" in lines[-1]
    assert json.loads(lines[3]) == {"name": "get_weather", "description": "does get_weather", "parameters": WEATHER}
    assert others == [
        USER,
        {"role": "assistant", "content": '<call:now>{"a": "é"}</call>'},
        {"role": "user", "content": "now returned: sunny"},
    ]


HARMONY = "{% if tools %}<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{% endif %}"
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


async def test_text_that_a_model_marks_is_read_without_tools_too(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.chat_template = HARMONY
    replica.say(ANALYSIS, '<|channel|>final<|message|>{"a": 1}')
    asked = {"messages": HELLO, "response_format": {"type": "json_object"}}
    message = (await http.post("/v1/chat/completions", json=asked)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": '{"a": 1}', "reasoning_content": "Hm."}
    request = GenerationRequest.model_validate(replica.requests[0])
    assert request.special_token_text
    specification = SPECIFICATION.validate_python(replica.requests[0]["grammar"]["specification"])
    fsm = compile_grammar(specification, vocabulary(special=True))
    text = generated(fsm, random.Random(1), f"{ANALYSIS}<|channel|>", 40)
    assert isinstance(json.loads(text.partition("<|channel|>final<|message|>")[2]), dict)


async def test_errors_in_a_region_point_into_the_clients_schema(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    replica.chat_template = HARMONY
    pointer = "/format/elements/1/elements/1/specification/schema/properties/a"
    error = {"code": "unsupported_grammar", "message": "no", "pointer": pointer}
    compiler.answers = [{"status": "refused", "error": error}]
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": WEATHER}}
    asked = {"messages": HELLO, "response_format": schema}
    assert (await http.post("/v1/chat/completions", json=asked)).json()["error"]["pointer"] == "/properties/a"


async def test_earlier_calls_reach_the_template_as_it_takes_them(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.chat_template = "{% if tools %}<|tool_calls_section_begin|>{{ call.id + call.function.arguments }}"
    await ask(http, messages=[USER, CALLED, RESULT])
    _, called, result = replica.requests[0]["messages"]
    call = called["tool_calls"][0]
    assert call["id"] == result["tool_call_id"] == "functions.now:0"
    assert json.loads(call["function"]["arguments"]) == {"a": "é"}


async def test_tool_choice_none_offers_nothing(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    body = (await ask(http, tool_choice="none", response_format={"type": "json_object"})).json()
    assert replica.requests[0]["messages"] == HELLO and body["choices"][0]["finish_reason"] == "stop"
    assert replica.requests[0]["grammar"]["specification"] == {"type": "json_object"}


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_allowed_tools_may_be_called_and_all_are_described(
    client: Any, replica: FakeReplica, mode: Literal["auto", "required"]
) -> None:
    replica.say(CALL)
    choice = ChatCompletionAllowedToolChoiceParam(**allowed(mode, "now", "get_weather"))  # type: ignore[typeddict-item]
    answer = await client.create(model="tiny", messages=HELLO, tools=TOOLS, tool_choice=choice)
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
    (request,) = replica.requests
    grammar = request["grammar"]["specification"]
    answers = grammar["format"]
    assert [tag["begin"] for tag in answers["tags"]] == ["<call:get_weather>", "<call:now>"]
    assert bool(answers.get("at_least_one")) == (mode == "required") and not answers.get("stop_after_first")
    assert all(f'"name": "{name}"' in request["messages"][0]["content"] for name in ("get_weather", "search", "now"))
    fsm = compile_grammar(grammar, vocabulary(special=False))
    calls = [call for seed in range(20) for call in CALLS.findall(generated(fsm, random.Random(seed), "<call:", 20))]
    assert set(calls) == {"get_weather", "now"}


CALLS = re.compile(r"<call:(\w+)>")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("f"), function("f")]}, "tools"),
        ({"tools": [function("f", {"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [function("f", stric=True)]}, "tools[0].function.stric"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [function(f"f{index}", None) for index in range(129)]}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "now"}}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tool_choice": allowed("none", "now")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed("auto", "now", "other")}, "tool_choice.allowed_tools.tools[1]"),
        ({"structured_outputs": {"key": "0" * 64}}, "structured_outputs"),
        ({"beam_search": {"num_beams": 2}}, "beam_search"),
        ({"banned_words": {"words": ["x"]}}, "banned_words"),
        ({"functions": []}, "functions"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{**CALLED, "role": "user"}]}, "messages[0].tool_calls"),
        ({"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.AsyncClient, replica: FakeReplica, fields: dict[str, Any], param: str
) -> None:
    response = await ask(http, **fields)
    assert response.status_code == 400, response.text
    assert param == response.json()["error"]["param"] and not replica.requests


@pytest.mark.parametrize(("choice", "index"), [("auto", 1), ("required", 1), (NAMED, 0)])
async def test_a_bad_schema_is_refused_at_its_place(
    http: httpx.AsyncClient, compiler: FakeCompiler, choice: Any, index: int
) -> None:
    pointer = f"/format/tags/{index}/content/json_schema/properties/filter/pattern"
    error = {"code": "unsupported_grammar", "message": "back-reference", "pointer": pointer}
    compiler.answers = [{"status": "refused", "error": error}]
    detail = (await ask(http, tool_choice=choice)).json()["error"]
    assert detail["param"] == "tools" and detail["code"] == "unsupported_grammar"
    assert detail["pointer"] == "/tools/1/function/parameters/properties/filter/pattern"
    assert detail["pointer"] in detail["message"]


# -- the constraint, without a model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize(
    ("choice", "parallel"), [("auto", True), ("required", True), ("required", False), (NAMED, True)]
)
def test_every_call_matches_its_schema(name: Any, choice: Any, parallel: bool, special: bool) -> None:
    """Whatever the model prefers: random walks from the beginning, and from a trigger inside of free text."""
    body = {**BODY, "tool_choice": choice, "parallel_tool_calls": parallel}
    offer = ChatCompletionBody.model_validate(body).offer()
    assert offer is not None
    tool_format = TOOL_FORMATS[name]
    fsm = compile_grammar(ToolDialect(tool_format, by_template=False).specification(offer), vocabulary(special=special))
    rng = random.Random(str((name, choice, parallel)))
    for prefix in prefixes(tool_format, offer.choice, rng) * 2:
        text = generated(fsm, rng, prefix, rng.randrange(20, 80))
        assert fault(tool_format, offer, text, triggered=bool(prefix)) is None, text


def test_the_judge_finds_faults() -> None:
    offer = ChatCompletionBody.model_validate({**BODY, "tool_choice": "required", "parallel_tool_calls": False}).offer()
    assert offer is not None
    for text, wrong in [
        ("", "no call"),
        (f"Hm. {CALL}", "text"),
        (CALL + CALL, "several"),
        ("<call:other>{}</call>", "not offered"),
        ('<call:get_weather>{"days": 3}</call>', "'city' is a required property"),
        ('<call:now>{"x": 1</call>', "now: "),
    ]:
        assert wrong in (fault(TOOL_FORMATS["turnstile"], offer, text, triggered=True) or ""), text


def test_a_template_that_teaches_another_format_is_not_asked_to() -> None:
    template = "{% for tool in tools %}write <toolcall><f=name><p=x>{% endfor %}"
    assert not ToolDialect.of_model("auto", template).by_template
    assert ToolDialect.of_model("hermes", template) == ToolDialect(TOOL_FORMATS["hermes"], by_template=True)


async def test_the_configured_format_wins(compiler: FakeCompiler, replica: FakeReplica) -> None:
    async with client_of(application(compiler, replica, tool_format="hermes")) as http:
        await ask(http)
    assert replica.requests[0]["grammar"]["specification"]["format"]["triggers"] == ["<tool_call>"]


async def test_another_constraint_has_nothing_to_say_where_calls_are_demanded(
    http: httpx.AsyncClient, compiler: FakeCompiler
) -> None:
    assert (await ask(http, tool_choice="required", response_format={"type": "json_object"})).status_code == 200
    specification = compiler.calls[0][1]
    assert specification is not None and specification["type"] == "structural_tag"

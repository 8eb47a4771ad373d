"""Models that think first: what is asked of the tiers, what clients read, and the constraint behind the thoughts."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.arguments import ThinkingArguments
from deployments.chat.thinking import FAMILIES, ReasoningParser, Thinking
from deployments.chat.tool_formats import TOOL_FORMATS, ToolFormatName
from deployments.chat.tools import ToolDialect
from deployments.openai.protocol import ChatCompletionBody
from gpu_workers.request import GenerationRequest
from grammar_workers import Vocabulary, compile_grammar
from grammar_workers.specification import SPECIFICATION, JsonSchemaSpecification
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.deployments.tool_calls import called, generated, vocabulary
from tests.grammar_workers.vocabularies import accepts

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["</think>", "b"]}, "n": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
SWITCHED = "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}"
MARKERS = FAMILIES[0]


@pytest.fixture
def replica() -> FakeReplica:
    """One whose model thinks."""
    replica = FakeReplica()
    replica.chat_template, replica.generation_prompt = SWITCHED, "assistant\n"
    return replica


async def ask(http: httpx.AsyncClient, **fields: Any) -> Any:
    return (await http.post("/v1/chat/completions", json={"messages": HELLO, **fields})).json()


async def test_thoughts_stand_apart_and_the_answer_says_where_the_constraint_applied(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    replica.say("Let me", " see.\n</th", 'ink>\n\n{"a"', ': "b"}')
    body = await ask(http, response_format=STRUCTURED)
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": '{"a": "b"}', "reasoning_content": "Let me see."}
    assert choice["grammar_start"] == len("Let me see.\n</think>\n\n")
    assert body["grammar"]["applies_to"] == "answer"
    specification = compiler.calls[0][1]
    assert specification is not None and specification["triggers"] == ["</think>"]
    request = GenerationRequest.model_validate(replica.requests[0])
    assert request.answer_prefix == "<think>\n" and request.template_arguments == {"enable_thinking": True}
    assert request.special_token_text


async def test_thoughts_are_streamed_apart(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.say(*"Hm. No.\n</think>\n\n", "Yes.")
    client = openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=http)
    stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)  # type: ignore[call-overload]
    deltas = [chunk.choices[0].delta async for chunk in stream]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "Hm. No."
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    assert len(deltas) > 6


@pytest.mark.parametrize("fields", [{"thinking": False}, {"reasoning_effort": "none"}])
async def test_a_request_can_do_without(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica, fields: dict[str, Any]
) -> None:
    body = await ask(http, response_format=STRUCTURED, **fields)
    assert "reasoning_content" not in body["choices"][0]["message"] and "grammar_start" not in body["choices"][0]
    assert body["grammar"]["applies_to"] == "output"
    assert compiler.calls[0][1] == {"type": "json_schema", "schema": SCHEMA}
    request = replica.requests[0]
    assert request["template_arguments"] == {"enable_thinking": False}
    assert request["answer_prefix"] == "<think>\n\n</think>\n\n"


class WordReplica(FakeReplica):
    """Tokens are pieces of text: those that the model says, and then those that `tokenize` was asked for."""

    def __init__(self, *said: bytes, answer: str = "") -> None:
        super().__init__()
        self.chat_template, self.generation_prompt = SWITCHED, "assistant\n"
        self.said, self.answer = said, answer
        self.pieces: list[bytes] = []

    def _id(self, piece: bytes) -> int:
        self.pieces.append(piece)
        return len(self.pieces) - 1

    async def tokenize(self, request: Any, *, options: Any) -> Any:
        assert not request["add_special_tokens"] and request["messages"] is None
        return {
            "tokens": [self._id(piece.encode()) for piece in re.findall("<|/|[^</]+", request["prompt"])],
            "count": 4,
        }

    async def detokenize(self, tokens: list[int], tenant: str, *, options: Any) -> Any:
        return {"prompt": b"".join(self.pieces[token] for token in tokens).decode(errors="replace")}

    async def generate(self, request: Any, *, options: Any) -> AsyncGenerator[Any, None]:
        self.requests.append(request)
        emitted = b"".join(self.pieces[token] for token in request["emitted_token_ids"]).decode()
        said = list(self.said[len(request["emitted_token_ids"]) :])
        if "</think>\n\n" in emitted:
            said = [self.answer.encode()]
        pending = b""
        for piece in said:
            pending += piece
            text = pending.decode(errors="ignore")
            pending = pending[len(text.encode()) :]
            yield {"text": text, "token_ids": [self._id(piece)], "finish_reason": None, "prompt_tokens": 3}
        yield {"text": "", "token_ids": [], "finish_reason": "stop", "prompt_tokens": 3}


SMILE = "\U0001f600".encode()
LONG = [b"a ", b"b ", b"c ", *(bytes([byte]) for byte in SMILE), b"d", b" e"]


@pytest.mark.parametrize("budget", range(1, 12))
async def test_thoughts_have_no_more_tokens_than_their_budget(compiler: FakeCompiler, budget: int) -> None:
    replica = WordReplica(*LONG, b"</think>", b"\n\n", b"{}", answer='{"a": "b"}')
    async with client_of(application(compiler, replica)) as http:
        body = await ask(http, thinking_budget=budget, max_tokens=100)
        stream = (
            await http.post("/v1/chat/completions", json={"messages": HELLO, "thinking_budget": budget, "stream": True})
        ).text
    (choice,) = body["choices"]
    whole = b"".join(LONG).decode()
    thoughts = choice["message"]["reasoning_content"] or ""
    assert whole.startswith(thoughts) and choice["finish_reason"] == "stop"
    if budget < len(LONG) + 1:
        # As many as there is room for, but no part of a character.
        expected = b"".join(LONG[:budget]).decode(errors="ignore").rstrip()
        assert (thoughts, choice["message"]["content"]) == (expected, '{"a": "b"}')
        going_on = replica.requests[1]["emitted_token_ids"]
        text = b"".join(replica.pieces[token] for token in going_on).decode()
        assert text.removesuffix("</think>\n\n").rstrip() == expected and len(going_on) <= budget + 4
        assert body["usage"]["completion_tokens"] == len(going_on) + 1
    else:
        assert (thoughts, choice["message"]["content"]) == (whole, "{}") and replica.requests[1][
            "emitted_token_ids"
        ] == []
    told = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    deltas = [one["choices"][0]["delta"] for one in told if one["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == thoughts
    assert "".join(delta.get("content") or "" for delta in deltas) == choice["message"]["content"]


@pytest.mark.parametrize("budget", range(1, 9))
async def test_a_call_ends_thoughts_within_their_budget(compiler: FakeCompiler, budget: int) -> None:
    call = b'{"name": "f", "arguments": {"a": "b"}}'
    replica = WordReplica(b"a ", b"b ", b"<tool", b"_call>", b"\n", call, b"\n", b"</tool_call>", answer="No.")
    replica.chat_template = SWITCHED + '<tool_call>"arguments": </tool_call>'
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    async with client_of(application(compiler, replica)) as http:
        body = await ask(http, thinking_budget=budget, tools=[tool])
    message = body["choices"][0]["message"]
    assert message["reasoning_content"].startswith("a b" if budget > 1 else "a")
    if budget < 4:
        assert message["content"] == "No." and "tool_calls" not in message and len(replica.requests) == 2
    else:
        assert message["content"] is None and len(replica.requests) == 1
        assert message["tool_calls"][0]["function"]["arguments"] == '{"a": "b"}'


async def test_a_budget_ends_within_the_limit_of_the_answer(compiler: FakeCompiler) -> None:
    replica = WordReplica(*LONG, answer="x")
    async with client_of(application(compiler, replica)) as http:
        body = await ask(http, thinking_budget=3, max_tokens=6)
    assert body["choices"][0]["finish_reason"] == "length" and len(replica.requests) == 1
    assert body["choices"][0]["message"]["reasoning_content"] == "a b c " and replica.running == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking_budget": 5, "thinking": False}, "thinking_budget"),
        ({"thinking_budget": 5, "reasoning_effort": "none"}, "thinking_budget"),
        ({"thinking_budget": 5, "logprobs": True}, "thinking_budget"),
        ({"thinking_budget": 5, "finish_within_budget": True, "response_format": STRUCTURED}, "thinking_budget"),
        ({"thinking_budget": -1}, "thinking_budget"),
    ],
)
async def test_budgets_that_cannot_be(http: httpx.AsyncClient, fields: dict[str, Any], param: str) -> None:
    assert (await ask(http, **fields))["error"]["param"] == param


async def test_no_budget_is_no_thoughts(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    await ask(http, thinking_budget=0)
    assert replica.requests[0]["template_arguments"] == {"enable_thinking": False}


async def test_an_answer_cut_in_its_thoughts_says_that_nothing_applied(
    http: httpx.AsyncClient, replica: FakeReplica
) -> None:
    replica.say("Hm")
    replica.finish_reason = "length"
    (choice,) = (await ask(http, response_format=STRUCTURED))["choices"]
    assert choice["message"]["content"] == "" and choice["message"]["reasoning_content"] == "Hm"
    assert choice["finish_reason"] == "length" and choice["grammar_start"] is None


async def test_tools_are_called_behind_thoughts(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    replica.say("I could write <call:f>.\n</think>\n\nSo:", '<call:f>{"a": "b"}</call>')
    (choice,) = (await ask(http, tools=[tool]))["choices"]
    assert choice["message"]["reasoning_content"] == "I could write <call:f>."
    assert choice["message"]["content"] == "So:" and len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"structured_outputs": {"key": "0" * 64}}, "structured_outputs"),
    ],
)
async def test_contradictions_are_refused(http: httpx.AsyncClient, fields: dict[str, Any], param: str) -> None:
    assert (await ask(http, **fields))["error"]["param"] == param


async def test_a_model_without_thoughts_says_so(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.chat_template, replica.generation_prompt = None, ""
    assert (await ask(http, reasoning_effort="low"))["error"]["code"] == "no_thinking"
    assert (await ask(http, thinking=False))["choices"][0]["finish_reason"] == "stop"
    assert "template_arguments" not in replica.requests[0]


async def test_errors_point_into_the_clients_schema(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    error = {"code": "unsupported_grammar", "message": "no", "pointer": "/tags/0/content/schema/properties/a/pattern"}
    compiler.answers = [{"status": "refused", "error": error}]
    assert (await ask(http, response_format=STRUCTURED))["error"]["pointer"] == "/properties/a/pattern"
    error["pointer"] = "/format/elements/2/tags/0/content/json_schema/properties/a"
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    assert (await ask(http, tools=[tool]))["error"]["pointer"] == "/tools/0/function/parameters/properties/a"


@pytest.mark.parametrize(
    ("template", "on", "off", "missing"),
    [
        (SWITCHED, "assistant\n", "assistant\n<think>\n\n</think>\n\n", ("<think>\n", "")),  # Qwen3
        ("</think>", "<think>\n", "<think>\n", ("", "\n</think>\n\n")),  # DeepSeek-R1, QwQ
        ("{{ '<think>' if thinking else '</think>' }}", "a<think>", "a</think>", ("", "")),  # DeepSeek-V3.1
        (
            "<seed:think></seed:think>{{ thinking_budget }}",
            "a\n",
            "a\n",
            ("<seed:think>\n", "<seed:think>\n\n</seed:think>\n\n"),
        ),
    ],
)
def test_what_a_template_leaves_out_is_added(template: str, on: str, off: str, missing: tuple[str, str]) -> None:
    thinking = Thinking.of_model("auto", template, on, off, on)
    assert thinking.wanted(None) and not thinking.wanted(False)
    assert Thinking.of_model("auto", template, on, off, off).wanted(None) == (on == off)
    assert list(thinking.prompt_fields(True)["template_arguments"]) == [
        "thinking" if " thinking " in template else "enable_thinking"
    ]
    assert tuple(thinking.prompt_fields(asked)["answer_prefix"] for asked in (True, False)) == missing


def test_operators_choose() -> None:
    assert not Thinking.of_model("off", SWITCHED, "", "", "").wanted(None)
    assert Thinking.of_model("auto", "no markers", "", "", "").markers is None
    assert Thinking.of_model("auto", "earlier: </think>", "a", "a", "a").markers is None  # an instruct model
    granite = "{% if thinking %}<think></think> and <response></response>{% endif %}"
    assert Thinking.of_model("auto", granite, "", "", "").markers is None
    mine = ThinkingArguments(start="<a>", end="</a>", by_default=False)
    thinking = Thinking.of_model(mine, None, "", "", "")
    assert not thinking.wanted(None) and thinking.prompt_fields(None) == {}
    assert thinking.prompt_fields(True)["answer_prefix"] == "<a>\n"


@given(
    st.text("ab<>/think \n", max_size=20),
    st.text("a\n<", max_size=9),
    st.sampled_from([None, "<t>", "<hi>"]),
    st.randoms(use_true_random=False),
)
def test_how_the_text_is_cut_does_not_matter(
    thoughts: str, answer: str, begins: str | None, rng: random.Random
) -> None:
    text = f"{thoughts}{MARKERS.closes}{answer}"
    found = thoughts + MARKERS.end
    expected = found[: found.index(MARKERS.end)].rstrip()
    if begins is not None and begins in thoughts and thoughts.index(begins) < found.index(MARKERS.end):
        expected, answer = thoughts[: thoughts.index(begins)].rstrip(), text[text.index(begins) :]
    whole = ReasoningParser(MARKERS, begins)
    parts = [whole.feed(text)]
    assert parts[0][0] == expected and (MARKERS.end in thoughts or parts[0][1] == answer)
    reader = ReasoningParser(MARKERS, begins)
    pieces = []
    while text:
        size = rng.randrange(1, 5)
        pieces.append(reader.feed(text[:size]))
        text = text[size:]
    assert tuple(map("".join, zip(*pieces, strict=True))) == parts[0]
    assert reader.answer_at == whole.answer_at and reader.finish() == ""


# -- the constraint, without a model ---------------------------------------------------------------------------------


def with_special_marker() -> Vocabulary:
    plain = vocabulary(special=False)
    names = plain.special_tokens | {MARKERS.end: plain.size}
    return Vocabulary([*map(plain.token_bytes, range(plain.size)), None], plain.eos_token_ids, names)


@pytest.mark.parametrize("make", [lambda: vocabulary(special=False), with_special_marker])
def test_whatever_was_thought_the_answer_matches(make: Any) -> None:
    """Random walks: no thought is forbidden but the marker, and the output cannot end before it."""
    thinking = Thinking(MARKERS, True, "", "")
    fsm = compile_grammar(thinking.specification(JsonSchemaSpecification(json_schema=SCHEMA)), make())
    rng = random.Random(1)
    for prefix in ("", "Well <", '{"a": 1} <call:f>', "x\n</think>\n\n"):
        text = generated(fsm, rng, prefix, rng.randrange(5, 60))
        thoughts, answer = ReasoningParser(MARKERS).feed(text)
        jsonschema.validate(json.loads(answer), SCHEMA)
        assert MARKERS.end not in thoughts and prefix.split("\n")[0].rstrip() in thoughts


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("name", [name for name, tool_format in TOOL_FORMATS.items() if tool_format.ends_thoughts])
def test_a_call_ends_thoughts(name: ToolFormatName, choice: Any, parallel: bool) -> None:
    """Without the marker, too; and behind it the answer is as ever."""
    schemas = {"f": SCHEMA, "g": {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}}
    tools = [{"type": "function", "function": {"name": one, "parameters": schemas[one]}} for one in schemas]
    body = {"messages": HELLO, "tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
    offer = ChatCompletionBody.model_validate(body).offer()
    assert offer is not None
    tool_format = TOOL_FORMATS[name]
    specification = ToolDialect(tool_format, by_template=False).specification(offer, MARKERS)
    for special in (True, False):
        fsm = compile_grammar(specification, vocabulary(special=special))
        for seed in range(4):
            for prefix in ("Hm <t, so ", f"Hm <t, so {tool_format.trigger}", f"Hm <t, so {MARKERS.closes}"):
                text = generated(fsm, random.Random(f"{name} {seed}"), prefix, 60)
                thoughts, answer = ReasoningParser(MARKERS, tool_format.trigger).feed(text)
                assert thoughts.startswith("Hm <t, so") and MARKERS.end not in thoughts
                content, calls = called(tool_format, answer, offer.schemas())
                if choice != "auto":
                    assert calls and not content
                if tool_format.trigger in prefix:
                    assert thoughts == "Hm <t, so" and calls and answer.startswith(tool_format.trigger)
                assert (parallel and choice in ("auto", "required")) or len(calls) <= 1
                for function, arguments in calls:
                    jsonschema.validate(json.loads(arguments), schemas[function])


def test_calls_behind_thoughts_match() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    offer = ChatCompletionBody.model_validate({"messages": HELLO, "tools": [tool]}).offer()
    assert offer is not None
    specification = ToolDialect(TOOL_FORMATS["hermes"], by_template=False).specification(offer, MARKERS)
    fsm = compile_grammar(specification, vocabulary(special=True))
    text = generated(fsm, random.Random(2), "No <tool_call\n</think>\n\nNow <tool_call>", 40)
    _, answer = ReasoningParser(MARKERS).feed(text)
    content, calls = called(TOOL_FORMATS["hermes"], answer)
    assert content.startswith("Now") and calls and calls[0][0] == "f"
    jsonschema.validate(json.loads(calls[0][1]), SCHEMA)


def test_a_recursive_grammar_may_follow_thoughts_that_end_with_text() -> None:
    grammar = SPECIFICATION.validate_python(
        {"type": "grammar", "syntax": "gbnf", "text": 'root ::= "(" root ")" | "x"'}
    )
    specification = Thinking(MARKERS, True, "", "").specification(grammar)
    fsm = compile_grammar(specification, vocabulary(special=False))
    assert accepts(fsm, "(x</think>\n\n((x))")
    assert not accepts(fsm, "</think>\n\n(x") and not accepts(fsm, "x")
    tokens = [*(bytes([byte]) for byte in range(256)), None, None]
    special = Vocabulary(tokens, [256], {"<|end|>": 256, "</think>": 257})
    fsm = compile_grammar(specification, special)
    thought, answer = [*b"(x", 257, *b"\n\n"], [*b"((x))", 256]
    state = functools.reduce(fsm.next_state, [*thought, *answer], fsm.initial_state)
    assert fsm.is_terminal(state)

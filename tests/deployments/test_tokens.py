"""`/tokenize` and `/detokenize` before a replica with a real tokenizer: the judge is the tokenizer itself, and the
prompt that a chat completion of the same fields gets.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import httpx
import pytest
from ray.serve import Deployment
from transformers import AutoTokenizer

from gpu_workers.model.prompt import PromptEncoder
from gpu_workers.replica import ModelReplica
from gpu_workers.request import GenerationRequest, RequestError
from grammar_workers.service.tenant_threads import TenantThreads
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica
from tests.documents import REPOSITORY

pytestmark = pytest.mark.anyio

TOKENIZER = AutoTokenizer.from_pretrained(str(REPOSITORY / "models" / "turnstile-tiny"))
HELLO = [{"role": "user", "content": "hello é"}]
TALK = [{"role": "system", "content": "Be brief."}, *HELLO, {"role": "assistant", "content": "well"}]
TOOL = {"type": "function", "function": {"name": "now", "description": "tells the time"}}
THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think></think>{% endif %}"


class Tokenizing(FakeReplica):
    """With the methods of a real replica that look at its tokenizer alone."""

    class _Engine:
        tokenizer = TOKENIZER
        tokenizing = TenantThreads("tokenize")
        max_model_len = 2048

        class vocabulary:
            size = len(TOKENIZER) + 8

    _engine = _Engine()

    def __init__(self) -> None:
        super().__init__()
        self.tenants: list[str] = []

    async def tokenize(self, request: Any, *, options: Any) -> Any:
        self.tenants.append(request["tenant"])
        return await cast(Deployment, ModelReplica).func_or_class.tokenize(self, request)

    async def detokenize(self, tokens: Any, tenant: str, *, options: Any) -> Any:
        self.tenants.append(tenant)
        return await cast(Deployment, ModelReplica).func_or_class.detokenize(self, tokens, tenant)


@pytest.fixture
def replica() -> FakeReplica:
    return Tokenizing()


async def test_a_text(http: httpx.AsyncClient) -> None:
    for special in (True, False):
        answer = await http.post(
            "/tokenize", json={"prompt": "naïve 😀", "add_special_tokens": special, "return_token_strs": True}
        )
        tokens = TOKENIZER("naïve 😀", add_special_tokens=special)["input_ids"]
        assert answer.json() == {
            "count": len(tokens),
            "max_model_len": 2048,
            "tokens": tokens,
            "token_strs": TOKENIZER.convert_ids_to_tokens(tokens),
        }
    assert (await http.post("/detokenize", json={"tokens": tokens})).json() == {"prompt": "naïve 😀"}
    assert (await http.post("/tokenize", json={"prompt": "", "add_special_tokens": False})).json()["count"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": TALK},
        {"tools": [TOOL]},
        {"messages": TALK, "tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"thinking": True},
        {"reasoning_effort": "none"},
        {"thinking": True, "tools": [TOOL]},
    ],
)
async def test_a_chat_has_the_tokens_of_its_completion(
    http: httpx.AsyncClient, replica: FakeReplica, fields: dict[str, Any]
) -> None:
    if "thinking" in fields or "reasoning_effort" in fields:
        replica.chat_template = THINKS
        replica.generation_prompt = "<think>"
    body = {"messages": HELLO, **fields}
    tokenized = (await http.post("/tokenize", json=body)).json()
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    request = GenerationRequest.model_validate(replica.requests[0])
    encoder = PromptEncoder(TOKENIZER, token_limit=len(TOKENIZER), max_model_len=2048, longest_token=64)
    assert tokenized["tokens"] == encoder.encode(request) and tokenized["count"] == len(tokenized["tokens"])
    assert tokenized["token_strs"] is None


@pytest.mark.parametrize("fields", [{}, {"system": "Be brief."}, {"tools": [{"name": "now", "input_schema": {}}]}])
async def test_a_message_is_counted_as_it_will_be(
    http: httpx.AsyncClient, replica: FakeReplica, fields: dict[str, Any]
) -> None:
    body = {"model": "tiny", "messages": HELLO, **fields}
    counted = (await http.post("/v1/messages/count_tokens", json=body)).json()
    assert (await http.post("/v1/messages", json={**body, "max_tokens": 5})).status_code == 200
    request = GenerationRequest.model_validate(replica.requests[0])
    encoder = PromptEncoder(TOKENIZER, token_limit=len(TOKENIZER), max_model_len=2048, longest_token=64)
    assert counted == {"input_tokens": len(encoder.encode(request))}


@pytest.mark.parametrize("fields", [{"add_generation_prompt": False}, {"continue_final_message": True}])
async def test_the_end_of_a_chat(http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    fields = {"add_generation_prompt": False, **fields}
    answer = (await http.post("/tokenize", json={"messages": TALK, **fields})).json()
    assert answer["tokens"] == TOKENIZER.apply_chat_template(TALK, return_dict=False, **fields)
    assert len(answer["tokens"]) < (await http.post("/tokenize", json={"messages": TALK})).json()["count"]


async def test_special_tokens_of_a_chat_are_added_on_demand(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/tokenize", json={"messages": TALK, "add_special_tokens": True})).json()
    text = TOKENIZER.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    assert answer["tokens"] == TOKENIZER(text)["input_ids"]


@pytest.mark.parametrize(
    ("path", "body", "param", "status"),
    [
        ("/tokenize", {}, "prompt", 400),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt", 400),
        ("/tokenize", {"prompt": [1]}, "prompt", 400),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools", 400),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt", 400),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model", 404),
        ("/tokenize", {"prompt": "a", "truncate": 3}, "truncate", 400),
        ("/tokenize", {"messages": HELLO, "continue_final_message": True}, "continue_final_message", 400),
        ("/tokenize", {"messages": HELLO, "chat_template": "x"}, "chat_template", 400),
        ("/tokenize", {"messages": HELLO, "chat_template_kwargs": {}}, "chat_template_kwargs", 400),
        ("/tokenize", {"messages": HELLO, "tool_choice": "required"}, "tool_choice", 400),
        ("/tokenize", {"messages": HELLO, "thinking": True}, "thinking", 400),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content", 400),
        ("/tokenize", {"messages": HELLO, "tools": [{**TOOL, "type": "custom"}]}, "tools[0].type", 400),
        ("/detokenize", {}, "tokens", 400),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]", 400),
        ("/detokenize", {"tokens": [len(TOKENIZER) + 1]}, "tokens", 400),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model", 404),
    ],
)
async def test_what_is_wrong_is_told_by_name(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str, status: int
) -> None:
    answer = await http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


async def test_limits_are_those_of_other_paths(compiler: FakeCompiler, replica: FakeReplica) -> None:
    limit = {"requests_per_minute": 1, "burst": 2}
    async with client_of(application(compiler, replica, max_prompt_bytes=100, rate_limit=limit)) as client:
        answer = await client.post("/tokenize", json={"prompt": "x" * 200})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        statuses = [(await client.post("/detokenize", json={"tokens": []})).status_code for _ in range(2)]
        assert statuses == [200, 429]


async def test_a_long_prompt_does_not_block_the_event_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, tokenize = threading.Event(), threading.Event(), type(TOKENIZER).__call__

    def slow(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert may_end.wait(60), "the event loop does not go on"
        return tokenize(*arguments, **named)

    monkeypatch.setattr(type(TOKENIZER), "__call__", slow)
    long = asyncio.ensure_future(http.post("/tokenize", json={"prompt": "some words " * 8000}))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    may_end.set()
    assert (await long).json()["count"] > 1000


@pytest.mark.parametrize("source", ["prompt", "messages"])
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = PromptEncoder(TOKENIZER, token_limit=len(TOKENIZER), max_model_len=100, longest_token=20)
    monkeypatch.setattr(type(TOKENIZER), "__call__", lambda *arguments, **named: pytest.fail("it was tokenized"))
    text = "a" * 100_000
    prompt = {"prompt": text} if source == "prompt" else {"messages": [{"role": "user", "content": text}]}
    with pytest.raises(RequestError) as caught:
        encoder.encode(GenerationRequest.model_validate({"request_id": "1", **prompt}))
    assert caught.value.code == "context_length_exceeded"


async def test_tokenizing_waits_in_the_turn_of_its_tenant(http: httpx.AsyncClient, replica: Tokenizing) -> None:
    headers = {"x-turnstile-tenant": "search"}
    assert (await http.post("/tokenize", json={"prompt": "a"}, headers=headers)).status_code == 200
    assert (await http.post("/detokenize", json={"tokens": [5]}, headers=headers)).status_code == 200
    assert replica.tenants == ["search", "search"]
    assert (await http.post("/v1/completions", json={"prompt": "a"}, headers=headers)).status_code == 200
    assert replica.requests[-1]["tenant"] == "search"


async def test_the_document_says_that_a_source_is_needed(http: httpx.AsyncClient) -> None:
    schema = (await http.get("/openapi.json")).json()["components"]["schemas"]["TokenizeBody"]
    assert (await http.post("/tokenize", json={})).status_code == 400
    assert {name for one in schema["oneOf"] for name in one["required"]} == {"prompt", "messages"}

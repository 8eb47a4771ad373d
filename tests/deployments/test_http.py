"""The HTTP application over fake tiers: statuses, bodies, streams."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from ray.exceptions import ActorUnavailableError
from ray.serve.exceptions import BackPressureError

from deployments.version import version
from grammar_workers import GrammarOptions, grammar_key
from tests.deployments.applications import MAX_BODY_BYTES
from tests.deployments.fakes import ARTIFACT, FINGERPRINT, FakeCompiler, FakeReplica

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
STRUCTURED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


async def chat(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"messages": HELLO, **fields})


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"}
    detail = response.json()["error"]
    assert {"message", "type", "param", "code"} <= detail.keys()
    return detail


async def test_an_answer(http: httpx.AsyncClient) -> None:
    response = await chat(http, model="tiny")
    body = response.json()
    assert len(body.pop("id")) == 32
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "0 1 2 3 4 "},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
    }


async def test_an_answer_of_the_older_endpoint(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.finish_reason = "length"
    body = (await http.post("/v1/completions", json={"prompt": "x"})).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "0 1 2 3 4 ", "logprobs": None, "finish_reason": "length"}]
    assert replica.requests[0]["prompt"] == "x"


async def test_a_constraint_reaches_both_tiers_under_one_key(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    compiler.answers[0]["notes"] = ["ignored `title`"]
    body = (await chat(http, response_format=STRUCTURED)).json()
    specification = {"type": "json_schema", "schema": SCHEMA}
    key = grammar_key(specification, FINGERPRINT, GrammarOptions())
    assert compiler.calls[0][:2] == (key, specification)
    assert replica.requests[0]["grammar"] == {
        "key": key,
        "specification": specification,
        "tenant": "anonymous",
        "artifact": ARTIFACT,
    }
    assert body["grammar"] == {
        "key": key,
        "source": "compiled",
        "notes": ["ignored `title`"],
        "unenforced": [],
        "applies_to": "output",
    }


async def test_an_answer_has_the_id_of_its_request(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    for name in ("mine", "mine", None):
        headers = {} if name is None else {"x-request-id": name}
        answer = (await http.post("/v1/completions", json={"prompt": "x"}, headers=headers)).json()
        assert answer["id"] == name or name is None
    # What the replicas go by is not the client's choice, or one could get at the generations of others.
    assert len({"mine", answer["id"], *(request["request_id"] for request in replica.requests)}) == 5


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "a\tb"])
async def test_a_strange_request_id_is_refused(http: httpx.AsyncClient, name: str) -> None:
    response = await http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": name})
    assert error(response, 400)["param"] == "x-request-id"


@pytest.mark.parametrize("path", ["/", "/health", "/docs", "/openapi.json", "/explorer/", "/v1/models", "/nowhere"])
@pytest.mark.parametrize("ids", [["x" * 129], ["a b"], [""], ["one", "two"]])
async def test_on_any_path(http: httpx.AsyncClient, path: str, ids: list[str]) -> None:
    sent = [("x-request-id", one) for one in ids]
    assert error(await http.get(path, headers=sent), 400)["param"] == "x-request-id"
    assert (await http.get(path, headers={"x-request-id": "x" * 128})).status_code in (200, 404)


async def test_a_repeated_request_id_draws_the_same_seed(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    for request_id in ("mine", "mine", "other"):
        await http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": request_id})
    await http.post("/v1/completions", json={"prompt": "x"})
    await http.post("/v1/completions", json={"prompt": "x", "seed": 5})
    first, again, *others = [request["sampling"]["seed"] for request in replica.requests]
    assert first == again
    assert len({first, *others}) == 4 and others[-1] == 5


def blocks(text: str) -> list[str]:
    assert text.endswith("\n\n")
    parts = text.removesuffix("\n\n").split("\n\n")
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [part.removeprefix("data: ") for part in parts]


async def test_a_stream(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.length = 2
    response = await chat(http, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = blocks(response.text)
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert {chunk["object"] for chunk in parsed} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in parsed}) == 1
    assert not any("usage" in chunk for chunk in parsed)
    assert [(chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for chunk in parsed] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "0 "}, None),
        ({"content": "1 "}, None),
        ({}, "stop"),
    ]


async def test_a_stream_of_the_older_endpoint_with_usage(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.length = 1
    fields = {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
    response = await http.post("/v1/completions", json=fields)
    parsed = [json.loads(chunk) for chunk in blocks(response.text)[:-1]]
    assert [chunk["choices"][0]["text"] for chunk in parsed[:-1]] == ["0 ", ""]
    assert [chunk["usage"] for chunk in parsed[:-1]] == [None, None]
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


async def test_a_stream_that_fails_ends_with_the_error(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.faults = [(2, {"status": 500, "code": "not_finite", "message": "the model overflowed", "param": None})]
    response = await chat(http, stream=True)
    *_, failure, done = blocks(response.text)
    assert json.loads(failure)["error"]["code"] == "not_finite"
    assert done == "[DONE]"


async def test_a_fault_of_ours_in_a_stream_says_nothing_of_the_inside(
    http: httpx.AsyncClient, replica: FakeReplica
) -> None:
    replica.faults = [(2, ValueError("secret"))]
    response = await chat(http, stream=True)
    assert "secret" not in response.text
    assert json.loads(blocks(response.text)[-2])["error"]["type"] == "server_error"


async def test_the_openai_client_reads_answers_and_streams(http: httpx.AsyncClient) -> None:
    client = openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=http)
    answer = await client.chat.completions.create(model="tiny", messages=HELLO, response_format=STRUCTURED)  # type: ignore[call-overload]
    stream = await client.chat.completions.create(  # type: ignore[call-overload]
        model="tiny",
        messages=[*HELLO, answer.choices[0].message.model_dump()],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == answer.choices[0].message.content == "0 1 2 3 4 "
    assert chunks[-1].usage == answer.usage
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.chat.completions.create(model="other", messages=HELLO)  # type: ignore[call-overload]
    assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_unknown_model(http: httpx.AsyncClient) -> None:
    detail = error(await chat(http, model="gpt-9"), 404)
    assert detail["code"] == "model_not_found" and detail["param"] == "model" and "gpt-9" in detail["message"]


async def test_unknown_path(http: httpx.AsyncClient) -> None:
    assert "/v1/nothing" in error(await http.get("/v1/nothing"), 404)["message"]


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("/v1/v1/messages", "/v1/messages"),
        ("/messages", "/v1/messages"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/embeddings", None),
        ("/s", None),
    ],
)
async def test_an_unknown_path_that_is_near_a_known_one(http: httpx.AsyncClient, sent: str, meant: str | None) -> None:
    message = (await http.post(sent, json={})).json()["error"]["message"]
    assert message == f"no such path: POST {sent}" + (f"; is `{meant}` meant?" if meant else "")


async def test_another_method_than_a_path_takes(http: httpx.AsyncClient) -> None:
    message = error(await http.get("/v1/chat/completions"), 405)["message"]
    assert message == "GET is not allowed here: /v1/chat/completions takes POST"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("[1, 2]", "the body is an array: it must be a JSON object"),
        ("1.5", "the body is a number: it must be a JSON object"),
        ("", "missing, or not sent as Content-Type: application/json"),
    ],
)
async def test_a_body_that_is_no_object(http: httpx.AsyncClient, body: str, told: str) -> None:
    headers = {"content-type": "application/json"}
    answer = await http.post("/v1/chat/completions", content=body, headers=headers)
    assert told in error(answer, 400)["message"]


async def test_the_key_of_a_grammar_in_words(http: httpx.AsyncClient) -> None:
    assert "`key`: must have 64 characters" in error(await http.get("/v1/grammars/0123"), 400)["message"]


async def test_unknown_field(http: httpx.AsyncClient) -> None:
    detail = error(await chat(http, temprature=1), 400)
    assert detail["param"] == "temprature" and detail["code"] == "unknown_field"


async def test_errors_stay_small_and_say_which_text_is_at_fault(http: httpx.AsyncClient) -> None:
    detail = error(await chat(http, **{"x" * 1000: 1}), 400)
    assert detail["code"] == "unknown_field" and len(detail["message"]) < 300 and len(detail["param"]) < 300
    detail = error(await chat(http, **{f"k{i}": 1 for i in range(100)}), 400)
    assert detail["param"] == "k0" and len(detail["message"]) < 1000
    detail = error(await chat(http, structured_outputs={"json": "{"}), 400)
    assert detail["param"] == "structured_outputs.json" and "not JSON" in detail["message"]
    detail = error(await http.post("/v1/completions", content=b'{"prompt": "a"}'), 400)
    assert "Content-Type: application/json" in detail["message"]


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"[]", b'{"prompt": NaN}', b'{"prompt": "\\ud800"}', b"[" * 1500, b"\xff", b'{"prompt": "a"} x'],
)
async def test_bodies_that_are_not_json_objects(http: httpx.AsyncClient, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    detail = error(await http.post("/v1/completions", content=body, headers=headers), 400)
    assert detail["type"] == "invalid_request_error"


async def test_a_body_that_is_too_large(http: httpx.AsyncClient) -> None:
    assert f"{MAX_BODY_BYTES} bytes" in error(await chat(http, user="x" * MAX_BODY_BYTES), 413)["message"]

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(101):
            yield b" " * (MAX_BODY_BYTES // 100)

    headers = {"content-type": "application/json"}
    error(await http.post("/v1/completions", content=chunks(), headers=headers), 413)


async def test_a_refused_specification_names_its_place(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    refusal = {"code": "unsupported_grammar", "message": "`not` is not supported", "pointer": "/not", "position": None}
    compiler.answers = [{"status": "refused", "error": refusal}]
    for stream in (False, True):
        detail = error(await chat(http, response_format=STRUCTURED, stream=stream), 400)
        assert detail["pointer"] == "/not" and "/not" in detail["message"] and "`not`" in detail["message"]
        assert detail["param"] == "response_format" and detail["code"] == "unsupported_grammar"


async def test_a_specification_that_has_no_key(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    fields = {"response_format": {"type": "json_schema", "schema": {"maximum": 1e999}}}
    text = json.dumps({"messages": HELLO, **fields}).replace("Infinity", "1e999")
    headers = {"content-type": "application/json"}
    error(await http.post("/v1/chat/completions", content=text, headers=headers), 400)
    assert not compiler.calls


TWICE = '{"type":"object","properties":{"a":{"type":"integer"},"a":{}}}'


@pytest.mark.parametrize(
    ("field", "param", "pointer"),
    [
        (
            f'"response_format":{{"type":"json_schema","schema":{TWICE}}}',
            "response_format.schema.properties.a",
            None,
        ),
        (f'"structured_outputs":{{"json":{TWICE}}}', "structured_outputs.json.properties.a", None),
        (f'"structured_outputs":{{"json":{json.dumps(TWICE)}}}', "structured_outputs.json", "/properties/a"),
        (
            f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{TWICE}}}}}]',
            "tools[0].function.parameters.properties.a",
            None,
        ),
    ],
)
async def test_a_key_that_stands_twice_in_a_schema_has_a_place(
    http: httpx.AsyncClient, compiler: FakeCompiler, field: str, param: str, pointer: str | None
) -> None:
    text = f'{{"messages":{json.dumps(HELLO)},{field}}}'
    response = await http.post("/v1/chat/completions", content=text, headers={"content-type": "application/json"})
    detail = error(response, 400)
    assert (detail["param"], detail.get("pointer")) == (param, pointer) and "twice" in detail["message"]
    assert not compiler.calls


async def test_a_full_server(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.faults = [(0, BackPressureError(10, 10, 429, 1.0))]
    response = await chat(http)
    assert error(response, 429)["type"] == "rate_limit_error"
    assert response.headers["retry-after"] == "1"


async def test_a_fault_of_ours(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.faults = [(0, ValueError("secret"))]
    detail = error(await chat(http), 500)
    assert detail["type"] == "server_error" and "secret" not in detail["message"]


async def test_health(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("fault", "status"), [(ActorUnavailableError("gone", None), 503), (BackPressureError(1, 1, 429, 1.0), 200)]
)
async def test_health_of_a_tier_in_trouble(
    http: httpx.AsyncClient, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int
) -> None:
    async def info(*_: Any, options: dict[str, Any]) -> dict[str, Any]:
        raise fault

    monkeypatch.setattr(replica, "info", info)
    assert (await http.get("/health")).status_code == status


async def test_health_does_not_wait_for_ever(
    http: httpx.AsyncClient, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def info(*, options: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(compiler, "info", info)
    monkeypatch.setattr("deployments.routing.service.HEALTH_TIMEOUT_S", 0.01)
    assert error(await http.get("/health"), 503)["code"] == "not_ready"


async def test_models(http: httpx.AsyncClient) -> None:
    body = (await http.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [(card["id"], card["object"], card["max_model_len"]) for card in body["data"]] == [("tiny", "model", 2048)]


async def test_one_model(http: httpx.AsyncClient) -> None:
    (listed,) = (await http.get("/v1/models")).json()["data"]
    assert (await http.get("/v1/models/tiny")).json() == listed
    for name in ("other", "or/ganisation", "x" * 5000):
        detail = error(await http.get(f"/v1/models/{name}"), 404)
        assert detail["code"] == "model_not_found" and "`tiny`" in detail["message"] and len(detail["message"]) < 500


async def test_probes_may_ask_for_the_head(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    assert (await http.head("/health")).status_code == 200


async def test_compressed_bodies_are_refused(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    body = gzip.compress(json.dumps({"prompt": "x"}).encode())
    response = await http.post("/v1/completions", content=body, headers=headers)
    assert "Content-Encoding" in error(response, 415)["message"]
    headers["content-encoding"] = "identity"
    assert (await http.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)).status_code == 200


async def test_no_input_comes_back_at_length(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    long = "x" * 90_000
    message = f"unknown keyword {long}"
    refusal = {"code": "unsupported_grammar", "message": message, "pointer": f"/{long}", "position": None}
    compiler.answers = [{"status": "refused", "error": refusal}]
    responses = [
        await chat(http, model=long),
        await chat(http, response_format={"type": long}),
        await chat(http, **{long: 1}),
        await chat(http, response_format=STRUCTURED),
        await chat(http, messages=[{"role": long, "content": "x"}]),
        await http.get(f"/{long[:20_000]}"),
        await http.get(f"/v1/models/{long[:20_000]}"),
    ]
    for response in responses:
        assert 400 <= response.status_code < 500 and len(response.content) < 4096, response.text[:200]


async def test_the_documentation_lists_the_paths(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert document["info"]["version"] == version()
    grammars = {"/v1/grammars", "/v1/grammars/{key}"}
    models = {"/v1/models", "/v1/models/{name}"}
    generation = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
    assert {*generation, "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/health", *models, *grammars} == set(
        document["paths"]
    )
    assert (await http.get("/docs")).status_code == 200

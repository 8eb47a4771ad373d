"""LoRA adapters are models to clients: listed, chosen by name, and told to the replica."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica

pytestmark = pytest.mark.anyio

ENGINE = {
    "kind": "vllm",
    "engine_args": {"enable_lora": True},
    "lora_adapters": {"tuned": "/adapters/tuned", "org/other": "hub/other"},
}
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def adapted(compiler: FakeCompiler, replica: FakeReplica) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(compiler, replica, engine=ENGINE)) as client:
        yield client


async def test_they_are_listed_behind_the_model(adapted: httpx.AsyncClient) -> None:
    cards = (await adapted.get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == ["tiny", "tuned", "org/other"]
    assert (await adapted.get("/v1/models/tuned")).json() == cards[1]
    assert (await adapted.get("/v1/models/tune")).status_code == 404


@pytest.mark.parametrize(("model", "adapter"), [(None, None), ("tiny", None), ("tuned", "tuned")])
async def test_a_request_chooses_one(
    adapted: httpx.AsyncClient, replica: FakeReplica, model: str | None, adapter: str | None
) -> None:
    named = {} if model is None else {"model": model}
    answers = [
        await adapted.post("/v1/chat/completions", json={"messages": MESSAGES, **named}),
        await adapted.post("/v1/completions", json={"prompt": "x", **named}),
        await adapted.post("/v1/responses", json={"input": "x", **named}),
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.json()["model"] for answer in answers] == [model or "tiny"] * 3
    assert [request.get("adapter") for request in replica.requests] == [adapter] * 3


async def test_other_names_are_refused(adapted: httpx.AsyncClient, http: httpx.AsyncClient) -> None:
    for client, name in ((adapted, "tuned2"), (adapted, "/adapters/tuned"), (http, "tuned")):
        answer = await client.post("/v1/chat/completions", json={"messages": MESSAGES, "model": name})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")

"""Sampling settings over HTTP: what reaches a replica, what is refused and by which name, several choices, reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import ValidationError
from ray.exceptions import ActorDiedError

from deployments.openai.protocol import ChatCompletionBody, CompletionBody
from deployments.routing.tiers import Tiers
from gpu_workers.request import BannedWords, BeamSearch, ConditionalSampling, GenerationRequest, SamplingParameters
from tests.deployments.applications import NEW_GRAMMARS
from tests.deployments.fakes import FakeCompiler, FakeReplica, settled

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]
FIELDS: dict[str, Any] = {
    "min_tokens": 3,
    "max_tokens": 9,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "presence_penalty": -0.5,
    "frequency_penalty": 2,
    "logit_bias": {"17": -100, "4": 0.5},
    "stop_token_ids": [5, 6],
    "ignore_eos": True,
    "diagnostics": True,
    "banned_words": {"words": ["no", "never"], "whole_words": True},
    "seed": 1,
}


async def chat(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"messages": HELLO, **fields})


def blocks(response: httpx.Response) -> list[dict[str, Any]]:
    parts = response.text.removesuffix("\n\n").split("\n\n")
    assert parts.pop() == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_every_setting_reaches_the_replica() -> None:
    expected = SamplingParameters(
        min_tokens=3,
        max_tokens=9,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-0.5,
        frequency_penalty=2,
        logit_bias={17: -100, 4: 0.5},
        stop_token_ids=(5, 6),
        ignore_eos=True,
        diagnostics=True,
        banned_words=BannedWords(words=("no", "never"), whole_words=True),
        seed=1,
        logprobs=4,
        raw_logprobs=True,
    )
    bodies = (
        ChatCompletionBody.model_validate(
            {"messages": HELLO, "logprobs": True, "top_logprobs": 4, "raw_logprobs": True, **FIELDS}
        ),
        CompletionBody.model_validate({"prompt": "x", "logprobs": 4, "raw_logprobs": True, **FIELDS}),
    )
    for body in bodies:
        request = GenerationRequest.model_validate(json.loads(json.dumps(body.generation_request("r", drawn_seed=0))))
        assert request.sampling == expected


def test_a_beam_search_reaches_the_replica() -> None:
    fields = {"beam_search": {"num_beams": 4, "length_penalty": 0.5}, "max_tokens": 9, "temperature": 0.0}
    body = ChatCompletionBody.model_validate({"messages": HELLO, **fields})
    request = GenerationRequest.model_validate(json.loads(json.dumps(body.generation_request("r", drawn_seed=0))))
    assert request.sampling.beam_search == BeamSearch(num_beams=4, length_penalty=0.5)


def test_conditional_sampling_reaches_the_replica() -> None:
    """Beside everything that leaves the model as it is, and fields that say "off"."""
    off = {"n": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logit_bias": {}, "presence_penalty": 0.0, "stream": False}
    beside = {"temperature": 0.7, "stop": ["x"], "min_tokens": 2, "max_tokens": 9, "seed": 4, "logprobs": True}
    fields = {"conditional_sampling": {"particles": 8}, "structured_outputs": {"regex": "a+"}}
    body = ChatCompletionBody.model_validate({"messages": HELLO, **off, **beside, **fields})
    data = json.loads(json.dumps(body.generation_request("r", drawn_seed=0)))
    request = GenerationRequest.model_validate({**data, "grammar": {"key": "0" * 64}})
    assert request.sampling.conditional_sampling == ConditionalSampling(particles=8, ess_threshold=0.5)
    assert body.sequences == 8


def test_a_deadline_reaches_the_replica() -> None:
    body = CompletionBody.model_validate({"prompt": "x", "timeout_s": 2})
    assert GenerationRequest.model_validate(body.generation_request("r", drawn_seed=0)).timeout_s == 2


def test_a_budget_goes_with_a_constraint() -> None:
    fields = {"finish_within_budget": True, "response_format": {"type": "json_object"}}
    body = ChatCompletionBody.model_validate({"messages": HELLO, **fields})
    assert body.generation_request("r", drawn_seed=0)["sampling"]["finish_within_budget"] is True


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 1.5}, "n"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1e9}, "timeout_s"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"min_tokens": 9, "max_completion_tokens": 8}, "min_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"raw_logprobs": True}, "raw_logprobs"),
        ({"diagnostics": "yes"}, "diagnostics"),
        ({"banned_words": {"words": []}}, "banned_words.words"),
        ({"banned_words": {"words": [""]}}, "banned_words.words[0]"),
        ({"banned_words": {"words": ["a"], "whole_words": 1}}, "banned_words.whole_words"),
        ({"banned_words": {"words": ["a"]}, "structured_outputs": {"key": "0" * 64}}, "banned_words"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"finish_within_budget": True}, "finish_within_budget"),
        ({"beam_search": {"num_beams": 1}}, "beam_search.num_beams"),
        ({"beam_search": {"num_beams": 4}, "n": 2}, "beam_search"),
        ({"beam_search": {"num_beams": 4}, "stop": "x"}, "beam_search"),
        ({"conditional_sampling": {"particles": 0}}, "conditional_sampling.particles"),
        ({"conditional_sampling": {"particles": 65}}, "conditional_sampling.particles"),
        ({"conditional_sampling": {"particles": 2, "ess_threshold": 1.5}}, "conditional_sampling.ess_threshold"),
        ({"conditional_sampling": {"ess_threshold": 0.5}}, "conditional_sampling.particles"),
        ({"conditional_sampling": {"particles": 2, "x": 1}}, "conditional_sampling.x"),
    ],
)
async def test_values_out_of_range_are_refused_by_name(
    http: httpx.AsyncClient, replica: FakeReplica, fields: dict[str, Any], param: str
) -> None:
    response = await chat(http, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not replica.requests


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"finish_within_budget": True}, "finish_within_budget"),
        ({"n": 2}, "`n`"),
        ({"temperature": 0}, "temperature"),
        ({"stream": True}, "which particle is the answer is known at its end"),
        ({"structured_outputs": None}, "needs a constraint"),
        ({"structured_outputs": None, "banned_words": {"words": ["a"]}}, "needs a constraint"),
    ],
)
async def test_conditional_sampling_is_of_the_model_itself(
    http: httpx.AsyncClient, replica: FakeReplica, fields: dict[str, Any], named: str
) -> None:
    asked = {"conditional_sampling": {"particles": 4}, "structured_outputs": {"choice": ["a", "b"]}, **fields}
    for path, prompt in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "x"})):
        response = await http.post(f"/v1/{path}", json={**prompt, **asked})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "conditional_sampling")
        assert named in error["message"]
    response = await chat(http, **{**asked, "structured_outputs": {"regex": "a"}, "beam_search": {"num_beams": 2}})
    assert response.json()["error"]["param"] in ("beam_search", "conditional_sampling")
    assert not replica.requests


async def test_an_answer_tells_what_its_particles_say(
    http: httpx.AsyncClient, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`usage` counts the tokens of all particles; both endpoints, and tools, whose grammar is one as any other."""
    generate = replica.generate

    async def weighed(request: dict[str, Any], *, options: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        estimate = {"valid_logprob": -1.5, "effective_sample_size": 3.25, "other_tokens": 14}
        async for event in generate(request, options=options):
            yield event if event["finish_reason"] is None else {**event, "conditional_sampling": estimate}

    monkeypatch.setattr(replica, "generate", weighed)
    asked = {"conditional_sampling": {"particles": 4}, "structured_outputs": {"regex": "[0-9 ]+"}}
    for path, prompt in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "x"})):
        body = (await http.post(f"/v1/{path}", json={**prompt, **asked})).json()
        assert body["choices"][0]["conditional_sampling"] == {"valid_logprob": -1.5, "effective_sample_size": 3.25}
        assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 19, "total_tokens": 22}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = (await chat(http, conditional_sampling={"particles": 4}, tools=[tool], tool_choice="required")).json()
    assert body["usage"]["completion_tokens"] == 19


def test_the_older_endpoint_counts_its_logprobs() -> None:
    with pytest.raises(ValidationError, match="logprobs"):
        CompletionBody.model_validate({"prompt": "x", "logprobs": True})


# -- several choices -------------------------------------------------------------------------------------------------


async def test_choices_are_drawn_apart_and_counted_together(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    body = (await chat(http, n=3, seed=5)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["0 1 2 3 4 "] * 3
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 15, "total_tokens": 18}
    assert [request["choice_index"] for request in replica.requests] == [0, 1, 2]
    assert {request["sampling"]["seed"] for request in replica.requests} == {5}


async def test_a_stream_of_choices(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    replica.faults = [None, (2, ActorDiedError())]
    parsed = blocks(await chat(http, n=2, stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    ended = []
    for chunk in parsed[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            ended.append(choice["index"])
    assert texts == ["0 1 2 3 4 "] * 2
    assert sorted(ended) == [0, 1]
    assert parsed[-1]["usage"]["completion_tokens"] == 10


async def test_leaving_stops_every_choice(compiler: FakeCompiler, replica: FakeReplica) -> None:
    tiers = Tiers(compiler.handle, replica.handle, new_grammars=NEW_GRAMMARS)
    request = {"request_id": "r", "prompt": "x", "emitted_token_ids": [], "grammar": None}
    generation = await tiers.start_generation(request, None, "anonymous", choices=3)
    assert replica.running == 3
    async for _ in generation:
        break
    await generation.aclose()
    await settled()
    assert replica.running == 0


async def test_one_refused_choice_refuses_the_answer(compiler: FakeCompiler, replica: FakeReplica) -> None:
    replica.faults = [None, (0, {"status": 400, "code": "x", "message": "no", "param": "prompt"})]
    tiers = Tiers(compiler.handle, replica.handle, new_grammars=NEW_GRAMMARS)
    request = {"request_id": "r", "prompt": "x", "emitted_token_ids": [], "grammar": None}
    with pytest.raises(Exception, match="no"):
        await asyncio.wait_for(tiers.start_generation(request, None, "anonymous", choices=2), 200)
    await settled()
    assert replica.running == 0


# -- reports ---------------------------------------------------------------------------------------------------------


def report(text: str, **more: Any) -> dict[str, Any]:
    named = {"token_id": 1, "text": text, "bytes": list(text.encode())}
    return {**named, "logprob": -0.5, "top": [{**named, "logprob": -0.5}], **more}


@pytest.fixture
def telling(replica: FakeReplica, monkeypatch: pytest.MonkeyPatch) -> FakeReplica:
    """A replica that reports on every token."""
    generate = replica.generate

    async def told(request: dict[str, Any], *, options: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async for event in generate(request, options=options):
            more = {"raw_logprob": -1.0, "diagnostics": {"allowed": 2}}
            yield {**event, "reports": [report(event["text"], **more)] if event["token_ids"] else []}

    monkeypatch.setattr(replica, "generate", told)
    return replica


async def test_logprobs_in_both_shapes(http: httpx.AsyncClient, telling: FakeReplica) -> None:
    telling.length = 2
    (choice,) = (await chat(http, logprobs=True, top_logprobs=1, raw_logprobs=True, diagnostics=True)).json()["choices"]
    first = choice["logprobs"]["content"][0]
    assert first == {
        "token": "0 ",
        "logprob": -0.5,
        "bytes": [48, 32],
        "top_logprobs": [{"token": "0 ", "logprob": -0.5, "bytes": [48, 32]}],
        "raw_logprob": -1.0,
    }
    assert choice["logprobs"]["refusal"] is None and len(choice["logprobs"]["content"]) == 2
    assert choice["diagnostics"] == [{"token": "0 ", "allowed": 2}, {"token": "1 ", "allowed": 2}]
    (choice,) = (await http.post("/v1/completions", json={"prompt": "x", "logprobs": 1})).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["0 ", "1 "],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"0 ": -0.5}, {"1 ": -0.5}],
        "text_offset": [0, 2],
        "raw_token_logprobs": [-1.0, -1.0],
    }


async def test_logprobs_in_streams(http: httpx.AsyncClient, telling: FakeReplica) -> None:
    telling.length = 2
    parsed = blocks(await chat(http, logprobs=True, stream=True))
    told = [chunk["choices"][0]["logprobs"] for chunk in parsed]
    assert [one and [token["token"] for token in one["content"]] for one in told] == [None, ["0 "], ["1 "], None]
    parsed = blocks(await http.post("/v1/completions", json={"prompt": "x", "logprobs": 0, "stream": True}))
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in parsed[:-1]]
    assert offsets == [[0], [2]]
    # Asked for nothing, told nothing.
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in blocks(await chat(http, stream=True)))


async def test_the_openai_client_reads_choices_and_logprobs(http: httpx.AsyncClient, telling: FakeReplica) -> None:
    client = openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=http)
    answer = await client.chat.completions.create(model="tiny", messages=HELLO, n=2, logprobs=True, top_logprobs=1)  # type: ignore[call-overload]
    for choice in answer.choices:
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    older = await client.completions.create(model="tiny", prompt="x", n=2, logprobs=1)
    assert [choice.logprobs.text_offset for choice in older.choices if choice.logprobs] == [[0, 2, 4, 6, 8]] * 2

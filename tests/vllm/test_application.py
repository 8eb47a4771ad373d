"""`configs/vllm-cpu.yaml` as it stands, over HTTP: the router, the grammar tier and a replica on vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import psutil
import pytest

from tests.integration.server import Server
from tests.integration.tool_answers import beside, custom, is_fault, tried
from tests.vllm.application import engine_cores, engine_workers, serving
from tests.vllm.test_serve import MESSAGES, PERSON, of_schema

pytestmark = pytest.mark.timeout(900)  # the first start on a machine compiles kernels


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"messages": MESSAGES, "temperature": 0, "max_tokens": 200, **fields}
    return client.chat.completions.create(model="turnstile-tiny", **fields).choices[0]


def test_answers_schemas_and_tools(client: openai.OpenAI) -> None:
    assert ask(client).finish_reason == "stop"
    guided = ask(client, response_format=of_schema(PERSON))
    jsonschema.validate(json.loads(guided.message.content), PERSON)
    tool: Any = {"type": "function", "function": {"name": "save", "parameters": PERSON}}
    called = ask(client, tools=[tool], tool_choice="required")
    assert called.finish_reason == "tool_calls"
    jsonschema.validate(json.loads(called.message.tool_calls[0].function.arguments), PERSON)
    grammar = ask(client, extra_body={"structured_outputs": {"grammar": 'root ::= "x" root | "y"'}}, max_tokens=9)
    assert grammar.finish_reason == "length" or re.fullmatch("x*y", grammar.message.content)


@pytest.mark.parametrize(("kind", "many"), [(beside, 24), (custom, 12)])
def test_tools_beside_a_constraint_and_custom_tools_are_exact(server: Server, kind: Any, many: int) -> None:
    """At temperature 1, streamed and not. The long form is `python -m tests.integration.tool_answers`."""
    found = tried(server.url, kind, many, clients=4)
    assert not any(map(is_fault, found)), found
    if kind is beside:
        assert {"text", "one call"} <= found.keys()


def test_a_message_is_continued_under_its_constraint(client: openai.OpenAI) -> None:
    begun = '{"name": "Al'
    messages = [*MESSAGES, {"role": "assistant", "content": begun}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    answer = ask(client, messages=messages, response_format=of_schema(PERSON), extra_body=extra)
    jsonschema.validate(json.loads(begun + answer.message.content), PERSON)
    with pytest.raises(openai.BadRequestError, match="begins with the last message"):
        ask(
            client,
            messages=[*MESSAGES, {"role": "assistant", "content": "Sure: "}],
            response_format=of_schema(PERSON),
            extra_body=extra,
        )


def test_a_stream_with_log_probabilities_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    fields: Any = {"response_format": of_schema(PERSON), "logprobs": True, "top_logprobs": 2}
    whole = ask(client, **fields)
    chunks = client.chat.completions.create(
        model="turnstile-tiny", messages=MESSAGES, temperature=0, max_tokens=200, stream=True, **fields
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == whole.message.content
    streamed = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in whole.logprobs.content]
    assert all(len(token.top_logprobs) <= 2 and token.logprob <= 0 for token in streamed)


def test_banned_words_cannot_come_up_in_free_text(client: openai.OpenAI) -> None:
    word = ask(client).message.content.split()[0]
    banned = {"banned_words": {"words": [word, word.lower()], "case_sensitive": False}}
    for temperature in (0, 1, 1, 1):
        content = ask(client, temperature=temperature, extra_body=banned).message.content
        assert content and word.lower() not in content.lower()


def test_stop_strings_end_the_text(client: openai.OpenAI) -> None:
    whole = ask(client).message.content
    stopped = ask(client, stop=["Moore"])
    assert stopped.finish_reason == "stop" and stopped.message.content == whole.partition("Moore")[0]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"diagnostics": True}, "diagnostics", "unsupported_by_engine"),
        ({"beam_search": {"num_beams": 2}}, "beam_search", "unsupported_by_engine"),
        ({"banned_words": {"words": ["x", ""]}}, "banned_words.words[1]", "invalid_value"),
        ({"logprobs": True, "raw_logprobs": True}, "raw_logprobs", "unsupported_by_engine"),
        ({"stop_token_ids": [99_999]}, "stop_token_ids", "invalid_token_id"),
        ({"structured_outputs": {"regex": "(?<x>a)\\k<x>"}}, "structured_outputs", "unsupported_grammar"),
        ({"model": "another"}, "model", "model_not_found"),
    ],
)
def test_refusals_name_the_field(client: openai.OpenAI, fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
        client.chat.completions.create(
            model=fields.pop("model", "turnstile-tiny"), messages=MESSAGES, max_tokens=9, extra_body=fields
        )
    error: Any = refused.value
    assert (error.param, error.code) == (param, code)


def test_clients_that_leave_free_the_engine(server: Server) -> None:
    """Sixteen streams, as many as it has places: once they are closed its processes have nothing to do."""
    body = {"messages": MESSAGES, "ignore_eos": True, "max_tokens": 900, "stream": True}

    async def leave(http: httpx.AsyncClient) -> None:
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_lines())

    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as http:
            await asyncio.gather(*(leave(http) for _ in range(16)))

    asyncio.run(scenario())
    deadline = time.monotonic() + 200
    while busy_seconds(server, 2) > 0.4:
        assert time.monotonic() < deadline, "vLLM goes on without a reader"


def busy_seconds(server: Server, over_s: float) -> float:
    """Processor time that vLLM's processes take in `over_s` seconds."""
    processes = engine_cores(server) + engine_workers(server)
    assert len(processes) >= 2

    def spent() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = spent()
    time.sleep(over_s)
    return spent() - before


def test_metrics_know_the_engine(server: Server) -> None:
    server.wait_metric("turnstile_generations", finish_reason="stop")
    server.wait_metric("turnstile_masks")
    assert set(server.metric("turnstile_grammar_compilations", component="model_replica")) == {0.0}


def test_a_killed_engine_core_and_a_killed_replica_lose_nothing(server: Server) -> None:
    """With one replica, so that its streams wait for the next one. The long form is `python -m tests.vllm.chaos`."""
    from tests.vllm.chaos import struck

    for name in ("engine-core", "replica"):
        outcome = asyncio.run(struck(server, name, streams=8))
        assert outcome.interrupted >= 4, outcome
        assert outcome.lost == [] and outcome.differing == [], outcome
        assert outcome.compiled == 0, outcome


def test_a_stop_leaves_no_process(tmp_path_factory: pytest.TempPathFactory, server: Server) -> None:
    started = engine_cores(server) + engine_workers(server)
    assert len(started) >= 2
    code, left = server.interrupt()
    assert code == 0 and left == []
    with contextlib.suppress(psutil.NoSuchProcess):
        assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in started)

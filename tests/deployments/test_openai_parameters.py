"""Every parameter of OpenAI's client: taken, or refused by its name. The package is the judge of which there are."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai.types import completion_create_params as text
from openai.types.chat import completion_create_params as chat

from deployments.http.fields import Refused
from deployments.openai.protocol import ChatCompletionBody, CompletionBody
from tests.deployments.fakes import FakeReplica, settled

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}

TAKEN: dict[str, Any] = {
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0.5,
    "logit_bias": {"1": -1},
    "logprobs": True,
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "messages": HELLO,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "model": "tiny",
    "n": 1,
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": [{"type": "text", "text": "hello"}]},
    "presence_penalty": 0.5,
    "prompt": "hello",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "none",
    "response_format": {"type": "text"},
    "safety_identifier": "s",
    "seed": 1,
    "service_tier": "default",
    "stop": ["x"],
    "store": False,
    "stream": False,
    "stream_options": {"include_usage": True},
    "suffix": "",
    "temperature": 0.5,
    "tool_choice": "auto",
    "tools": [TOOL],
    "top_logprobs": 2,
    "top_p": 0.5,
    "user": "u",
    "verbosity": "medium",
}
"""A value of every parameter that is taken."""
REFUSED: dict[str, Any] = {
    "audio": {"format": "wav", "voice": "alloy"},
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "moderation": {"model": "m"},
    "web_search_options": {},
}
"""A value of every parameter that is not."""
NEEDS: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [TOOL]},
    "top_logprobs": {"logprobs": True},
}
"""What a parameter does not go without."""


def parameters(module: Any) -> set[str]:
    kinds = (module.CompletionCreateParamsNonStreaming, module.CompletionCreateParamsStreaming)
    return {name for kind in kinds for name in kind.__required_keys__ | kind.__optional_keys__}


CHAT, TEXT = sorted(parameters(chat)), sorted(parameters(text))


async def create(client: httpx.AsyncClient, kind: str, **fields: Any) -> Any:
    api = openai.AsyncOpenAI(api_key="none", base_url="http://turnstile/v1", http_client=client, max_retries=0)
    if kind == "chat":
        return await api.chat.completions.create(**{"model": "tiny", "messages": HELLO, **fields})
    return await api.completions.create(**{"model": "tiny", "prompt": "hello", **fields})


@pytest.mark.parametrize(("kind", "name"), [*(("chat", one) for one in CHAT), *(("text", one) for one in TEXT)])
async def test_a_parameter_is_taken_or_refused_by_name(
    http: httpx.AsyncClient, replica: FakeReplica, kind: str, name: str
) -> None:
    assert (name in TAKEN) != (name in REFUSED), f"{name}: new in the package; take it, or refuse it with a reason"
    if name in TAKEN:
        value = 2 if (kind, name) == ("text", "logprobs") else TAKEN[name]
        await create(http, kind, **{**NEEDS.get(name, {}), name: value})
        assert replica.requests
        return
    with pytest.raises(openai.BadRequestError) as caught:
        await create(http, kind, **{name: REFUSED[name]})
    (refused,) = (one for one in ChatCompletionBody.model_fields[name].metadata if isinstance(one, Refused))
    assert caught.value.param == name and refused.reason in caught.value.message and not replica.requests


def test_refused_fields_are_parameters_of_the_package() -> None:
    for body, known in ((ChatCompletionBody, CHAT), (CompletionBody, TEXT)):
        fields = body.model_fields.items()
        refused = {name for name, field in fields if any(isinstance(one, Refused) for one in field.metadata)}
        assert refused == set(REFUSED) & set(known)


async def test_null_is_the_default_of_refused_fields_too(http: httpx.AsyncClient) -> None:
    body = {"messages": HELLO, **dict.fromkeys(REFUSED)}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200


async def test_several_prompts_have_their_choices_in_order(http: httpx.AsyncClient, replica: FakeReplica) -> None:
    for prompts in (["one", "two"], [[1, 2], [3]], [[1, 2]]):
        replica.requests.clear()
        answer = await create(http, "text", prompt=prompts, n=2)
        assert [choice.index for choice in answer.choices] == list(range(2 * len(prompts)))
        assert [request["prompt"] for request in replica.requests] == [one for one in prompts for _ in range(2)]
        assert answer.usage.prompt_tokens == 3 * len(prompts)
        stream = await create(http, "text", prompt=prompts, n=2, stream=True)
        assert {chunk.choices[0].index async for chunk in stream} == set(range(2 * len(prompts)))
    replica.faults = [None, (0, {"status": 400, "message": "no", "param": "prompt", "code": "invalid_prompt"})]
    with pytest.raises(openai.BadRequestError):
        await create(http, "text", prompt=["one", "two"])
    await settled()
    assert replica.running == 0
